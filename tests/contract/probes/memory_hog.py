"""Takes and touches memory. argv: megabytes."""

import sys

from probe import report

kept = []
for _ in range(int(sys.argv[1])):
    kept.append(b"x" * (1 << 20))
report(True, len(kept))
