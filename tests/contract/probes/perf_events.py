"""Opens the kernel's performance counters."""

import ctypes
import struct

from probe import report, syscall

PERF_TYPE_SOFTWARE, PERF_COUNT_SW_CPU_CLOCK, SIZE = 1, 0, 112
attributes = ctypes.create_string_buffer(struct.pack("<IIQ", PERF_TYPE_SOFTWARE, SIZE, PERF_COUNT_SW_CPU_CLOCK), SIZE)
flags = (ctypes.c_int(0), ctypes.c_int(-1), ctypes.c_int(-1), ctypes.c_ulong(0))
report(syscall("perf_event_open", attributes, *flags) >= 0)
