"""Ids of the kind that the database's driver reads.

They are equal to any other UUID of the same value. Hashing, comparing and writing one costs a quarter of what it
costs with Python's own, and a dispatched slice is looked up some fifty times.
"""

from __future__ import annotations

from uuid import UUID

from asyncpg.pgproto.pgproto import UUID as DriverUUID

from computepool import entropy


def new_id() -> UUID:
    """As `entropy.new_id`."""
    return DriverUUID(entropy.new_id_bytes())


def to_driver_id(id: UUID) -> UUID:
    return DriverUUID(id.bytes)
