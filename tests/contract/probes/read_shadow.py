"""Reads the machine's password hashes."""

from pathlib import Path

from probe import report, works

report(works(lambda: Path("/etc/shadow").read_bytes()))
