"""Opens devices of the machine: disks, the kernel's log, memory. Reads nothing."""

import os

from probe import report, works

HARMLESS = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "stdin", "stdout", "stderr", "fd", "core"}
names = [name for name in os.listdir("/dev") if name not in HARMLESS and not os.path.isdir(f"/dev/{name}")]
flags = os.O_RDONLY | os.O_NONBLOCK
report(any(works(lambda name=name: os.close(os.open(f"/dev/{name}", flags))) for name in names), names)
