"""Mounts a file system of its own. argv: where."""

import sys

from probe import libc, report

report(libc.mount(b"tmpfs", sys.argv[1].encode(), b"tmpfs", 0, None) == 0)
