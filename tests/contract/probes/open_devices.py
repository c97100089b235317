"""Opens devices of the machine: disks, the kernel's log, memory. Reads nothing, and leaves watchdogs alone."""

import os
import stat

from probe import report, works

names = ["kmsg", "mem", "port"]
names += [name for name in os.listdir("/dev") if stat.S_ISBLK(os.lstat(f"/dev/{name}").st_mode)]
flags = os.O_RDONLY | os.O_NONBLOCK
report(any(works(lambda name=name: os.close(os.open(f"/dev/{name}", flags))) for name in names), names)
