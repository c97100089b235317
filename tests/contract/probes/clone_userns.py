"""Makes a user namespace by clone, with rubbish in the upper half of the flags."""

import ctypes
import os

from probe import report, syscall

CLONE_NEWUSER, SIGCHLD = 0x10000000, 17
child = syscall("clone", ctypes.c_ulong(1 << 63 | CLONE_NEWUSER | SIGCHLD), None, None, None, None)
if child == 0:
    os._exit(0)
report(child > 0)
