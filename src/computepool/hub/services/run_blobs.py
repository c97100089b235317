"""Contents that hosts of a run store and read: checkpoints and data. Counted among the bytes of the run's account."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable

from computepool.core.errors import HubUnavailable, LimitExceeded, NotFound
from computepool.core.ids import AccountId, RunId
from computepool.hub.blobs.local import LocalBlobs
from computepool.hub.store import accounts as account_store
from computepool.hub.store import artifacts as artifact_store
from computepool.hub.store import networks as network_store
from computepool.hub.store import runs as run_store
from computepool.hub.store.connect import Connection, Pool
from computepool.hub.store.runs import SeatRow

log = logging.getLogger("computepool.networks")

# A content that no checkpoint names is kept for so long: its report may be on its way.
YOUNG_SECONDS = 600.0
LOOSE_BATCH = 500


async def put_blob(
    pool: Pool, blobs: LocalBlobs, seat: SeatRow, sha256: str, chunks: AsyncIterator[bytes], *, size_bytes_max: int
) -> int:
    """Its size. A content that the run has already is checked and counted once."""
    await _check_room(pool, seat.account_id)
    size_bytes = await blobs.write(sha256, chunks, size_bytes_max=size_bytes_max)
    raw = bytes.fromhex(sha256)
    async with pool.acquire() as conn, conn.transaction():
        # Whoever frees the same content for another run has done so before, or sees this row.
        await run_store.lock_content(conn, raw)
        if not blobs.has(sha256):
            raise HubUnavailable("The content was freed while it came. Send it again.")
        if await run_store.insert_blob(conn, seat.run_id, sha256=raw, size_bytes=size_bytes):
            await artifact_store.add_stored_bytes(conn, account_id=seat.account_id, size_bytes=size_bytes)
    return size_bytes


async def get_blob_size(pool: Pool, seat: SeatRow, sha256: str) -> int:
    """Only the run's own contents and data can be read through a seat."""
    for item in seat.data:
        if item.sha256 == sha256:
            return item.size_bytes
    async with pool.acquire() as conn:
        size_bytes = await run_store.find_blob(conn, seat.run_id, bytes.fromhex(sha256))
    if size_bytes is None:
        raise NotFound("The run has no such content.")
    return size_bytes


async def has_blob(pool: Pool, run_id: RunId, sha256: str, *, size_bytes: int) -> bool:
    async with pool.acquire() as conn:
        return await run_store.find_blob(conn, run_id, bytes.fromhex(sha256)) == size_bytes


async def note_read(pool: Pool, seat: SeatRow, sha256: str) -> None:
    """A host has fetched this to its end. If it is data, the next run on it had better be there."""
    if any(item.sha256 == sha256 for item in seat.data):
        async with pool.acquire() as conn:
            await network_store.note_held(conn, node_id=seat.node_id, sha256s=[bytes.fromhex(sha256)])


async def free_blobs(
    pool: Pool, blobs: LocalBlobs, run_id: RunId, account_id: AccountId, sha256s: Iterable[bytes]
) -> int:
    """Those that no checkpoint of the run needs; bytes that nobody else has go with them. Returns how many."""
    freed = 0
    for sha256 in sorted(set(sha256s)):
        async with pool.acquire() as conn, conn.transaction():
            await run_store.lock_content(conn, sha256)
            freed += await _free(conn, blobs, run_id, account_id, sha256)
    return freed


async def free_loose(pool: Pool, blobs: LocalBlobs, run_id: RunId, account_id: AccountId) -> int:
    """What hosts have stored and never reported."""
    async with pool.acquire() as conn:
        loose = await run_store.list_loose_blobs(conn, run_id, young_seconds=YOUNG_SECONDS, limit=LOOSE_BATCH)
    return await free_blobs(pool, blobs, run_id, account_id, loose)


async def _free(conn: Connection, blobs: LocalBlobs, run_id: RunId, account_id: AccountId, sha256: bytes) -> bool:
    if not await run_store.is_loose(conn, run_id, sha256):
        return False
    size_bytes = await run_store.delete_blob(conn, run_id, sha256)
    if size_bytes is None:
        return False
    await artifact_store.add_stored_bytes(conn, account_id=account_id, size_bytes=-size_bytes)
    if not await run_store.is_content_used(conn, sha256):
        blobs.remove(sha256.hex())
    return True


async def _check_room(pool: Pool, account_id: AccountId) -> None:
    async with pool.acquire() as conn:
        [usage] = (await account_store.list_usage(conn, {account_id})).values()
    if usage.stored_bytes > usage.stored_bytes_max:
        raise LimitExceeded(
            f"The run's account stores {usage.stored_bytes / 1e9:.1f} GB of {usage.stored_bytes_max / 1e9:.1f} GB. "
            "Delete networks that are not needed, or ask the operator for more.",
            retry_after_seconds=60,
        )
