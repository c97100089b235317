"""Reads a private key from a home directory. argv: path."""

import sys
from pathlib import Path

from probe import report, works

report(works(lambda: Path(sys.argv[1]).read_bytes()))
