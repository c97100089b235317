"""Seats are slices: held, leased, delivered, metered and paid like others, and given out by nobody but their run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from computepool.core.errors import StaleLease
from computepool.core.ids import AccountId, AttemptId, NodeId
from computepool.core.jobs.cause import Cause
from computepool.core.ledger.accounts import owner_pending, submitter_available, submitter_held
from computepool.core.ledger.charging import LeaseTerms
from computepool.core.ledger.explain import PayMark, UnpaidReason, explain_pay
from computepool.core.ledger.period import Period
from computepool.core.ledger.refusal import InsufficientCredits
from computepool.core.networks.detection import PROBE_SECONDS
from computepool.core.networks.run import LeaveAnnounced, RunState, SendDrop, SendRun, SessionClosed, seat_id
from computepool.hub.services import runs as run_service
from computepool.hub.services.attempts import reap_leases
from computepool.hub.services.jobs import cancel_job
from computepool.hub.services.owners import Heard
from computepool.hub.services.seats import get_seat
from computepool.hub.store import attempts as attempt_store
from computepool.hub.store import ledger
from computepool.hub.store import pay as pay_store
from computepool.hub.store import statements as statement_store
from computepool.hub.store.attempts import Grant
from computepool.wire.attempts import RunOrder, Usage
from tests.support.builders import NOW
from tests.support.run_lab import OwnerAtWork, RunLab, open_run_lab

CREDIT = 1_000_000
FIRST, SECOND = seat_id(0), seat_id(1)


@pytest.fixture
async def lab(dsn: str, tmp_path: Path) -> AsyncIterator[RunLab]:
    async with open_run_lab(dsn, tmp_path) as lab:
        yield lab
        async with lab.spine.pool.acquire() as conn:
            assert await ledger.list_drifts(conn) == []
        assert await lab.spine.fetch("SELECT id FROM jobs WHERE finished_at IS NOT NULL AND held_remaining > 0") == []


async def balances(lab: RunLab, account_id: AccountId) -> tuple[float, ...]:
    """Available, held, and earned but held back; in credits."""
    accounts = [submitter_available(account_id), submitter_held(account_id), owner_pending(account_id)]
    async with lab.spine.pool.acquire() as conn:
        found = await ledger.get_balances(conn, accounts)
    return tuple(found[account] / CREDIT for account in accounts)


async def set_going(lab: RunLab, *, pnodes: int = 3, credits: int = 10_000, **options: Any):
    by = await lab.spine.sign_up(credits=credits)
    owners = [await lab.spine.sign_up(credits=1) for _ in range(pnodes)]
    nodes = {}
    for owner in owners:
        node = await lab.enrol_pnode(owner=owner)
        nodes[node.id] = (node, owner)
    view = await lab.start(by, **options)
    at = lab.open_owner()
    await at.look()
    await lab.set_going(at, view.row.id)
    return by, nodes, view.row.id, at


async def owner_of(lab: RunLab, nodes: dict[NodeId, Any], at: OwnerAtWork, run_id, seat) -> AccountId:
    return nodes[at.run(run_id).seats[seat].node_id][1].account_id


async def close(at: OwnerAtWork, run_id, seat) -> None:
    attempt_id = at.run(run_id).seats[seat].attempt_id
    at.post.open.discard(attempt_id)
    await at.owner.hear(run_id, Heard(SessionClosed(seat, attempt_id)))


def is_near(credits: float, expected: float) -> bool:
    """A test machine may take some seconds over what is here told as if it took none; a seat costs one a second."""
    return expected <= credits <= expected + 40


def to_grant(lab: RunLab, at: OwnerAtWork, run_id, seat) -> Grant:
    found = at.run(run_id).seats[seat]
    return Grant(found.attempt_id, None, None, 0, 1, found.node_id, "cpu:0", 0.0, 0, LeaseTerms(0, 0))  # type: ignore[arg-type]


# Held


async def test_a_run_holds_ceiling_times_seats_times_hours(lab):
    by = await lab.spine.sign_up(credits=100_000)
    view = await lab.start(by, seats=2, hours_max=3)
    assert await balances(lab, by.account_id) == (100_000 - 2 * 3 * 3_600, 2 * 3 * 3_600, 0)
    [job] = await lab.spine.fetch("SELECT * FROM jobs")
    assert (job["run_id"], job["slice_count"], job["wall_seconds"]) == (view.row.id, 2, 3 * 3_600)


async def test_a_run_that_the_account_cannot_pay_leaves_nothing_behind(lab):
    by = await lab.spine.sign_up(credits=7_199)
    with pytest.raises(InsufficientCredits, match=r"up to 7,200 credits.*You have 7,199"):
        await lab.start(by, seats=2, hours_max=1)
    assert await lab.spine.fetch_value("SELECT count(*) FROM runs") == 0
    assert await lab.spine.fetch_value("SELECT count(*) FROM jobs") == 0


# Given out by their run, and by nobody else


async def test_no_round_ever_gives_a_seat_out(lab):
    by = await lab.spine.sign_up(credits=10_000)
    node = await lab.enrol_pnode()
    await lab.start(by, seats=1)
    assert await lab.spine.grant(node) == []
    # The same node takes an ordinary slice of the same account.
    await lab.spine.submit(by=by)
    [grant] = await lab.spine.grant(node)
    assert await lab.spine.fetch_value("SELECT run_id FROM jobs WHERE id = $1", grant.job_id) is None


async def test_control_a_shape_that_slots_pass_would_be_given_out(lab):
    by = await lab.spine.sign_up(credits=10_000)
    node = await lab.enrol_pnode()
    await lab.start(by, seats=1)
    await lab.spine.fetch("UPDATE shapes SET tiers = '{}', gpu = false")
    assert len(await lab.spine.grant(node)) == 1


async def test_a_slot_that_is_taken_is_never_taken_twice(lab):
    """A round and a run reach for one slot: the unique index lets one of them have it."""
    by = await lab.spine.sign_up(credits=10_000)
    node = await lab.enrol_pnode()
    await lab.start(by, seats=1)
    await lab.spine.submit(by=by)
    at = lab.open_owner()
    await asyncio.gather(at.look(), lab.spine.grant(node))
    live = await lab.spine.fetch_value("SELECT count(*) FROM attempts WHERE state IN ('leased', 'running')")
    assert live == 1


async def test_the_lease_is_delivered_as_one_whose_delivery_was_lost_and_its_order_says_host(lab):
    by = await lab.spine.sign_up(credits=10_000)
    node = await lab.enrol_pnode()
    view = await lab.start(by, seats=1)
    at = lab.open_owner()
    await at.look()
    changes = await lab.spine.fetch("SELECT subject_id FROM hub_changes WHERE kind = 'lease'")
    assert [row["subject_id"] for row in changes] == [node.id]
    async with lab.spine.pool.acquire() as conn:
        [attempt] = await attempt_store.list_live_by_nodes(conn, [node.id])
    answer = await lab.spine.leases.answer([attempt])
    order = msgspec.json.decode(answer.assignments[0].order, type=RunOrder)
    assert (order.host.run_id, order.host.seat) == (view.row.id, FIRST)
    ordinary = await lab.spine.submit(by=by)
    other = await lab.enrol_pnode()
    grant = await lab.spine.grant_one(other)
    assert grant.job_id == ordinary.id
    answer = await lab.spine.leases.answer([grant])
    assert b"host" not in answer.assignments[0].order.encode()


# Paid


async def test_a_host_of_long_service_has_its_terms_for_a_seat_too(lab):
    by = await lab.spine.sign_up(credits=10_000)
    veteran, newcomer = await lab.enrol_pnode(), await lab.enrol_pnode()
    await lab.spine.fetch(
        "INSERT INTO node_trust (node_id, serving_since) VALUES ($1, clock_timestamp() - interval '180 days')",
        veteran.id,
    )
    await lab.start(by, seats=2)
    await lab.open_owner().look()
    rows = await lab.spine.fetch("SELECT node_id, fee_ppm FROM attempts")
    assert {row["node_id"]: row["fee_ppm"] for row in rows} == {veteran.id: 150_000, newcomer.id: 200_000}


async def test_hosts_are_paid_to_the_end_of_the_run_and_the_rest_goes_back(lab):
    by, nodes, run_id, at = await set_going(lab)
    await lab.turn_back(run_id, 1_000.0)
    await lab.step(at, run_id, *range(1, 41))
    await lab.store(at, run_id, 40)
    paid = [await balances(lab, owner.account_id) for _, owner in nodes.values()]
    spare, *earned = sorted(pending for _, _, pending in paid)
    # A fifth is the platform's.
    assert spare == 0
    assert all(is_near(each, 800) for each in earned)
    available, held, _ = await balances(lab, by.account_id)
    assert held == 0
    assert 10_000 - available == pytest.approx(sum(earned) / 0.8)
    kinds = await lab.spine.fetch("SELECT DISTINCT kind::text FROM ledger_transfers WHERE job_id IS NOT NULL")
    assert {row["kind"] for row in kinds} == {"hold", "settle", "refund"}


async def test_a_lost_host_is_paid_to_the_last_complete_checkpoint_and_no_further(lab):
    by, nodes, run_id, at = await set_going(lab)
    lost_owner = await owner_of(lab, nodes, at, run_id, SECOND)
    await lab.step(at, run_id, *range(1, 16))
    await lab.turn_back(run_id, 100.0)
    await lab.store(at, run_id, 10)
    await lab.turn_back(run_id, 500.0)
    await lab.store(at, run_id, 15, ["a"])
    await close(at, run_id, SECOND)
    await at.wait(PROBE_SECONDS)
    earned = (await balances(lab, lost_owner))[2]
    assert is_near(earned, 80)
    # Nothing more is held: the seat's next PNode is paid out of the same hours.
    available, held, _ = await balances(lab, by.account_id)
    assert available == 10_000 - 7_200
    assert held == pytest.approx(7_200 - earned / 0.8)
    await lab.set_going(at, run_id)
    await lab.turn_back(run_id, 50.0)
    await lab.step(at, run_id, *range(11, 41))
    await lab.store(at, run_id, 40)
    assert (await balances(lab, lost_owner))[2] == earned


async def test_a_host_whose_lease_runs_out_is_paid_the_same_and_nothing_for_a_late_word(lab):
    _, nodes, run_id, at = await set_going(lab)
    lost_owner = await owner_of(lab, nodes, at, run_id, SECOND)
    grant = to_grant(lab, at, run_id, SECOND)
    node = nodes[grant.node_id][0]
    await lab.step(at, run_id, *range(1, 11))
    await lab.turn_back(run_id, 100.0)
    await lab.store(at, run_id, 10)
    await lab.spine.let_lease_pass(grant)
    await reap_leases(lab.spine.pool, grace_seconds=0.0, limit=10)
    earned = (await balances(lab, lost_owner))[2]
    assert is_near(earned, 80)
    late = lab.spine.completion(node, grant, usage=Usage(run_seconds=90.0), exit_code=1, cause=Cause.EXIT_CODE)
    await lab.spine.finish((node, late))
    assert (await balances(lab, lost_owner))[2] == earned
    await at.look()
    assert at.run(run_id).epoch == 2


async def test_control_a_seat_that_was_not_marked_is_paid_nothing_when_it_is_lost(lab):
    """What the mark is for: an ordinary attempt that is lost may yet deliver, and is paid if it does."""
    _, nodes, run_id, at = await set_going(lab)
    lost_owner = await owner_of(lab, nodes, at, run_id, SECOND)
    grant = to_grant(lab, at, run_id, SECOND)
    await lab.turn_back(run_id, 100.0)
    await lab.spine.fetch("UPDATE attempts SET checkpoint_seconds = NULL WHERE id = $1", grant.id)
    await lab.spine.let_lease_pass(grant)
    await reap_leases(lab.spine.pool, grace_seconds=0.0, limit=10)
    assert (await balances(lab, lost_owner))[2] == 0


async def test_a_host_that_says_it_is_done_before_its_run_is_has_left(lab):
    """Otherwise whoever likes could end other people's runs, and be paid for it."""
    _, nodes, run_id, at = await set_going(lab)
    grant = to_grant(lab, at, run_id, SECOND)
    node = nodes[grant.node_id][0]
    await lab.turn_back(run_id, 100.0)
    answer = await lab.spine.succeed(node, grant, usage=Usage(run_seconds=100.0))
    assert not isinstance(answer, Exception)
    assert answer.accepted is False
    [row] = await lab.spine.fetch("SELECT state::text, cause::text FROM attempts WHERE id = $1", grant.id)
    assert tuple(row) == ("failed", "owner_returned")
    assert (await balances(lab, nodes[grant.node_id][1].account_id))[2] == 0
    await at.look()
    await lab.set_going(at, run_id)
    assert at.run(run_id).state is RunState.RUNNING


