"""Pay for results, posted without asking first: the same books, and nothing that cannot be is ever written."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from computepool.core.errors import HubUnavailable
from computepool.core.ids import AccountId
from computepool.core.ledger import verbs
from computepool.core.ledger.accounts import owner_pending, submitter_available, submitter_held
from computepool.core.ledger.transfer import Posting
from computepool.hub.store import ledger
from computepool.hub.store.ledger import Unpostable
from computepool.wire.attempts import Usage
from computepool.wire.jobs import Requirements
from tests.support.postings import balance, hold, new_account_id, new_job_id, post, settle, top_up
from tests.support.spine import Spine, open_spine

CREDIT = 1_000_000
CEILING = Requirements(ceiling_microcredits_per_hour=3_600 * CREDIT)


@pytest.fixture
async def spine(dsn: str) -> AsyncIterator[Spine]:
    async with open_spine(dsn) as spine:
        yield spine


@pytest.fixture
def asked(monkeypatch) -> list[int]:
    """How many postings were asked about first, call by call."""
    calls: list[int] = []
    really = ledger.post

    async def count(conn: Any, postings: Any, **options: Any) -> Any:
        calls.append(len(postings))
        return await really(conn, postings, **options)

    monkeypatch.setattr(ledger, "post", count)
    return calls


async def deliver(spine: Spine, submitter: Any, node: Any) -> None:
    await spine.submit(by=submitter, requirements=CEILING, wall_seconds=100)
    grant = await spine.grant_one(node)
    # Of no time at all a second is paid, however long the machine took.
    answer = await spine.succeed(node, grant, usage=Usage(run_seconds=0.0))
    assert answer.accepted


async def list_drifts(conn: Any) -> list[str]:
    """Without those of holds, where the jobs are not there."""
    return [drift.name for drift in await ledger.list_drifts(conn, limit=100) if not drift.name.startswith("hold")]


async def test_an_owner_who_was_paid_before_is_paid_at_once_and_the_same(spine, asked):
    submitter, node = await spine.sign_up(credits=1_000), await spine.enrol()
    # One shard of sixteen takes the fee, and each is opened by its first.
    paid = []
    for _ in range(40):
        before = len(asked)
        await deliver(spine, submitter, node)
        paid.append((len(asked) == before, await spine.fetch_value("SELECT sum(charged_microcredits) FROM attempts")))
    assert any(at_once for at_once, _ in paid)
    prices = {after - before for (_, before), (_, after) in zip([(False, 0), *paid[:-1]], paid, strict=True)}
    assert len(prices) == 1
    async with spine.pool.acquire() as conn:
        assert await ledger.list_drifts(conn) == []


async def test_what_the_hub_believes_wrongly_is_written_by_nobody_and_asked_about_the_next_time(spine, monkeypatch):
    submitter, node = await spine.sign_up(credits=1_000), await spine.enrol()
    monkeypatch.setattr(spine.opened, "include", lambda postings: True)
    await spine.submit(by=submitter, requirements=CEILING, wall_seconds=100)
    grant = await spine.grant_one(node)
    with pytest.raises(HubUnavailable, match="Try again"):
        await spine.succeed(node, grant)
    assert (await spine.attempt(grant))["state"] == "leased"
    assert await spine.fetch_value("SELECT count(*) FROM ledger_transfers WHERE kind = 'settle'") == 0
    monkeypatch.undo()
    answer = await spine.succeed(node, grant)
    assert answer.accepted
    async with spine.pool.acquire() as conn:
        assert await ledger.list_drifts(conn) == []


async def start(conn: Any) -> tuple[AccountId, AccountId, Posting]:
    """Two people whose accounts are open, and pay from one to the other that is held and not yet posted."""
    submitter, owner, job_id = new_account_id(), new_account_id(), new_job_id()
    first, paid = settle(new_job_id(), submitter, owner, 50), settle(job_id, submitter, owner, 100)
    await post(
        conn, top_up(submitter, 150), hold(new_job_id(), submitter, 50), first, hold(job_id, submitter, 100),
        writes_jobs=False,
    )  # fmt: skip
    await ledger.open_accounts(conn, [leg.target for leg in paid.legs])
    return submitter, owner, paid


async def test_the_same_pay_at_once_and_once_more_is_refused_as_a_whole(pool):
    async with pool.acquire() as conn:
        submitter, owner, paid = await start(conn)
        await ledger.post_at_once(conn, [paid])
        top = hold(new_job_id(), submitter, 1)
        with pytest.raises(Unpostable):
            await ledger.post_at_once(conn, [paid, top])
        assert await balance(conn, owner_pending(owner)) == 120
        assert await list_drifts(conn) == []


async def test_control_without_a_unique_key_the_owner_is_paid_twice(pool):
    async with pool.acquire() as conn:
        submitter, owner, paid = await start(conn)
        await post(conn, top_up(submitter, 100), hold(new_job_id(), submitter, 100), writes_jobs=False)
        await conn.execute("ALTER TABLE ledger_transfers DROP CONSTRAINT ledger_transfers_pkey")
        for _ in range(2):
            await ledger.post_at_once(conn, [paid])
        assert await balance(conn, owner_pending(owner)) == 200


async def test_more_than_is_held_is_refused_as_a_whole(pool):
    async with pool.acquire() as conn:
        submitter, owner, paid = await start(conn)
        with pytest.raises(Unpostable):
            await ledger.post_at_once(conn, [paid, settle(new_job_id(), submitter, owner, 1)])
        assert await balance(conn, submitter_held(submitter)) == 100
        assert await list_drifts(conn) == []


async def test_an_account_that_is_not_open_takes_all_of_it_back(pool):
    async with pool.acquire() as conn:
        submitter, _, paid = await start(conn)
        stranger = settle(new_job_id(), submitter, new_account_id(), 10)
        with pytest.raises(Unpostable):
            async with conn.transaction():
                await ledger.post_at_once(conn, [paid, stranger])
        assert await balance(conn, submitter_held(submitter)) == 100
        assert await list_drifts(conn) == []


class Crowd:
    """Connections that all pay out of the same few accounts and back into them, many at once."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self.pool = pool
        self.people = [new_account_id() for _ in range(8)]

    async def run(self) -> None:
        async with self.pool.acquire() as conn:
            for person in self.people:
                await post(conn, top_up(person, 10**9), hold(new_job_id(), person, 10**8), writes_jobs=False)
            await ledger.open_accounts(conn, [owner_pending(person) for person in self.people])
            # The sixteen shards of the fee.
            await ledger.open_accounts(conn, [leg.target for _ in range(400) for leg in self.draw(random).legs])
        await asyncio.gather(*(self.work(random.Random(seed)) for seed in range(8)))

    async def work(self, dice: random.Random) -> None:
        for _ in range(40):
            async with self.pool.acquire() as conn, conn.transaction():
                await ledger.post_at_once(conn, [self.draw(dice) for _ in range(dice.randint(1, 12))])
                # Others come between the post and the end of its transaction.
                await asyncio.sleep(0)

    def draw(self, dice: Any) -> Posting:
        one, other = dice.sample(self.people, 2)
        if dice.random() < 0.5:
            return settle(new_job_id(), one, other, dice.randint(1, 200))
        made = verbs.refund(job_id=new_job_id(), submitter_id=one, held_remaining=dice.randint(1, 200))
        assert isinstance(made, Posting)
        return made


