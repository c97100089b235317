"""Plants a program where the machine looks for programs."""

from pathlib import Path

from probe import report, works

report(works(lambda: Path("/usr/local/planted").write_bytes(b"x")))