async def test_an_owner_who_comes_back_is_paid_to_the_step_that_was_stored_for_it(lab):
    _, nodes, run_id, at = await set_going(lab)
    owner = await owner_of(lab, nodes, at, run_id, SECOND)
    await lab.step(at, run_id, *range(1, 6))
    await lab.turn_back(run_id, 200.0)
    attempt_id = at.run(run_id).seats[SECOND].attempt_id
    await at.owner.hear(run_id, Heard(LeaveAnnounced(SECOND, attempt_id)))
    until = at.post.list(SendRun)[-1].until_step
    await lab.step(at, run_id, *range(6, until + 1))
    await lab.store(at, run_id, until)
    assert is_near((await balances(lab, owner))[2], 160)
    [row] = await lab.spine.fetch("SELECT state::text, cause::text FROM attempts WHERE id = $1", attempt_id)
    assert tuple(row) == ("cancelled", "owner_returned")
    with pytest.raises(StaleLease):
        await get_seat(lab.spine.pool, attempt_id)


async def test_what_was_set_aside_is_never_passed_however_many_pnodes_fill_a_seat(lab):
    """Each is paid for whole seconds of its own time, and their times do not overlap."""
    by, _, run_id, at = await set_going(lab, pnodes=12, seats=1)
    for number in range(10):
        await lab.turn_back(run_id, 300.0)
        await lab.step(at, run_id, number + 1)
        await lab.store(at, run_id, number + 1)
        await close(at, run_id, FIRST)
        await at.wait(PROBE_SECONDS)
        await lab.set_going(at, run_id)
    available, held, _ = await balances(lab, by.account_id)
    assert available == 10_000 - 3_600
    assert 3_000 <= 3_600 - held <= 3_600
    # What comes after the last checkpoint is nobody's.
    await lab.turn_back(run_id, 100.0)
    await cancel_job(lab.spine.pool, by, (await lab.row(run_id))["job_id"])
    assert await balances(lab, by.account_id) == (available + held, 0, 0)


