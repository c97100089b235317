"""The only reader of randomness."""

from __future__ import annotations

import random
import secrets
from uuid import UUID

from computepool import clock


def new_id() -> UUID:
    """A UUID version 7: ordered by time, so that indexes grow at their right edge."""
    milliseconds = int(clock.unix_seconds() * 1000)
    value = (milliseconds & 0xFFFFFFFFFFFF) << 80
    value |= 0x7 << 76
    value |= secrets.randbits(12) << 64
    value |= 0b10 << 62
    value |= secrets.randbits(62)
    return UUID(int=value)


def new_secret(byte_count: int = 32) -> str:
    """An unguessable URL-safe text."""
    return secrets.token_urlsafe(byte_count)


def new_bytes(byte_count: int) -> bytes:
    return secrets.token_bytes(byte_count)


def jitter() -> float:
    """A number in [0, 1) for spreading retries; not for secrets."""
    return random.random()
