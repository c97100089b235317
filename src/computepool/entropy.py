"""The only reader of randomness."""

from __future__ import annotations

import os
import random
import secrets
from uuid import UUID

from computepool import clock


def new_id() -> UUID:
    """A UUID version 7: ordered by time, so that indexes grow at their right edge."""
    return UUID(bytes=new_id_bytes())


def new_id_bytes() -> bytes:
    """The same, for who has a kind of UUID of their own."""
    milliseconds = int(clock.unix_seconds() * 1000) & 0xFFFFFFFFFFFF
    random_bits = int.from_bytes(_take_random(10), "big")
    value = milliseconds << 80 | (random_bits & _ID_RANDOM_BITS) | _ID_FIXED_BITS
    return value.to_bytes(16, "big")


# Version 7 and variant 2 at their places; 12 and 62 bits are left to chance.
_ID_FIXED_BITS = 0x7 << 76 | 0b10 << 62
_ID_RANDOM_BITS = 0xFFF << 64 | 0x3FFFFFFFFFFFFFFF


def new_secret(byte_count: int = 32) -> str:
    """An unguessable URL-safe text."""
    return secrets.token_urlsafe(byte_count)


def new_nonce() -> str:
    """Unlike any other, and no secret."""
    return f"{int.from_bytes(_take_random(12), 'big'):024x}"


def new_bytes(byte_count: int) -> bytes:
    return secrets.token_bytes(byte_count)


class _Reservoir:
    """Random bytes fetched by the page: asking the kernel for ten costs as much as asking for a thousand."""

    def __init__(self) -> None:
        self._bytes, self._used = b"", 0

    def take(self, count: int) -> bytes:
        if self._used + count > len(self._bytes):
            self._bytes, self._used = secrets.token_bytes(4_096), 0
        self._used += count
        return self._bytes[self._used - count : self._used]

    def drain(self) -> None:
        self._bytes, self._used = b"", 0


_reservoir = _Reservoir()
_take_random = _reservoir.take
if hasattr(os, "register_at_fork"):
    # Two processes must never draw the same bytes.
    os.register_at_fork(after_in_child=_reservoir.drain)


def draw() -> float:
    """A number in [0, 1) that nobody can foresee."""
    return (int.from_bytes(_take_random(7), "big") >> 3) / (1 << 53)


def jitter() -> float:
    """A number in [0, 1) for spreading retries; not for secrets."""
    return random.random()