async def test_a_stopped_run_pays_its_hosts_and_returns_the_rest(lab):
    by, _, run_id, at = await set_going(lab)
    await lab.turn_back(run_id, 300.0)
    await lab.step(at, run_id, 1)
    await run_service.stop_run(lab.spine.pool, by, run_id)
    await at.look()
    await at.wait(31.0)
    assert (await lab.row(run_id))["state"] == "stopped"
    available, held, _ = await balances(lab, by.account_id)
    assert held == 0
    assert 600 <= 10_000 - available <= 680
    assert {order.seat for order in at.post.list(SendDrop)} == {FIRST, SECOND}


async def test_a_cancelled_job_pays_its_hosts_to_the_checkpoint(lab):
    by, _, run_id, at = await set_going(lab)
    await lab.step(at, run_id, *range(1, 11))
    await lab.turn_back(run_id, 100.0)
    await lab.store(at, run_id, 10)
    await lab.turn_back(run_id, 400.0)
    await cancel_job(lab.spine.pool, by, (await lab.row(run_id))["job_id"])
    available, held, _ = await balances(lab, by.account_id)
    assert held == 0
    assert 200 <= 10_000 - available <= 280


async def test_ones_own_pnodes_cost_nothing(lab):
    by = await lab.spine.sign_up(credits=10_000)
    for _ in range(2):
        await lab.enrol_pnode(owner=by)
    view = await lab.start(by)
    at = lab.open_owner()
    await at.look()
    await lab.set_going(at, view.row.id)
    await lab.turn_back(view.row.id, 100.0)
    await lab.step(at, view.row.id, *range(1, 41))
    await lab.store(at, view.row.id, 40)
    assert await balances(lab, by.account_id) == (10_000, 0, 0)


