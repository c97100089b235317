"""Prints without end in sight. argv: megabytes."""

import sys

chunk = b"x" * ((1 << 20) - 1) + b"\n"
for _ in range(int(sys.argv[1])):
    sys.stdout.buffer.write(chunk)
