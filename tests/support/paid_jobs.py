"""Jobs that ran and were paid, on a real database, by the services that a hub uses; and forgeries of their books."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from computepool.core.ids import AccountId
from computepool.core.jobs.cause import Cause
from computepool.core.market.rate_card import Bucket
from computepool.hub.services.attempts import Beat, record_beats
from computepool.hub.services.callers import AccountCaller
from computepool.hub.store.attempts import Grant
from computepool.hub.store.jobs import Job
from computepool.wire.attempts import Usage
from computepool.wire.jobs import Requirements
from tests.support.spine import EnrolledNode, Spine, open_spine

CREDIT = 1_000_000
# 3,600 credits an hour are one credit a second: sums can be followed by eye.
HOUR = 3_600 * CREDIT
CEILING = Requirements(ceiling_microcredits_per_hour=HOUR)
FAILED = {"exit_code": 1, "cause": Cause.EXIT_CODE}
WALL_SECONDS = 100


@asynccontextmanager
async def open_paid_spine(dsn: str, **settings: Any) -> AsyncIterator[Spine]:
    """Slots cost what the submitter offers, at most: one credit a second."""
    async with open_spine(dsn, **settings) as spine:
        spine.leases.prices.spots = {Bucket("cpu", region): 10 * HOUR for region in ("default", "in")}
        yield spine


async def submit(spine: Spine, by: AccountCaller, **spec: Any) -> Job:
    return await spine.submit(by=by, requirements=CEILING, wall_seconds=WALL_SECONDS, **spec)


async def lease(spine: Spine, node: EnrolledNode, *, held_seconds: float = 50.0) -> Grant:
    """The next slice, on a slot that it has had for so long."""
    grant = await spine.grant_one(node)
    await spine.fetch(
        "UPDATE attempts SET leased_at = leased_at - $2 * interval '1 second' WHERE id = $1", grant.id, held_seconds
    )
    return grant


def ran(seconds: float) -> dict[str, Any]:
    return {"usage": Usage(run_seconds=seconds, cpu_seconds=seconds, memory_bytes_peak=1)}


async def run_one(spine: Spine, node: EnrolledNode, seconds: float, **outcome: Any) -> Grant:
    """Leases the next slice and ends it."""
    grant = await lease(spine, node)
    answer = await spine.succeed(node, grant, **ran(seconds), **outcome)
    assert not isinstance(answer, Exception), answer
    return grant


async def acknowledge(spine: Spine, node: EnrolledNode, grant: Grant) -> None:
    """The node lists it as running."""
    await record_beats(spine.pool, [Beat(node.id, frozenset({grant.id}))], lease_seconds=60.0)


async def own(spine: Spine, account_id: AccountId, kind: str) -> int:
    found = await spine.fetch_value("SELECT balance FROM ledger_accounts WHERE id = $1", f"{kind}/{account_id}")
    return found or 0


async def forge(spine: Any, statement: str, *args: Any, table: str = "ledger_transfers") -> None:
    """What only somebody with the owner's hand on the database can do: the guard is switched off meanwhile."""
    async with spine.pool.acquire() as conn, conn.transaction():
        await conn.execute(f"ALTER TABLE {table} DISABLE TRIGGER {table}_never_change")
        done = await conn.execute(statement, *args)
        await conn.execute(f"ALTER TABLE {table} ENABLE TRIGGER {table}_never_change")
    assert not done.endswith(" 0"), f"{statement} changed nothing"
