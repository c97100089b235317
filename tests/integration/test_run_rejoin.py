"""PNodes that come back to a run on a real database, and PNodes that are trusted: who gets which seat."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from computepool.core.ids import AttemptId
from computepool.core.networks.audit import VALIDATED_MIN, AuditOutcome
from computepool.core.networks.course import AVOID_SECONDS
from computepool.core.networks.detection import PROBE_SECONDS
from computepool.core.networks.rejoin import RETURN_SECONDS
from computepool.core.networks.run import BeatHeard, HostJoined, RunState, SendRun, SessionClosed, seat_id
from computepool.core.networks.spec import TrustPolicy
from computepool.hub.services.owners import Heard
from computepool.hub.store import run_audits as audit_store
from computepool.hub.store.run_audits import AuditRow
from tests.support.networks import make_mlp
from tests.support.run_lab import OwnerAtWork, RunLab, open_run_lab

FIRST, SECOND = seat_id(0), seat_id(1)


@pytest.fixture
async def lab(dsn: str, tmp_path: Path) -> AsyncIterator[RunLab]:
    async with open_run_lab(dsn, tmp_path) as lab:
        yield lab


async def boot_all(lab: RunLab, *node_ids: UUID) -> None:
    """Their agents are started anew, and heard."""
    for node_id in node_ids:
        await lab.spine.fetch(
            "UPDATE nodes SET boot_id = $2, last_seen_at = clock_timestamp() WHERE id = $1", node_id, uuid4()
        )


async def pile_up(lab: RunLab) -> tuple[UUID, OwnerAtWork, UUID]:
    """Two seats on two PNodes, of which one falls: the other has it all. Returns the run and the node that fell."""
    by = await lab.spine.sign_up(credits=100_000)
    nodes = [await lab.enrol_pnode() for _ in range(2)]
    await boot_all(lab, *(node.id for node in nodes))
    view = await lab.start(by)
    at = lab.open_owner()
    await at.look()
    run_id = view.row.id
    await lab.set_going(at, run_id)
    await lab.step(at, run_id, *range(1, 11))
    await lab.store(at, run_id, 10)
    seat = at.run(run_id).seats[SECOND]
    at.post.open.discard(seat.attempt_id)
    await at.owner.hear(run_id, Heard(SessionClosed(SECOND, seat.attempt_id)))
    await at.wait(PROBE_SECONDS)
    await lab.set_going(at, run_id)
    assert at.run(run_id).state is RunState.RUNNING
    assert {each.seat for each in at.run(run_id).locations} == {FIRST}
    return run_id, at, seat.node_id


async def test_a_pnode_that_was_started_anew_gets_its_seat_at_once_and_its_vnodes_at_the_next_checkpoint(lab):
    run_id, at, fallen = await pile_up(lab)
    await boot_all(lab, fallen)
    await at.wait(RETURN_SECONDS + 1)
    seat = at.run(run_id).seats[SECOND]
    assert (seat.node_id, at.run(run_id).epoch, at.run(run_id).state) == (fallen, 2, RunState.RUNNING)
    at.post.open.add(seat.attempt_id)
    await lab.run_attempts(seat.node_id, seat.attempt_id)
    await at.owner.hear(run_id, Heard(HostJoined(SECOND, seat.attempt_id)))
    await lab.step(at, run_id, *range(11, 21))
    await lab.store(at, run_id, 20)
    assert {each.seat for each in at.run(run_id).locations} == {FIRST, SECOND}
    await lab.set_going(at, run_id)
    run = at.run(run_id)
    assert (run.state, run.epoch, run.checkpoint_step) == (RunState.RUNNING, 3, 20)
    assert {order.from_step for order in at.post.list(SendRun) if order.epoch == 3} == {20}
    stored = await lab.spine.fetch("SELECT DISTINCT seat FROM placements WHERE run_id = $1", run_id)
    assert {row["seat"] for row in stored} == {FIRST, SECOND}


async def test_whoever_is_back_and_has_nothing_yet_takes_it_all_when_the_last_one_falls(lab):
    run_id, at, fallen = await pile_up(lab)
    await boot_all(lab, fallen)
    await at.wait(RETURN_SECONDS + 1)
    seat = at.run(run_id).seats[FIRST]
    await lab.spine.fetch("UPDATE nodes SET last_seen_at = now() - interval '1 hour' WHERE id = $1", seat.node_id)
    at.post.open.discard(seat.attempt_id)
    await at.owner.hear(run_id, Heard(SessionClosed(FIRST, seat.attempt_id)))
    await at.wait(PROBE_SECONDS)
    await lab.set_going(at, run_id)
    run = at.run(run_id)
    assert (run.state, {each.seat for each in run.locations}) == (RunState.RUNNING, {SECOND})
    assert run.seats[SECOND].node_id == fallen


async def test_control_one_that_was_not_started_anew_waits_its_minute(lab):
    run_id, at, fallen = await pile_up(lab)
    await at.wait(2 * RETURN_SECONDS)
    assert at.run(run_id).seats[SECOND].is_vacant
    at.now[0] += AVOID_SECONDS
    for seat in at.run(run_id).taken_seats:
        # It has got on meanwhile, or it would be taken for stuck.
        await at.owner.hear(run_id, Heard(BeatHeard(seat.id, seat.attempt_id, 2, seat.watermark + 1)))
    await at.wait(1)
    assert at.run(run_id).seats[SECOND].node_id == fallen


# Trust


async def find_loss_node(lab: RunLab, by, trust: TrustPolicy) -> UUID:
    network = await lab.create(by, make_mlp(trust=trust))
    view = await lab.start(by, network)
    at = lab.open_owner()
    await at.look()
    run = at.run(view.row.id)
    found = run.seats[next(each.seat for each in run.locations if each.vnode_id == "loss")].node_id
    assert found is not None
    return found


async def test_the_submitters_own_pnode_and_one_that_audits_found_right_tell_the_curve_if_that_is_wished(lab):
    by = await lab.spine.sign_up(credits=1_000_000)
    others = [await lab.enrol_pnode(flops_per_second=2e10, cpu_slots=4) for _ in range(3)]
    chosen = await find_loss_node(lab, by, TrustPolicy.ANY)
    assert chosen in {node.id for node in others}
    own = await lab.enrol_pnode(flops_per_second=1.9e10, owner=by)
    assert await find_loss_node(lab, by, TrustPolicy.TRUSTED_FIRST) == own.id
    # That one has no slot left: the next is whoever was found right often enough.
    [run_id] = {row["id"] for row in await lab.spine.fetch("SELECT id FROM runs ORDER BY id LIMIT 1")}
    veteran = next(node for node in others if node.id != chosen)
    await find_right(lab, run_id, veteran.id, chosen, VALIDATED_MIN)
    assert await find_loss_node(lab, by, TrustPolicy.TRUSTED_FIRST) == veteran.id


async def find_right(lab: RunLab, run_id: UUID, node_id: UUID, witness_id: UUID, count: int) -> None:
    async with lab.spine.pool.acquire() as conn:
        for number in range(count):
            row = AuditRow(
                uuid4(),
                run_id,
                1,
                FIRST,
                AttemptId(uuid4()),
                node_id,
                number,
                number + 1,
                AuditOutcome.AGREED,
                (witness_id,),
                "",
            )
            await audit_store.insert_audit(conn, row)
