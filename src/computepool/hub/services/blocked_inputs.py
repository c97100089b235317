"""The operator's word against an input or an account: what is submitted from now on, and what is open already."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from uuid import UUID

from computepool.core.errors import InputBlocked, InvalidRequest, NotFound
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.spec import is_sha256
from computepool.core.jobs.state import SliceEvent
from computepool.hub.services.callers import AccountCaller
from computepool.hub.services.stops import stop_job
from computepool.hub.services.transitions import OnEnd, ignore_end
from computepool.hub.store import blocked_inputs as store
from computepool.hub.store import events as event_store
from computepool.hub.store.blocked_inputs import BlockedInput, OpenJob
from computepool.hub.store.connect import Pool
from computepool.hub.store.events import NewEvent
from computepool.wire.jobs import JobSpec

WHY_LENGTH_MAX = 300
JOBS_BATCH = 100
# For so long after a block jobs are looked for again: every hub has heard of it by then.
FRESH_SECONDS = 10.0


class BlockedInputs:
    """The hashes that no job may name, as they were known a moment ago."""

    def __init__(self) -> None:
        self._hashes: frozenset[str] = frozenset()

    def check(self, spec: JobSpec) -> None:
        """Raises InputBlocked."""
        if not self._hashes:
            return
        named = {file.sha256: file.path for file in spec.files}
        if spec.script is not None:
            named[hashlib.sha256(spec.script.encode(errors="surrogatepass")).hexdigest()] = "the script"
        for sha256 in self._hashes.intersection(named):
            raise InputBlocked(
                f"The operator of this hub has blocked {named[sha256]}, by its content. Ask them if it is a mistake.",
                sha256=sha256,
            )

    async def refresh(self, pool: Pool) -> list[bytes]:
        """Those that were blocked a moment ago."""
        async with pool.acquire() as conn:
            found = await store.list_hashes(conn, seconds=FRESH_SECONDS)
        self._hashes = frozenset(sha256.hex() for sha256 in found)
        return [sha256 for sha256, fresh in found.items() if fresh]


async def block_input(pool: Pool, caller: AccountCaller, sha256: str, *, why: str) -> BlockedInput:
    if not is_sha256(sha256):
        raise InvalidRequest("sha256 has 64 lower-case hex digits.")
    if not 1 <= len(why) <= WHY_LENGTH_MAX or "\0" in why:
        raise InvalidRequest(f"Say why, in 1 to {WHY_LENGTH_MAX} characters.")
    async with pool.acquire() as conn, conn.transaction():
        blocked = await store.insert_blocked_input(
            conn, sha256=bytes.fromhex(sha256), why=why, blocked_by=caller.account_id
        )
        body = {"sha256": sha256, "why": why}
        await event_store.record_events(
            conn, [NewEvent(kind="input_blocked", account_id=caller.account_id, body=body)]
        )
    return blocked


async def unblock_input(pool: Pool, caller: AccountCaller, sha256: str) -> None:
    async with pool.acquire() as conn, conn.transaction():
        if not await store.delete_blocked_input(conn, bytes.fromhex(sha256)):
            raise NotFound("This input is not blocked.")
        body = {"sha256": sha256}
        await event_store.record_events(
            conn, [NewEvent(kind="input_unblocked", account_id=caller.account_id, body=body)]
        )


async def list_blocked(pool: Pool, *, after: str, limit: int) -> list[BlockedInput]:
    async with pool.acquire() as conn:
        return await store.list_blocked_inputs(conn, after=bytes.fromhex(after), limit=limit)


async def stop_jobs_using(pool: Pool, sha256: bytes, *, on_end: OnEnd = ignore_end) -> int:
    """Queued or running: every job that names this input. Returns how many."""
    after, count = UUID(int=0), 0
    while True:
        async with pool.acquire() as conn:
            jobs = await store.list_jobs_using(conn, sha256, after=after, limit=JOBS_BATCH)
            events = [_to_event(job, sha256) for job in jobs]
            if events:
                await event_store.record_events(conn, events)
        await _stop(pool, jobs, on_end)
        count += len(jobs)
        if len(jobs) < JOBS_BATCH:
            return count
        after = jobs[-1].id


async def stop_jobs_of_suspended(pool: Pool, *, limit: int = JOBS_BATCH, on_end: OnEnd = ignore_end) -> int:
    """Of accounts that may not ask for anything any more, whichever hub took them in. Returns how many."""
    async with pool.acquire() as conn:
        jobs = await store.list_jobs_of_suspended(conn, limit=limit)
    await _stop(pool, jobs, on_end)
    return len(jobs)


async def _stop(pool: Pool, jobs: Sequence[OpenJob], on_end: OnEnd) -> None:
    for job in jobs:
        await stop_job(pool, job.id, SliceEvent.CANCELLED, Cause.CANCELLED, on_end=on_end)


def _to_event(job: OpenJob, sha256: bytes) -> NewEvent:
    return NewEvent(kind="job_blocked", account_id=job.account_id, job_id=job.id, body={"sha256": sha256.hex()})
