"""Files by content hash."""

from __future__ import annotations

import msgspec


class Artifact(msgspec.Struct, frozen=True, kw_only=True):
    sha256: str
    size_bytes: int
