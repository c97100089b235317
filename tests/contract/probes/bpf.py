"""Makes a BPF map: a door into the kernel's own interpreter."""

import ctypes
import struct

from probe import report, syscall

BPF_MAP_CREATE, BPF_MAP_TYPE_ARRAY = 0, 2
attributes = ctypes.create_string_buffer(struct.pack("<IIII", BPF_MAP_TYPE_ARRAY, 4, 4, 1), 120)
report(syscall("bpf", ctypes.c_int(BPF_MAP_CREATE), attributes, ctypes.c_uint(120)) >= 0)
