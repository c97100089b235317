"""Which account owns which content."""

from __future__ import annotations

from collections.abc import Iterable

from computepool.core.ids import AccountId
from computepool.hub.store.connect import Connection
from computepool.hub.store.queries import load_queries

_q = load_queries("artifacts")


async def record_artifact(conn: Connection, *, account_id: AccountId, sha256: bytes, size_bytes: int) -> None:
    """Counts the bytes against the account the first time only."""
    if await _q.insert_artifact(conn, account_id=account_id, sha256=sha256, size_bytes=size_bytes) is not None:
        await add_stored_bytes(conn, account_id=account_id, size_bytes=size_bytes)


async def add_stored_bytes(conn: Connection, *, account_id: AccountId, size_bytes: int) -> None:
    """Less than zero when they are freed."""
    await _q.add_stored_bytes(conn, account_id=account_id, size_bytes=size_bytes)


async def find_size(conn: Connection, *, account_id: AccountId, sha256: bytes) -> int | None:
    size_bytes: int | None = await _q.find_artifact(conn, account_id=account_id, sha256=sha256)
    return size_bytes


async def list_present(
    conn: Connection, wanted: Iterable[tuple[AccountId, bytes]]
) -> dict[tuple[AccountId, bytes], int]:
    """The size of each of these contents that its account has."""
    pairs = sorted(set(wanted))
    rows = _q.list_present(conn, account_ids=[p[0] for p in pairs], sha256s=[p[1] for p in pairs])
    return {(row["account_id"], row["sha256"]): row["size_bytes"] async for row in rows}
