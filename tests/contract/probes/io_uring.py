"""Sets up an io_uring, which does system calls past a filter."""

import ctypes

from probe import report, syscall

report(syscall("io_uring_setup", ctypes.c_uint(1), ctypes.create_string_buffer(120)) >= 0)