async def test_many_hubs_that_pay_at_once_never_deadlock_and_never_lose_a_microcredit(patient_pool):
    crowd = Crowd(patient_pool)
    await crowd.run()
    async with patient_pool.acquire() as conn:
        accounts = [submitter_available(person) for person in crowd.people]
        assert sum((await ledger.get_balances(conn, accounts)).values()) > 8 * (10**9 - 10**8)
        assert await list_drifts(conn) == []


async def test_control_accounts_in_another_order_on_every_connection_deadlock(patient_pool, monkeypatch):
    queries, order = ledger._q, "ORDER BY id FOR UPDATE"
    sql = queries.post_at_once.sql.replace(order, "ORDER BY md5(id || pg_backend_pid()) FOR UPDATE")
    assert sql != queries.post_at_once.sql

    class Planted:
        def __getattr__(self, name: str) -> Any:
            return getattr(queries, name)

        async def post_at_once(self, conn: Any, **parameters: Any) -> Any:
            return await queries.driver_adapter.select_value(conn, "post_at_once", sql, parameters)

    monkeypatch.setattr(ledger, "_q", Planted())
    with pytest.raises(asyncpg.DeadlockDetectedError):
        await Crowd(patient_pool).run()


async def test_a_hub_that_forgets_which_accounts_are_open_asks_again(spine, asked, monkeypatch):
    monkeypatch.setattr(ledger, "_OPEN_REMEMBERED_MAX", 1)
    submitter, node = await spine.sign_up(credits=1_000), await spine.enrol()
    for _ in range(3):
        await deliver(spine, submitter, node)
    async with spine.pool.acquire() as conn:
        assert await ledger.list_drifts(conn) == []
