"""Takes hold of another process, and reads its memory."""

import ctypes
import os
import signal

from probe import report, syscall

PTRACE_SEIZE = 0x4206


class Span(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


secret = ctypes.create_string_buffer(b"secret")
copy = ctypes.create_string_buffer(6)
child = os.fork()
if child == 0:
    signal.pause()
seized = syscall("ptrace", ctypes.c_long(PTRACE_SEIZE), ctypes.c_long(child), None, None) == 0
local, remote = Span(ctypes.addressof(copy), 6), Span(ctypes.addressof(secret), 6)
count = syscall(
    "process_vm_readv",
    *(ctypes.c_long(child), ctypes.byref(local), ctypes.c_ulong(1), ctypes.byref(remote), ctypes.c_ulong(1)),
    ctypes.c_ulong(0),
)
os.kill(child, signal.SIGKILL)
report(seized or count == 6)
