"""Opens a userfaultfd, the classical way to win races inside the kernel."""

import ctypes

from probe import report, syscall

report(syscall("userfaultfd", ctypes.c_int(0)) >= 0)
