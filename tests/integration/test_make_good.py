"""Whoever worked on a slice when another came back and delivered it is paid out of the fee: once, on a real store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import patch

import pytest

from computepool.core.ids import AttemptId
from computepool.core.ledger.accounts import owner_available
from computepool.hub.services import make_good as service
from computepool.hub.services.attempts import reap_leases
from computepool.hub.services.disputes import reverse_earning
from computepool.hub.services.releases import release_due
from computepool.hub.store import credits as store
from computepool.hub.store import ledger
from computepool.hub.store.attempts import Grant
from tests.support.paid_jobs import CREDIT, acknowledge, lease, open_paid_spine, own, ran, submit
from tests.support.payment_lab import to_caller
from tests.support.rows import insert_account
from tests.support.spine import EnrolledNode, Spine


@pytest.fixture
async def spine(dsn: str) -> AsyncIterator[Spine]:
    async with open_paid_spine(dsn) as spine:
        yield spine


async def supersede(
    spine: Spine, *, late: EnrolledNode, beaten: EnrolledNode, ran_seconds: float = 9.5, begun: bool = True
) -> tuple[Grant, Grant]:
    """One goes silent, another takes over and works for so long, then the first delivers 40 seconds of work."""
    await submit(spine, await spine.sign_up(credits=1_000))
    first = await lease(spine, late)
    await spine.let_lease_pass(first)
    await reap_leases(spine.pool, grace_seconds=1.0, limit=10)
    await spine.fetch("UPDATE slices SET avoid_node_id = NULL")
    second = await lease(spine, beaten, held_seconds=ran_seconds)
    if begun:
        await acknowledge(spine, beaten, second)
    answer = await spine.succeed(late, first, **ran(40.0))
    assert not isinstance(answer, Exception), answer
    # By the database's clock, to the second.
    turned = "UPDATE attempts SET leased_at = finished_at - $2 * interval '1 second' WHERE id = $1"
    await spine.fetch(turned, second.id, ran_seconds)
    return first, second


async def let_holdback_pass(spine: Spine) -> None:
    await spine.fetch("UPDATE attempts SET release_at = now() - interval '1 second' WHERE earning_state = 'pending'")
    await spine.fetch("UPDATE receipts SET state = 'verified'")
    await release_due(spine.pool, limit=100)


async def fee(spine: Spine) -> int:
    return int(await spine.fetch_value("SELECT sum(balance) FROM ledger_accounts WHERE kind = 'fee'"))


async def drifts(spine: Spine) -> list[Any]:
    async with spine.pool.acquire() as conn:
        return await ledger.list_drifts(conn)


async def free(spine: Spine, node: EnrolledNode) -> int:
    return await own(spine, node.caller.account_id, "owner_available")


async def test_time_of_a_superseded_attempt_is_paid_out_of_the_fee_when_the_result_is_final(spine):
    late, beaten = await spine.enrol(), await spine.enrol()
    _, second = await supersede(spine, late=late, beaten=beaten, ran_seconds=6.5)
    assert await service.make_good(spine.pool, limit=10) == 0, "what was delivered may yet be taken back"
    await let_holdback_pass(spine)
    assert await fee(spine) == 8 * CREDIT
    assert await service.make_good(spine.pool, limit=10) == 1
    # Seven seconds at a credit a second: four fifths of that.
    made_good = 7 * CREDIT * 4 // 5
    assert (await free(spine, beaten), await fee(spine)) == (made_good, 8 * CREDIT - made_good)
    row = await spine.attempt(second)
    assert (row["made_good_microcredits"], row["charged_microcredits"]) == (made_good, None)
    assert await service.make_good(spine.pool, limit=10) == 0, "once"
    assert await drifts(spine) == []


async def test_no_more_than_the_fee_of_the_slice_is_paid(spine):
    late, beaten = await spine.enrol(), await spine.enrol()
    await supersede(spine, late=late, beaten=beaten, ran_seconds=90.0)
    await let_holdback_pass(spine)
    await service.make_good(spine.pool, limit=10)
    assert (await free(spine, beaten), await fee(spine)) == (8 * CREDIT, 0)
    assert await drifts(spine) == []


async def test_where_nothing_is_due_that_is_written_down_and_not_looked_at_again(spine):
    late, beaten = await spine.enrol(), await spine.enrol()
    _, second = await supersede(spine, late=late, beaten=beaten, begun=False)
    await let_holdback_pass(spine)
    assert await service.make_good(spine.pool, limit=10) == 1
    assert (await spine.attempt(second))["made_good_microcredits"] == 0
    assert await service.make_good(spine.pool, limit=10) == 0
    assert await free(spine, beaten) == 0


async def test_owners_and_accounts_that_are_paid_out_to_one_place_are_not_paid_for_beating_themselves(spine):
    owner = await spine.sign_up(credits=0)
    await supersede(spine, late=await spine.enrol(owner=owner), beaten=await spine.enrol(owner=owner))
    late, beaten = await spine.enrol(), await spine.enrol()
    await supersede(spine, late=late, beaten=beaten)
    await spine.fetch(
        """INSERT INTO payout_details (id, account_id, region, currency, destination)
           SELECT gen_random_uuid(), id, 'IN', 'INR', 'bank of one' FROM unnest($1::uuid[]) AS p (id)""",
        [late.caller.account_id, beaten.caller.account_id],
    )
    await let_holdback_pass(spine)
    before = await fee(spine)
    assert await service.make_good(spine.pool, limit=10) == 2
    assert await fee(spine) == before
    assert await free(spine, beaten) == 0


async def test_a_result_that_was_taken_back_leaves_nothing_to_make_good_from(spine):
    late, beaten = await spine.enrol(), await spine.enrol()
    first, second = await supersede(spine, late=late, beaten=beaten)
    async with spine.pool.acquire() as conn:
        operator = to_caller(await insert_account(conn))
    await reverse_earning(spine.pool, operator, AttemptId(first.id), reason="made up")
    assert await service.make_good(spine.pool, limit=10) == 1
    assert (await spine.attempt(second))["made_good_microcredits"] == 0
    assert (await free(spine, beaten), await drifts(spine)) == (0, [])


async def test_hubs_that_look_at_once_pay_each_once(spine):
    pairs = [(await spine.enrol(), await spine.enrol()) for _ in range(6)]
    for late, beaten in pairs:
        await supersede(spine, late=late, beaten=beaten, ran_seconds=4.5)
    await let_holdback_pass(spine)
    async with asyncio.timeout(60):
        looked = await asyncio.gather(*(service.make_good(spine.pool, limit=2) for _ in range(6)))
        while await service.make_good(spine.pool, limit=2):
            pass
    assert sum(looked) <= len(pairs)
    assert [await free(spine, beaten) for _, beaten in pairs] == [4 * CREDIT] * 6
    assert await drifts(spine) == []


async def test_control_a_hub_that_forgets_what_it_has_made_good_is_stopped_by_the_key(spine):
    late, beaten = await spine.enrol(), await spine.enrol()
    await supersede(spine, late=late, beaten=beaten, ran_seconds=4.5)
    await let_holdback_pass(spine)

    async def forget(*_: Any) -> None:
        """The row stays as it was."""

    with patch.object(store, "set_made_good", forget):
        for _ in range(3):
            assert await service.make_good(spine.pool, limit=10) == 1
    assert await free(spine, beaten) == 4 * CREDIT
    assert await fee(spine) == 4 * CREDIT


async def test_control_without_the_fees_limit_the_platform_would_lose_on_the_slice(spine):
    late, beaten = await spine.enrol(), await spine.enrol()
    # Fees of others, which it could reach.
    await supersede(spine, late=await spine.enrol(), beaten=await spine.enrol(), begun=False)
    await supersede(spine, late=late, beaten=beaten, ran_seconds=15.5)
    await let_holdback_pass(spine)

    def pay_in_full(superseded: Any, *, is_linked: bool) -> int:
        return 16 * CREDIT * 4 // 5 if superseded.owner_id == beaten.caller.account_id else 0

    with patch.object(service, "price_make_good", pay_in_full):
        await service.make_good(spine.pool, limit=10)
    assert await free(spine, beaten) > 8 * CREDIT
    async with spine.pool.acquire() as conn:
        found = await ledger.get_balances(conn, [owner_available(beaten.caller.account_id)])
    assert list(found.values()) == [12_800_000]