# Statements


async def test_statements_and_pay_explain_what_seats_were_paid(lab):
    by, nodes, run_id, at = await set_going(lab)
    job_id = (await lab.row(run_id))["job_id"]
    lost = at.run(run_id).seats[SECOND]
    await lab.step(at, run_id, *range(1, 41))
    await lab.turn_back(run_id, 100.0)
    await lab.store(at, run_id, 10)
    await lab.turn_back(run_id, 400.0)
    await close(at, run_id, SECOND)
    await at.wait(PROBE_SECONDS)
    await lab.set_going(at, run_id)
    await close(at, run_id, SECOND)
    await at.wait(PROBE_SECONDS)
    await lab.set_going(at, run_id)
    await lab.step(at, run_id, *range(11, 41))
    await lab.store(at, run_id, 40)
    async with lab.spine.pool.acquire() as conn:
        charges = await statement_store.list_job_charges(conn, job_id, after=(-1, -1), limit=100)
        routes = await statement_store.list_job_routes(conn, job_id)
        period = Period(NOW.replace(year=2020), NOW.replace(year=2099))
        lines = await statement_store.list_account_lines(conn, by.account_id, period, after_id=0, limit=100)
        paid = [
            each
            for node_id in nodes
            for each in await pay_store.list_pay(
                conn, node_id=node_id, until=period.until, after=(period.since, AttemptId(lost.attempt_id)), limit=100
            )
        ]
    charged = {line.id: line.charged_microcredits / CREDIT for line in charges}
    assert is_near(charged[lost.attempt_id], 100)
    assert sum(charged.values()) == sum(line.amount for line in lines if line.kind.value == "settle") / CREDIT
    assert {route.kind.value for route in routes} == {"hold", "settle", "refund"}
    told = {each.id: explain_pay(each.facts) for each in paid}
    assert {each.mark for each in told.values()} <= {PayMark.PAID, PayMark.UNPAID}
    assert told[lost.attempt_id].due_microcredits == charged[lost.attempt_id] * CREDIT
    unpaid = [each for each in told.values() if each.mark is PayMark.UNPAID]
    assert {each.reason for each in unpaid} == {UnpaidReason.NO_CHECKPOINT}
