"""Reads the machine's files through the root folder of PID 1. argv: path."""

import sys
from pathlib import Path

from probe import report, works

report(works(lambda: Path(f"/proc/1/root{sys.argv[1]}").read_bytes()))
