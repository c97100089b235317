"""Runs on a real database: placed, lost, taken over, stopped and resumed, by the services that a hub uses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import patch

import asyncpg
import pytest

from computepool.core.errors import Conflict, IdempotencyMismatch, InvalidRequest, NotFound
from computepool.core.networks.detection import PROBE_SECONDS
from computepool.core.networks.errors import DataRefused, NoPlacement, RunElsewhere
from computepool.core.networks.run import (
    FaultReported,
    RunState,
    SendDrop,
    SendRun,
    SessionClosed,
    Ticked,
    seat_id,
)
from computepool.core.networks.spec import Exactness
from computepool.hub.services import runs as run_service
from computepool.hub.services.attempts import reap_leases
from computepool.hub.services.jobs import cancel_job
from computepool.hub.services.owners import Heard, PrepareOrder
from computepool.hub.services.runs import DataRef
from computepool.hub.services.why import explain_job
from computepool.hub.store import runs as run_store
from tests.support.networks import make_mlp
from tests.support.postgres import wait_for
from tests.support.run_lab import OwnerAtWork, RunLab, bits_of, open_run_lab, prepares

FIRST, SECOND = seat_id(0), seat_id(1)


@pytest.fixture
async def lab(dsn: str, tmp_path: Path) -> AsyncIterator[RunLab]:
    async with open_run_lab(dsn, tmp_path) as lab:
        yield lab


async def close(at: OwnerAtWork, run_id, seat) -> None:
    attempt_id = at.run(run_id).seats[seat].attempt_id
    at.post.open.discard(attempt_id)
    await at.owner.hear(run_id, Heard(SessionClosed(seat, attempt_id)))


async def die(lab: RunLab, at: OwnerAtWork, run_id, seat) -> None:
    """Its machine is gone, and not heard again."""
    node_id = at.run(run_id).seats[seat].node_id
    await lab.spine.fetch("UPDATE nodes SET last_seen_at = now() - interval '1 hour' WHERE id = $1", node_id)
    await close(at, run_id, seat)


async def set_going(lab: RunLab, *, pnodes: int = 3, **options):
    """A run of two seats that is at work, its owner, and who started it."""
    by = await lab.spine.sign_up(credits=100_000)
    nodes = [await lab.enrol_pnode() for _ in range(pnodes)]
    view = await lab.start(by, **options)
    at = lab.open_owner()
    await at.look()
    await lab.set_going(at, view.row.id)
    assert at.run(view.row.id).state is RunState.RUNNING
    return by, nodes, view.row.id, at


# From start to end


async def test_a_run_is_placed_on_pnodes_and_its_hosts_are_told_one_placement(lab):
    by = await lab.spine.sign_up(credits=100_000)
    nodes = [await lab.enrol_pnode() for _ in range(2)]
    view = await lab.start(by)
    assert view.row.state is RunState.PLACING
    at = lab.open_owner()
    await at.look()
    run = at.run(view.row.id)
    assert {seat.node_id for seat in run.seats.values()} == {node.id for node in nodes}
    await lab.join(at, view.row.id)
    first, second = prepares(at, epoch=1)
    assert first.locations == second.locations
    assert {each.vnode_id for each in first.locations} == {"a", "b", "head", "loss"}
    assert first.checkpoint_step == 0
    await lab.prepare(at, view.row.id)
    assert {(order.from_step, order.until_step) for order in at.post.list(SendRun)} == {(0, 40)}
    row = await lab.row(view.row.id)
    assert (row["state"], row["epoch"], row["owner_id"]) == ("running", 1, at.owner.owner_id)


async def test_a_run_ends_with_its_curve_its_checkpoints_and_its_job(lab):
    by, _, run_id, at = await set_going(lab)
    await lab.step(at, run_id, *range(1, 41))
    for step in (10, 20, 30, 40):
        await lab.store(at, run_id, step)
    row = await lab.row(run_id)
    assert (row["state"], row["checkpoint_step"], row["owner_id"]) == ("succeeded", 40, None)
    async with lab.spine.pool.acquire() as conn:
        metrics = await run_store.list_metrics(conn, run_id, after=0, limit=100)
    assert [(m.step, m.loss_bits) for m in metrics] == [(n, bits_of(1.0 / n)) for n in range(1, 41)]
    assert len(at.post.list(SendDrop)) == 2
    assert await lab.spine.fetch_value("SELECT state::text FROM jobs WHERE run_id = $1", run_id) == "succeeded"
    lines, state = await run_service.read_feed(lab.spine.pool, by, run_id, after=0)
    assert state is RunState.SUCCEEDED
    assert [line.id for line in lines] == sorted({line.id for line in lines})
    assert [line.step for line in lines if line.kind == "step"] == list(range(1, 41))
    assert lines[-1].message == "succeeded"


async def test_the_newest_three_complete_checkpoints_are_kept_and_the_rest_is_freed(lab):
    by, _, run_id, at = await set_going(lab)
    await lab.step(at, run_id, *range(1, 40))
    stored = await lab.spine.fetch_value("SELECT stored_bytes FROM accounts WHERE id = $1", by.account_id)
    shas = {}
    for step in (5, 10, 15, 20, 25):
        await lab.store(at, run_id, step)
        parts = await lab.spine.fetch(
            "SELECT sha256 FROM run_checkpoint_parts WHERE run_id = $1 AND step = $2", run_id, step
        )
        shas[step] = [part["sha256"].hex() for part in parts]
    await asyncio.gather(*at.owner._chores)
    found = await run_service.list_checkpoints(lab.spine.pool, by, run_id)
    assert [(each.step, each.complete_at is not None) for each in found] == [(25, True), (20, True), (15, True)]
    assert not any(lab.blobs.has(sha) for step in (5, 10) for sha in shas[step])
    assert all(lab.blobs.has(sha) for step in (15, 20, 25) for sha in shas[step])
    kept = await lab.spine.fetch_value("SELECT sum(size_bytes) FROM run_blobs WHERE run_id = $1", run_id)
    after = await lab.spine.fetch_value("SELECT stored_bytes FROM accounts WHERE id = $1", by.account_id)
    assert after - stored == kept


async def test_a_content_that_another_run_needs_is_not_freed_with_this_one(lab):
    """Exact runs of the same network store the same bytes."""
    _, _, run_id, at = await set_going(lab, pnodes=4)
    by = await lab.spine.sign_up(credits=100_000)
    other = (await lab.start(by)).row.id
    await at.look()
    await lab.set_going(at, other)
    await lab.step(at, run_id, *range(1, 40))
    attempt = at.run(other).seats[FIRST].attempt_id
    content = f"{run_id} a 5".encode()
    part = await lab.put_part(attempt, other, "a", 5, 1, content)
    for step in (5, 10, 15, 20):
        await lab.store(at, run_id, step)
    await asyncio.gather(*at.owner._chores)
    assert lab.blobs.has(part.sha256.hex())


async def test_the_same_key_starts_one_run_and_another_request_under_it_is_refused(lab):
    by = await lab.spine.sign_up(credits=10_000)
    network = await lab.create(by)
    first = await lab.start(by, network, key="k")
    # What the first one holds would not be there for a second.
    assert (await lab.start(by, network, key="k")).row.id == first.row.id
    with pytest.raises(IdempotencyMismatch):
        await lab.start(by, network, key="k", steps=41)
    assert await lab.spine.fetch_value("SELECT count(*) FROM runs") == 1


# Loss


async def test_a_lost_host_is_replaced_and_everybody_goes_back_to_the_last_complete_checkpoint(lab):
    _, _, run_id, at = await set_going(lab)
    await lab.step(at, run_id, *range(1, 16))
    await lab.store(at, run_id, 10)
    await lab.store(at, run_id, 15, ["a"])
    before = {each.vnode_id: each for each in at.run(run_id).locations}
    lost_node = at.run(run_id).seats[SECOND].node_id
    await close(at, run_id, SECOND)
    await at.wait(PROBE_SECONDS)
    run = at.run(run_id)
    assert run.epoch == 2
    assert run.seats[SECOND].node_id not in (None, lost_node)
    await lab.join(at, run_id)
    orders = prepares(at, epoch=2)
    assert [order.checkpoint_step for order in orders] == [10, 10]
    assert {part.vnode_id for order in orders for part in order.parts} == {"a", "b", "head", "loss"}
    after = {each.vnode_id: each for each in at.run(run_id).locations}
    moved = {vnode_id for vnode_id in after if after[vnode_id].incarnation > before[vnode_id].incarnation}
    assert moved == {vnode_id for vnode_id, each in before.items() if each.seat == SECOND}
    await lab.prepare(at, run_id)
    assert {order.from_step for order in at.post.list(SendRun) if order.epoch == 2} == {10}
    stored = await lab.spine.fetch("SELECT vnode_id, seat, incarnation FROM placements WHERE run_id = $1", run_id)
    assert {(row["vnode_id"], row["incarnation"]) for row in stored} == {
        (each.vnode_id, each.incarnation) for each in after.values()
    }


async def test_an_attempt_that_the_ordinary_machinery_ends_is_noticed(lab):
    _, _, run_id, at = await set_going(lab)
    attempt_id = at.run(run_id).seats[FIRST].attempt_id
    await lab.spine.fetch("UPDATE attempts SET expires_at = now() - interval '1 hour' WHERE id = $1", attempt_id)
    await reap_leases(lab.spine.pool, grace_seconds=0.0, limit=10)
    await at.look()
    assert at.run(run_id).epoch == 2
    assert at.run(run_id).seats[FIRST].attempt_id not in (None, attempt_id)


async def test_many_losses_in_a_row_do_not_make_a_run_poisonous(lab):
    """A slice that takes machines down is given to no more of them; a seat is not to blame for its PNodes."""
    _, _, run_id, at = await set_going(lab, pnodes=8)
    for number in range(5):
        attempt_id = at.run(run_id).seats[FIRST].attempt_id
        await lab.spine.fetch("UPDATE attempts SET expires_at = now() - interval '1 hour' WHERE id = $1", attempt_id)
        assert await reap_leases(lab.spine.pool, grace_seconds=0.0, limit=10) == 1
        await at.look()
        await lab.set_going(at, run_id)
        await lab.step(at, run_id, number + 1)
        await lab.store(at, run_id, number + 1)
    assert at.run(run_id).state is RunState.RUNNING
    assert at.run(run_id).epoch == 6


async def test_without_a_spare_the_hosts_that_stay_take_over(lab):
    _, _, run_id, at = await set_going(lab, pnodes=2)
    await close(at, run_id, SECOND)
    await at.wait(PROBE_SECONDS)
    await lab.set_going(at, run_id)
    assert at.run(run_id).state is RunState.RUNNING
    assert {each.seat for each in at.run(run_id).locations} == {FIRST}


async def test_a_run_that_waits_says_for_what(lab):
    by = await lab.spine.sign_up(credits=100_000)
    view = await lab.start(by)
    at = lab.open_owner()
    await at.look()
    row = (await run_service.get_run(lab.spine.pool, by, view.row.id)).row
    assert row.state is RunState.PLACING
    assert "no PNode that hosts VNodes is online" in row.message
    small = await lab.enrol_pnode(memory_bytes=1_000)
    await at.look(seconds=1.0)
    message = (await run_service.get_run(lab.spine.pool, by, view.row.id)).row.message
    assert "VNode a needs" in message
    assert str(small.id) in message
    words = run_service.explain_run(await run_service.get_run(lab.spine.pool, by, view.row.id))
    assert any("2 of 2 seats have no PNode" in line for line in words)
    # Whoever asks about the job that pays for the seats hears the same.
    spine, job_id = lab.spine, view.row.job_id
    story = await explain_job(
        spine.pool, spine.settings, spine.book, spine.leases.prices, by, job_id, slice_index=None
    )
    assert story.waiting is not None
    assert "VNode a needs" in story.waiting.run_words


async def test_an_exact_run_waits_for_a_spare_of_its_class_and_another_says_from_where_it_is_not_exact(lab):
    by = await lab.spine.sign_up(credits=100_000)
    for _ in range(4):
        await lab.enrol_pnode(numeric_class="avx2", memory_bytes=30_000)
    at = lab.open_owner()
    runs = {}
    for exact in Exactness:
        network = await lab.create(by, make_mlp(exact=exact))
        runs[exact] = (await lab.start(by, network)).row.id
        await at.look()
        await lab.set_going(at, runs[exact])
        await lab.step(at, runs[exact], *range(1, 11))
        await lab.store(at, runs[exact], 10)
    await lab.enrol_pnode(numeric_class="avx512", memory_bytes=30_000)
    required, preferred = runs[Exactness.REQUIRED], runs[Exactness.PREFERRED]
    await die(lab, at, required, SECOND)
    await at.wait(PROBE_SECONDS)
    assert at.run(required).seats[SECOND].is_vacant
    assert "of numeric class avx2" in (await lab.row(required))["message"]
    await die(lab, at, preferred, SECOND)
    await at.wait(PROBE_SECONDS)
    assert at.run(preferred).seats[SECOND].numeric_class == "avx512"
    assert (await lab.row(preferred))["inexact_from_step"] == 11
    await lab.enrol_pnode(numeric_class="avx2", memory_bytes=30_000)
    await at.look(seconds=1.0)
    assert at.run(required).seats[SECOND].numeric_class == "avx2"
    assert (await lab.row(required))["inexact_from_step"] == 0


async def test_a_fault_of_the_network_ends_the_run_and_says_what_to_do(lab):
    by, _, run_id, at = await set_going(lab)
    seat = next(each.seat for each in at.run(run_id).locations if each.vnode_id == "loss")
    attempt_id = at.run(run_id).seats[seat].attempt_id
    fault = FaultReported(seat, attempt_id, 1, "loss", "loss_not_finite", "the loss of step 3 is nan")
    await at.owner.hear(run_id, Heard(fault))
    view = await run_service.get_run(lab.spine.pool, by, run_id)
    assert view.row.state is RunState.FAILED
    assert "VNode loss" in view.row.message
    assert "Lower optimizer.lr" in view.row.message
    assert await lab.spine.fetch_value("SELECT state::text FROM jobs WHERE run_id = $1", run_id) == "failed"


async def test_a_step_that_comes_to_other_bits_when_it_is_done_again_is_told(lab):
    by, _, run_id, at = await set_going(lab)
    await lab.step(at, run_id, 1, 2)
    await lab.spine.fetch("UPDATE run_metrics SET loss_bits = 7 WHERE run_id = $1 AND step = 2", run_id)
    await close(at, run_id, SECOND)
    await at.wait(PROBE_SECONDS)
    await lab.set_going(at, run_id)
    await lab.step(at, run_id, 1, 2)
    lines, _ = await run_service.read_feed(lab.spine.pool, by, run_id, after=0)
    assert [(line.step, line.kind.value) for line in lines if line.kind == "audit"] == [(2, "audit")]


# Owners


async def test_two_processes_that_look_at_once_claim_a_run_once(lab):
    by = await lab.spine.sign_up(credits=100_000)
    views = [await lab.start(by) for _ in range(3)]
    owners = [lab.open_owner() for _ in range(3)]
    await asyncio.gather(*(at.look() for at in owners))
    owned = [run_id for at in owners for run_id in at.owner.run_ids]
    assert sorted(owned) == sorted(view.row.id for view in views)
    assert {(await lab.row(run_id))["epoch"] for run_id in owned} == {1}


async def test_a_run_is_taken_over_when_its_owners_lease_has_run_out_and_not_before(lab):
    _, _, run_id, old = await set_going(lab)
    await lab.step(old, run_id, *range(1, 11))
    await lab.store(old, run_id, 10)
    new = lab.open_owner()
    await new.look()
    assert new.owner.run_ids == []
    await lab.let_owner_lease_pass(run_id)
    await new.look()
    assert new.owner.run_ids == [run_id]
    assert new.run(run_id).epoch == 2
    assert [seat.attempt_id for seat in new.run(run_id).taken_seats] == [
        seat.attempt_id for seat in old.run(run_id).taken_seats
    ]
    await lab.set_going(new, run_id)
    assert [order.checkpoint_step for order in prepares(new, epoch=2)] == [10, 10]
    assert new.run(run_id).state is RunState.RUNNING
    assert [each.incarnation for each in new.run(run_id).locations] == [1, 1, 1, 1]


async def test_an_owner_that_ends_hands_its_runs_over_at_once(lab):
    _, _, run_id, old = await set_going(lab)
    new = lab.open_owner()
    await old.owner.close()
    await new.look()
    assert new.owner.run_ids == [run_id]


async def overtake(lab: RunLab):
    """An owner that does not know that it was overtaken, and the one that overtook it."""
    _, _, run_id, old = await set_going(lab, pnodes=4)
    await lab.let_owner_lease_pass(run_id)
    new = lab.open_owner()
    await new.look()
    await lab.set_going(new, run_id)
    return run_id, old, new


def list_epochs(at: OwnerAtWork) -> set[int]:
    return {order.epoch for _, order in at.post.sent if isinstance(order, PrepareOrder | SendRun)}


async def test_an_owner_that_ignores_its_lost_lease_writes_nothing_and_gives_no_order(lab):
    run_id, old, new = await overtake(lab)
    before = dict(await lab.row(run_id))
    leases = await lab.spine.fetch_value("SELECT count(*) FROM attempts")
    sent = len(old.post.sent)
    # It hears of a loss before it has looked whether the run is still its own.
    await close(old, run_id, SECOND)
    old.now[0] += PROBE_SECONDS
    await old.owner.hear(run_id, Heard(Ticked()))
    assert old.owner.run_ids == []
    assert len(old.post.sent) == sent
    assert dict(await lab.row(run_id)) == before
    assert await lab.spine.fetch_value("SELECT count(*) FROM attempts") == leases
    # Its hosts must ask anew who owns the run.
    assert old.post.closed != []
    assert list_epochs(old) & list_epochs(new) == set()


async def test_control_without_the_guard_both_give_orders_in_one_epoch(lab):
    run_id, old, new = await overtake(lab)

    async def write_anyway(conn, run, *, owner_id, known_epoch):
        return True

    with patch.object(run_store, "write_run", write_anyway):
        await close(old, run_id, SECOND)
        old.now[0] += PROBE_SECONDS
        await old.owner.hear(run_id, Heard(Ticked()))
        await lab.set_going(old, run_id)
    assert list_epochs(old) & list_epochs(new) == {2}


async def test_an_owner_that_looks_finds_out_by_itself(lab):
    _, old, _ = await overtake(lab)
    await old.look()
    assert old.owner.run_ids == []


async def test_a_host_is_sent_to_the_owner_and_a_run_that_nobody_owns_is_taken_over(lab):
    _, _, run_id, old = await set_going(lab)
    attempt_id = old.run(run_id).seats[FIRST].attempt_id
    new = lab.open_owner()
    with pytest.raises(RunElsewhere) as refusal:
        await new.owner.admit(attempt_id)
    assert refusal.value.details["owner_address"] == "hub.example:9000"
    await lab.let_owner_lease_pass(run_id)
    assert (await new.owner.admit(attempt_id))[:2] == (run_id, FIRST)
    assert new.run(run_id).epoch == 2


async def test_what_is_heard_while_the_database_is_away_is_decided_later(lab):
    _, _, run_id, at = await set_going(lab)

    async def away(*args, **kwargs):
        raise OSError("connection refused")

    with patch.object(run_store, "write_run", away), pytest.raises(OSError, match="refused"):
        await lab.step(at, run_id, 1)
    assert at.run(run_id).step == 0
    await lab.step(at, run_id, 2)
    assert at.run(run_id).step == 2
    assert await lab.spine.fetch_value("SELECT count(*) FROM run_metrics") == 2


async def test_whoever_is_cut_off_while_he_speaks_is_heard_all_the_same(lab):
    """A session ends in the middle of a commit."""
    _, _, run_id, at = await set_going(lab)
    going, may_go = asyncio.Event(), asyncio.Event()
    write_run = run_store.write_run

    async def write_slowly(*args, **kwargs):
        going.set()
        await may_go.wait()
        return await write_run(*args, **kwargs)

    with patch.object(run_store, "write_run", write_slowly):
        speaking = asyncio.create_task(lab.step(at, run_id, 1))
        await going.wait()
        speaking.cancel()
        await asyncio.gather(speaking, return_exceptions=True)
        may_go.set()
        await wait_for(lambda: at.run(run_id).step == 1, what="the step to count")
    assert await lab.spine.fetch_value("SELECT count(*) FROM run_metrics") == 1


async def test_a_lock_that_others_hold_is_waited_for(lab):
    _, _, run_id, at = await set_going(lab)
    write_run, tries = run_store.write_run, []

    async def write_when_free(*args, **kwargs):
        tries.append(1)
        if len(tries) < 3:
            raise asyncpg.LockNotAvailableError("canceling statement due to lock timeout")
        return await write_run(*args, **kwargs)

    with patch.object(run_store, "write_run", write_when_free):
        await lab.step(at, run_id, 1)
    assert at.run(run_id).step == 1
    assert len(tries) == 3


# Stop and resume


async def test_a_stopped_run_is_resumed_from_its_last_checkpoint_under_another_job(lab):
    by, _, run_id, at = await set_going(lab)
    await lab.step(at, run_id, *range(1, 11))
    await run_service.stop_run(lab.spine.pool, by, run_id)
    await at.look()
    until = at.run(run_id).until_step
    await lab.step(at, run_id, *range(11, until + 1))
    await lab.store(at, run_id, until)
    stopped = await run_service.get_run(lab.spine.pool, by, run_id)
    assert (stopped.row.state, stopped.row.checkpoint_step) == (RunState.STOPPED, until)
    with pytest.raises(InvalidRequest, match=f"has made {until} steps"):
        await run_service.resume_run(lab.spine.pool, lab.spine.leases.prices, by, run_id, steps=until)
    resumed = await run_service.resume_run(lab.spine.pool, lab.spine.leases.prices, by, run_id, steps=60)
    assert resumed.row.job_id != stopped.row.job_id
    await at.look()
    await lab.set_going(at, run_id)
    run = at.run(run_id)
    assert run.state is RunState.RUNNING
    assert {(o.from_step, o.until_step) for o in at.post.list(SendRun) if o.epoch == run.epoch} == {(until, 60)}
    assert all(each.incarnation == 2 for each in run.locations)


async def test_a_run_at_work_is_not_resumed(lab):
    by, _, run_id, _ = await set_going(lab)
    with pytest.raises(Conflict, match="Stop it first"):
        await run_service.resume_run(lab.spine.pool, lab.spine.leases.prices, by, run_id, steps=60)


async def test_a_cancelled_job_stops_its_run(lab):
    by, _, run_id, at = await set_going(lab)
    await cancel_job(lab.spine.pool, by, (await lab.row(run_id))["job_id"])
    await at.look()
    assert at.owner.run_ids == []
    assert (await lab.row(run_id))["state"] == "stopped"


# Walls and bad input


async def test_another_tenant_sees_no_run(lab):
    _, _, run_id, _ = await set_going(lab)
    stranger = await lab.spine.sign_up(credits=1)
    for look in (run_service.get_run, run_service.stop_run, run_service.list_checkpoints):
        with pytest.raises(NotFound):
            await look(lab.spine.pool, stranger, run_id)
    with pytest.raises(NotFound):
        await run_service.read_feed(lab.spine.pool, stranger, run_id, after=0)
    with pytest.raises(NotFound):
        await run_service.resume_run(lab.spine.pool, lab.spine.leases.prices, stranger, run_id)
    assert await run_service.list_runs(lab.spine.pool, stranger, network_id=None, before=None, limit=10) == []
    assert (await lab.row(run_id))["stop_asked_at"] is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"steps": 0}, "steps is 0"),
        ({"hours_max": 0}, "hours_max is 0"),
        ({"seats": 5}, "has VNodes for 4 at most"),
        ({"ceiling_microcredits_per_hour": -1}, "ceiling is -1"),
        ({"data": ()}, "0 data references"),
        ({"data": (DataRef("xyz"),)}, "64 lower-case hex digits"),
        ({"data": (DataRef("ab" * 32, uri="http://example.org/x"),)}, "give an https address"),
        ({"data": (DataRef("ab" * 32, format="pickle"),)}, "only safetensors is read"),
    ],
)
async def test_a_run_that_cannot_be_is_refused_with_what_is_wrong(lab, options, said):
    by = await lab.spine.sign_up(credits=100_000)
    with pytest.raises(InvalidRequest, match=said):
        await lab.start(by, **options)
    assert await lab.spine.fetch_value("SELECT count(*) FROM jobs") == 0


async def test_data_that_was_never_uploaded_is_refused_with_what_to_do(lab):
    by = await lab.spine.sign_up(credits=100_000)
    with pytest.raises(DataRefused, match="Upload it first"):
        await lab.start(by, data=(DataRef("ab" * 32),))


async def test_without_a_number_of_seats_a_network_that_fits_nowhere_is_refused_with_reasons(lab):
    by = await lab.spine.sign_up(credits=100_000)
    with pytest.raises(NoPlacement, match="no PNode that hosts VNodes"):
        await lab.start(by, seats=0)
    await lab.enrol_pnode(memory_bytes=1_000)
    with pytest.raises(NoPlacement, match=r"VNode a needs .* largest free PNode"):
        await lab.start(by, seats=0)
    await lab.enrol_pnode()
    assert len((await lab.start(by, seats=0)).seats) == 1
