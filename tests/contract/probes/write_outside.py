"""Writes next to somebody else's files. argv: folder."""

import sys
from pathlib import Path

from probe import report, works

report(works(lambda: Path(f"{sys.argv[1]}/planted").write_bytes(b"x")))
