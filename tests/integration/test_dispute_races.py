"""Disputes and reversals at the same moment as releases, payouts and each other, on a real database: one wins, once.

Each race is run many times with both sides let go together. What must never be is shown by planted bugs at the end.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest

from computepool import entropy
from computepool.core.accounts.roles import Role
from computepool.core.errors import ComputePoolError, LimitExceeded
from computepool.core.ids import AccountId
from computepool.core.ledger import dispute as rules
from computepool.core.ledger import verbs
from computepool.core.ledger.accounts import AccountKind, owner_available, owner_pending, submitter_available
from computepool.core.ledger.dispute import DisputeRefused, DisputeState
from computepool.core.ledger.earning import EarningState
from computepool.core.ledger.refusal import InsufficientCredits
from computepool.core.payments.cash import CREDIT
from computepool.core.payments.errors import AccountOwes
from computepool.core.payments.payout import PayoutState
from computepool.hub.services import cash, disputes, payouts, releases
from computepool.hub.services.callers import AccountCaller
from computepool.hub.store import credits as credit_store
from computepool.hub.store import disputes as store
from computepool.hub.store import payments as payment_store
from computepool.hub.store.connect import Pool
from computepool.hub.store.queries import load_queries
from tests.support.earnings import (
    RICH,
    Pay,
    earn,
    find_faults,
    get_balance,
    insist,
    list_judgement_faults,
    list_states,
    make_people,
)
from tests.support.payment_lab import PAY, PaymentLab, to_caller
from tests.support.rows import insert_account

K, S = AccountKind, DisputeState
LATER = {"due_seconds_ago": -3_600}


@pytest.fixture
def pool(patient_pool: Pool) -> Pool:
    return patient_pool


@pytest.fixture
async def operator(pool: Pool) -> AccountCaller:
    async with pool.acquire() as conn:
        return to_caller(await insert_account(conn), frozenset(Role))


async def doubt(pool: Pool, submitter: AccountId, pay: Pay, index: int = 0) -> Any:
    return await disputes.open_dispute(
        pool, to_caller(submitter), job_id=pay.job_id, slice_index=index, number=None, reason="it is wrong"
    )


async def decide(pool: Pool, operator: AccountCaller, id: UUID, decision: DisputeState) -> Any:
    return await disputes.decide_dispute(pool, operator, id, decision=decision, note="looked at it")


async def reverse(pool: Pool, operator: AccountCaller, pay: Pay, index: int = 0) -> Any:
    return await disputes.reverse_earning(pool, operator, pay.attempt_ids[index], reason="made up")


async def together(*acts: Any) -> list[Any]:
    """What each came to; a refusal is a value, anything else that is raised is a fault of the test."""
    async with asyncio.timeout(60):
        outcomes = await asyncio.gather(*acts, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, ComputePoolError):
            raise outcome
    return outcomes


async def after(seconds: float, act: Awaitable[Any]) -> Any:
    await asyncio.sleep(seconds)
    return await act


# Against releases


async def test_a_dispute_that_races_the_release_freezes_the_pay_or_is_told_that_it_is_late(pool):
    submitter, [owner] = await make_people(pool)
    frozen = late = turn = 0
    while turn < 30 or not frozen:
        turn += 1
        pay = await earn(pool, owner, submitter, 100, 100, 100)
        # With more and more of a start, so that each of them wins sometimes on any machine.
        start_seconds = turn / 500 * 2 ** max(0, turn - 30)
        release = [after(start_seconds, releases.release_due(pool, limit=2)) for _ in range(2)]
        acts = [doubt(pool, submitter, pay), *release]
        outcomes = await together(*(acts if turn % 2 else acts[::-1]))
        found = outcomes[0 if turn % 2 else -1]
        await releases.release_due(pool, limit=10)
        states = await list_states(pool, pay)
        assert states[1:] == ["released", "released"]
        if isinstance(found, DisputeRefused):
            late += 1
            assert (states[0], found.details["reason"]) == ("released", "released")
        else:
            frozen += 1
            assert (states[0], found.state) == ("disputed", S.OPEN)
            # Room for the next one.
            async with pool.acquire() as conn:
                await conn.execute("UPDATE disputes SET origin = 'receipt', opened_by = NULL WHERE state = 'open'")
    assert frozen + late == turn
    assert await find_faults(pool) == []


async def test_a_reversal_that_races_the_release_takes_the_pay_back_from_where_it_is_by_then(pool, operator):
    submitter, [owner] = await make_people(pool)
    pays = [await earn(pool, owner, submitter, 100, 100) for _ in range(20)]
    acts = [insist(lambda pay=pay: reverse(pool, operator, pay)) for pay in pays]
    acts += [releases.release_due(pool, limit=3) for _ in range(14)]
    random.Random(3).shuffle(acts)
    await together(*acts)
    while (await releases.release_due(pool, limit=50)).attempt_count:
        pass
    assert [await list_states(pool, pay) for pay in pays] == [["reversed", "released"]] * 20
    assert await get_balance(pool, owner_available(owner)) == 20 * 80
    assert await get_balance(pool, owner_pending(owner)) == 0
    assert await get_balance(pool, submitter_available(submitter)) == RICH - 20 * 100
    assert await find_faults(pool) == []


# Against each other


async def test_of_many_who_take_back_the_same_pay_one_does(pool, operator):
    submitter, [owner] = await make_people(pool)
    pays = [await earn(pool, owner, submitter, 100) for _ in range(6)]
    await releases.release_due(pool, limit=3)
    found = await together(*(reverse(pool, operator, pay) for _ in range(6) for pay in pays))
    assert len({each.id for each in found}) == 6
    assert await get_balance(pool, submitter_available(submitter)) == RICH
    async with pool.acquire() as conn:
        assert await conn.fetchval("SELECT count(DISTINCT key) FROM ledger_transfers WHERE kind = 'reverse'") == 6
    assert await find_faults(pool) == []


async def test_of_two_operators_who_decide_differently_one_is_told_what_the_other_said(pool, operator):
    submitter, [owner] = await make_people(pool)
    for turn in range(12):
        pay = await earn(pool, owner, submitter, 100, **LATER)
        id = (await doubt(pool, submitter, pay)).id
        decisions = [S.UPHELD, S.DISMISSED][:: 1 if turn % 2 else -1]
        outcomes = await together(*(decide(pool, operator, id, decision) for decision in decisions))
        [refused] = [each for each in outcomes if isinstance(each, DisputeRefused)]
        [stands] = [each for each in outcomes if not isinstance(each, DisputeRefused)]
        assert f"is {stands.state.value} already" in refused.message
        assert await list_states(pool, pay) == ["reversed" if stands.state is S.UPHELD else "pending"]
    assert await find_faults(pool) == []


async def test_one_of_two_who_doubt_at_once_opens_and_the_other_gets_the_same(pool):
    submitter, [owner] = await make_people(pool)
    pay = await earn(pool, owner, submitter, 100, **LATER)
    found = await together(*(doubt(pool, submitter, pay) for _ in range(8)))
    assert len({each.id for each in found}) == 1
    assert await find_faults(pool) == []


async def test_the_limit_holds_when_many_ask_at_once(pool):
    submitter, [owner] = await make_people(pool)
    pay = await earn(pool, owner, submitter, *[100] * 12, **LATER)
    with patch.object(rules, "OPEN_MAX", 3):
        found = await together(*(doubt(pool, submitter, pay, index) for index in range(12)))
    assert sum(isinstance(each, LimitExceeded) for each in found) == 9
    assert (await list_states(pool, pay)).count("disputed") == 3


# Against payouts


async def check_position(
    lab: PaymentLab, owner: AccountCaller, *, earned: int, paid_out: int, in_flight: int
) -> None:
    """What an owner has, has got and is about to get is what they earned and owe: no more, no less."""
    owed = -await lab.get_balance(K.RECEIVABLE, owner)
    free = await lab.get_balance(K.OWNER_AVAILABLE, owner)
    assert free + in_flight + paid_out == earned + owed
    assert await lab.get_balance(K.PAYOUT_CLEARING) == in_flight
    async with lab.pool.acquire() as conn:
        assert await list_judgement_faults(conn) == []
    await lab.check_books()


@pytest.mark.parametrize("round_number", range(6))
async def test_pay_taken_back_while_a_payout_is_asked_for_leaves_it_nothing_or_a_debt(lab, round_number):
    """800 are free, of which 600 are asked for and 400 are taken back at the same moment."""
    owner, submitter = await lab.sign_up(), await lab.sign_up()
    await lab.top_up(submitter, 2_000)
    await lab.set_details(owner)
    fraud, _ = await lab.earn(owner, submitter, 500), await lab.earn(owner, submitter, 500)
    acts = [insist(lambda: lab.request_payout(owner, 600, key="once")), insist(lambda: lab.reverse(fraud))]
    outcomes = await together(*(acts if round_number % 2 else acts[::-1]))
    payout = outcomes[0 if round_number % 2 else 1]
    owed = -await lab.get_balance(K.RECEIVABLE, owner)
    if isinstance(payout, ComputePoolError):
        # The reversal was first: 400 are left, and nothing is owed.
        assert isinstance(payout, InsufficientCredits)
        assert (owed, await lab.get_balance(K.OWNER_AVAILABLE, owner)) == (0, 400 * CREDIT)
        await check_position(lab, owner, earned=400 * CREDIT, paid_out=0, in_flight=0)
        return
    # The payout was first: of the 200 that were left everything is taken, and the rest is owed.
    assert (owed, await lab.get_balance(K.OWNER_AVAILABLE, owner)) == (200 * CREDIT, 0)
    await check_position(lab, owner, earned=400 * CREDIT, paid_out=0, in_flight=600 * CREDIT)
    with pytest.raises(AccountOwes):
        await payouts.approve_payout(lab.pool, lab.operator, payout.id)
    await payouts.refuse_payout(lab.pool, lab.operator, payout.id, why="earned by fraud")
    assert await cash.collect_debt(lab.pool, owner.account_id) == 0
    await check_position(lab, owner, earned=400 * CREDIT, paid_out=0, in_flight=0)


async def test_a_dispute_upheld_while_a_payout_is_asked_for_touches_pending_pay_alone(lab):
    owner, submitter = await lab.sign_up(), await lab.sign_up()
    await lab.top_up(submitter, 2_000)
    await lab.set_details(owner)
    await lab.earn(owner, submitter, 1_000)
    for turn in range(4):
        pay = await earn(lab.pool, owner.account_id, submitter.account_id, 100 * CREDIT, **LATER)
        opened = await doubt(lab.pool, submitter.account_id, pay)
        acts = [
            insist(lambda turn=turn: lab.request_payout(owner, 501, key=f"turn {turn}")),
            insist(lambda id=opened.id: decide(lab.pool, lab.operator, id, S.UPHELD)),
        ]
        outcomes = await together(*(acts if turn % 2 else acts[::-1]))
        assert [type(each) for each in outcomes if isinstance(each, ComputePoolError)] == (
            [] if turn == 0 else [InsufficientCredits]
        )
    assert await lab.get_balance(K.OWNER_PENDING, owner) == 0
    await check_position(lab, owner, earned=800 * CREDIT, paid_out=0, in_flight=501 * CREDIT)


ENDS = ["approved", "sent", "confirmed", "failed", "returned", "unknown"]


@pytest.mark.parametrize("end", ENDS)
async def test_pay_is_taken_back_while_its_payout_is_at_every_stage(lab, provider, end):
    owner = await lab.make_owner(800)
    [fraud] = lab.earnings
    id = await lab.approve(owner, 600)
    if end != "approved":
        await lab.send_all()
    if end == "confirmed":
        await provider.tell(provider.confirm(id))
    await lab.reverse(fraud)
    # 200 were free; 600 are on their way or gone, and owed.
    assert await lab.get_balance(K.RECEIVABLE, owner) == -600 * CREDIT
    if end == "approved":
        assert await lab.send_all() == 0, "nothing is sent to somebody who owes"
        await check_position(lab, owner, earned=0, paid_out=0, in_flight=600 * CREDIT)
        return
    words = {"sent": [], "confirmed": [], "unknown": []}
    words |= {"failed": [provider.fail], "returned": [provider.confirm, provider.send_back]}
    for word in words[end]:
        await provider.tell(word(id))
    if end == "unknown":
        await lab.execute("UPDATE payouts SET state = 'unknown' WHERE id = $1", id)
        await lab.reconcile()
    in_flight = 600 * CREDIT if end in ("sent", "unknown") else 0
    paid_out = 600 * CREDIT if end == "confirmed" else 0
    await check_position(lab, owner, earned=0, paid_out=paid_out, in_flight=in_flight)
    # What came back pays the debt; what was paid out stays owed.
    owed = await cash.collect_debt(lab.pool, owner.account_id)
    assert owed == (0 if end in ("failed", "returned") else 600 * CREDIT)
    await lab.check_books()


@pytest.mark.parametrize("seed", range(3))
async def test_a_storm_of_payouts_reversals_disputes_and_words_of_the_provider_leaves_exact_books(
    lab, provider, seed
):
    """Everything at once: asked for, approved, sent, confirmed, failed, sent back, taken back, doubted, decided."""
    chance = random.Random(seed)
    lab.terms = replace(lab.terms, payout_count_per_day_max=100, payout_microcredits_per_day_max=10**15)
    owner, submitter = await lab.sign_up(), await lab.sign_up()
    await lab.top_up(submitter, 20_000)
    await lab.set_details(owner)
    earned = [await lab.earn(owner, submitter, 500 + chance.randrange(200)) for _ in range(8)]
    frauds = set(chance.sample(earned, 4))

    async def cash_out(credits: int) -> None:
        payout = await insist(lambda: lab.request_payout(owner, credits))
        await asyncio.sleep(chance.random() * 0.02)
        await insist(lambda: payouts.approve_payout(lab.pool, lab.operator, payout.id))
        if await insist(lambda: payouts.send_payout(lab.pool, lab.providers.get(PAY), payout.id)):
            end = chance.choice([[provider.confirm], [provider.fail], [provider.confirm, provider.send_back], []])
            for word in end:
                await provider.tell(word(payout.id))

    async def take_back(attempt_id: Any) -> None:
        await asyncio.sleep(chance.random() * 0.05)
        await together(*(insist(lambda: lab.reverse(attempt_id)) for _ in range(2)))

    async def collect() -> None:
        for _ in range(4):
            await insist(lambda: cash.collect_debt(lab.pool, owner.account_id))

    acts = [cash_out(500 + 10 * n) for n in range(6)] + [take_back(id) for id in frauds] + [collect()]
    chance.shuffle(acts)
    outcomes = await together(*acts)
    refusals = {type(each) for each in outcomes if isinstance(each, ComputePoolError)}
    assert refusals <= {InsufficientCredits, AccountOwes}
    rows = await lab.fetch("SELECT state::text AS state, amount_microcredits AS amount FROM payouts")
    paid_out = sum(row["amount"] for row in rows if row["state"] == PayoutState.CONFIRMED)
    in_flight = sum(row["amount"] for row in rows if row["state"] in ("reserved", "approved", "sent", "unknown"))
    honest = await lab.fetch_value(
        "SELECT sum(charged_microcredits - fee_microcredits)::bigint FROM attempts WHERE earning_state = 'released'"
    )
    assert await lab.fetch_value("SELECT count(*) FROM attempts WHERE earning_state = 'reversed'") == 4
    await check_position(lab, owner, earned=honest, paid_out=paid_out, in_flight=in_flight)


# Planted bugs: each of them leaves something that the checks above would have found


async def test_control_a_dispute_that_does_not_lock_the_pay_is_caught(pool):
    submitter, [owner] = await make_people(pool)
    pay = await earn(pool, owner, submitter, 100)
    sound = load_queries("credits").lock_earning.sql
    planted = sound.replace(" FOR NO KEY UPDATE OF a", "")
    assert planted != sound, "the guard to take out is not there any more"
    has_read, is_released = asyncio.Event(), asyncio.Event()

    async def read_unlocked(conn: Any, attempt_id: Any) -> Any:
        row = await conn.fetchrow(planted, attempt_id)
        has_read.set()
        await is_released.wait()
        return credit_store._read_earning(row)

    with patch.object(credit_store, "lock_earning", read_unlocked):
        doubting = asyncio.create_task(doubt(pool, submitter, pay))
        await has_read.wait()
        await releases.release_due(pool, limit=10)
        is_released.set()
        await doubting
    assert await find_faults(pool) != []


async def test_control_a_release_that_does_not_look_for_disputes_is_caught(pool):
    submitter, [owner] = await make_people(pool)
    pay = await earn(pool, owner, submitter, 100)
    await doubt(pool, submitter, pay)
    sound = load_queries("credits").take_due.sql
    planted = sound.replace("a.earning_state = 'pending'", "a.earning_state IN ('pending', 'disputed')")
    assert planted != sound, "the guard to take out is not there any more"

    async def take_all(conn: Any, *, now: Any, limit: int) -> Any:
        due = [credit_store._read_due(row) for row in await conn.fetch(planted, now, limit)]
        return [replace(one, earning=replace(one.earning, state=EarningState.PENDING)) for one in due]

    with patch.object(credit_store, "take_due", take_all):
        await releases.release_due(pool, limit=10)
    assert await find_faults(pool) != []


_reverse = verbs.reverse


def keep_the_fee(**given: Any) -> Any:
    made = _reverse(**given)
    return replace(made, legs=tuple(leg for leg in made.legs if leg.source.owner_id is not None))


def take_from_pending(**given: Any) -> Any:
    return _reverse(**{**given, "earning": replace(given["earning"], state=EarningState.PENDING)})


def take_it_all_from_what_is_free(**given: Any) -> Any:
    return _reverse(**{**given, "earning": replace(given["earning"], state=EarningState.RELEASED)})


def give_half_back(**given: Any) -> Any:
    earning = given["earning"]
    return _reverse(**{**given, "earning": replace(earning, owner_microcredits=earning.owner_microcredits // 2)})


@pytest.mark.parametrize("bug", [keep_the_fee, take_from_pending, take_it_all_from_what_is_free, give_half_back])
async def test_control_a_reversal_that_moves_something_else_is_caught(pool, operator, bug):
    submitter, [owner] = await make_people(pool)
    released = await earn(pool, owner, submitter, 1_000)
    await releases.release_due(pool, limit=10)
    pending = await earn(pool, owner, submitter, 1_000, 1_000, **LATER)
    with patch.object(verbs, "reverse", bug):
        await reverse(pool, operator, pending if bug is take_it_all_from_what_is_free else released)
    assert await find_faults(pool) != []


async def test_control_a_reversal_that_forgets_itself_and_its_key_is_caught(pool, operator):
    submitter, [owner] = await make_people(pool)
    pay = await earn(pool, owner, submitter, 1_000, 1_000, **LATER)

    def under_a_new_key(**given: Any) -> Any:
        return replace(_reverse(**given), key=f"{entropy.new_id()}/reverse")

    async def forget(*_: Any, **__: Any) -> None:
        """The row stays as it was."""

    with (
        patch.object(verbs, "reverse", under_a_new_key),
        patch.object(credit_store, "change_earnings", forget),
        patch.object(store, "decide_dispute", forget),
        patch.object(store, "insert_disputes", forget),
        patch.object(disputes, "_get", forget),
    ):
        for _ in range(2):
            await reverse(pool, operator, pay)
    assert await get_balance(pool, submitter_available(submitter)) == RICH, "both pays went back for one"
    assert await find_faults(pool) != []


async def test_control_a_decision_that_does_not_look_again_under_the_lock_is_caught(pool, operator):
    submitter, [owner] = await make_people(pool)
    pay = await earn(pool, owner, submitter, 1_000, **LATER)
    opened = await doubt(pool, submitter, pay)

    async def recall(conn: Any, id: Any) -> Any:
        """The planted bug: what was read before somebody else decided."""
        return opened

    with patch.object(disputes, "_get", recall):
        await decide(pool, operator, opened.id, S.UPHELD)
        # The pay is not in dispute any more, and the rules say so.
        with pytest.raises(AssertionError, match="is reversed"):
            await decide(pool, operator, opened.id, S.DISMISSED)


async def test_control_a_limit_that_is_not_counted_under_a_lock_is_passed(pool):
    submitter, [owner] = await make_people(pool)
    pay = await earn(pool, owner, submitter, 100, 100, **LATER)
    count_open, have_counted = store.count_open, asyncio.Barrier(2)

    async def count(conn: Any, submitter_id: Any) -> int:
        found = await count_open(conn, submitter_id)
        await have_counted.wait()
        return found

    async def lock_nothing(conn: Any, id: Any) -> None:
        """The planted bug."""

    with (
        patch.object(rules, "OPEN_MAX", 1),
        patch.object(store, "count_open", count),
        patch.object(payment_store, "lock_account", lock_nothing),
    ):
        await together(doubt(pool, submitter, pay, 0), doubt(pool, submitter, pay, 1))
    assert await list_states(pool, pay) == ["disputed", "disputed"]
