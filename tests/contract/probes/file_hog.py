"""Writes a large file. argv: path, megabytes."""

import os
import sys

from probe import report

path, megabytes = sys.argv[1], int(sys.argv[2])
written = 0
try:
    with open(path, "wb", buffering=0) as file:
        while written < megabytes << 20:
            written += file.write(b"x" * (1 << 20))
except OSError as error:
    print(error)
finally:
    os.unlink(path)
report(written >= megabytes << 20, written)
