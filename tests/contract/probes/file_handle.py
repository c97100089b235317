"""Opens a file by number, past every mount."""

import ctypes
import os

from probe import report, syscall

AT_FDCWD = -100
handle = ctypes.create_string_buffer((128).to_bytes(4, "little"), 136)
mount_id = ctypes.c_int()
named = syscall("name_to_handle_at", ctypes.c_int(AT_FDCWD), b"/usr", handle, ctypes.byref(mount_id), ctypes.c_int(0))
mount_fd = os.open("/usr", os.O_RDONLY)
opened = syscall("open_by_handle_at", ctypes.c_int(mount_fd), handle, ctypes.c_int(os.O_RDONLY))
report(named == 0 or opened >= 0)
