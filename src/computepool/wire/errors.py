"""How an error crosses the wire."""

from __future__ import annotations

from typing import Any

import msgspec


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """`code` is stable and made for programs; `message` says what to do next."""

    code: str
    message: str
    retryable: bool = False
    details: dict[str, Any] = {}
