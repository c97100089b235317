"""Leaves a key in the kernel, where the next job of the same user would find it."""

import ctypes

from probe import report, syscall

KEY_SPEC_PROCESS_KEYRING = -2
report(syscall("add_key", b"user", b"probe", b"x", ctypes.c_size_t(1), ctypes.c_int(KEY_SPEC_PROCESS_KEYRING)) > 0)
