"""Inputs that the operator has blocked."""

from __future__ import annotations

from datetime import datetime

import msgspec


class BlockInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    # Of a file, or of the text of a script.
    sha256: str
    why: str


class BlockedInput(msgspec.Struct, frozen=True, kw_only=True):
    sha256: str
    why: str
    blocked_at: datetime


class BlockedInputPage(msgspec.Struct, frozen=True, kw_only=True):
    inputs: list[BlockedInput]
    cursor: str | None = None
