"""Reads the kernel's log."""

import ctypes

from probe import report, syscall

SYSLOG_ACTION_READ_ALL = 3
report(
    syscall("syslog", ctypes.c_int(SYSLOG_ACTION_READ_ALL), ctypes.create_string_buffer(64), ctypes.c_int(64)) >= 0
)
