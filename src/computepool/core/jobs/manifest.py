"""The hash of a result: one line per output file, as `sha256sum` prints them, sorted by path."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def manifest_sha256(outputs: Iterable[tuple[str, str]]) -> str:
    """`outputs` are (path, sha256 in hex)."""
    text = "".join(f"{sha256}  {path}\n" for path, sha256 in sorted(outputs))
    return hashlib.sha256(text.encode()).hexdigest()
