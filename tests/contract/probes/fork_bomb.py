"""Forks until it is stopped or reaches a harmless number. argv: that number."""

import os
import sys

from probe import report

wanted = int(sys.argv[1])
read_fd, write_fd = os.pipe()
children = 0
try:
    while children < wanted:
        if os.fork() == 0:
            os.close(write_fd)
            os.read(read_fd, 1)
            os._exit(0)
        children += 1
except OSError:
    pass
os.close(write_fd)
for _ in range(children):
    os.wait()
report(children == wanted, children)
