"""Files by content hash."""

from __future__ import annotations

import msgspec


class Artifact(msgspec.Struct, frozen=True, kw_only=True):
    sha256: str
    size_bytes: int


class Upload(msgspec.Struct, frozen=True, kw_only=True):
    """A file on its way. Send the rest with Upload-Offset set to what has arrived."""

    arrived_bytes: int
