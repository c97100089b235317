"""Files of accounts, by content hash."""

from __future__ import annotations

from computepool.core.errors import LimitExceeded, NotFound
from computepool.hub.services.callers import AccountCaller
from computepool.hub.store import accounts as account_store
from computepool.hub.store import artifacts as artifact_store
from computepool.hub.store.connect import Pool


async def check_room(pool: Pool, caller: AccountCaller, *, size_bytes: int) -> None:
    async with pool.acquire() as conn:
        account = await account_store.find_account(conn, caller.account_id)
    assert account is not None
    if account.stored_bytes + size_bytes > account.stored_bytes_max:
        raise LimitExceeded(
            f"Your files take {account.stored_bytes / 1e9:.2f} GB of {account.stored_bytes_max / 1e9:.2f} GB. "
            "Ask the operator for more room.",
            retry_after_seconds=300,
        )


async def record_upload(pool: Pool, caller: AccountCaller, *, sha256: str, size_bytes: int) -> None:
    async with pool.acquire() as conn, conn.transaction():
        await artifact_store.record_artifact(
            conn, account_id=caller.account_id, sha256=bytes.fromhex(sha256), size_bytes=size_bytes
        )


async def get_size(pool: Pool, caller: AccountCaller, sha256: str) -> int:
    """Another tenant's file is not there at all, even when the same bytes are stored."""
    async with pool.acquire() as conn:
        size_bytes = await artifact_store.find_size(conn, account_id=caller.account_id, sha256=bytes.fromhex(sha256))
    if size_bytes is None:
        raise NotFound("You have no such file.")
    return size_bytes
