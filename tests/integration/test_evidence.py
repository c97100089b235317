"""Evidence about nodes on a real database: who is credited with what, and that hubs add to it together."""

from __future__ import annotations

import asyncio

import pytest

from computepool import clock, entropy
from computepool.core.ids import AccountId, AttemptId, NodeId, SlotName
from computepool.core.jobs.cause import NODE_FAULTS, Cause
from computepool.core.placement.slot import SlotKind
from computepool.core.trust.reputation import Reliability, reliability_bound
from computepool.hub.dispatch import evidence as evidence_module
from computepool.hub.dispatch.evidence import Evidence
from computepool.hub.services.reliabilities import record_outcomes
from computepool.hub.services.transitions import EndedAttempt
from computepool.hub.store import reliabilities as reliability_store
from computepool.hub.store.connect import Pool

NEWCOMER = reliability_bound(Reliability(), now=clock.now())


@pytest.fixture
def node_id() -> NodeId:
    return NodeId(entropy.new_id())


def make_end(node_id: NodeId, cause: Cause | None = None, *, slot: str = "cpu:0") -> EndedAttempt:
    return EndedAttempt(
        attempt_id=AttemptId(entropy.new_id()),
        account_id=AccountId(entropy.new_id()),
        node_id=node_id,
        slot=SlotName(slot),
        cause=cause,
        expected_seconds=1.0,
        held_seconds=1.0,
    )


async def get_known(pool: Pool, node_id: NodeId, job_class: str = "script|cpu") -> Reliability | None:
    async with pool.acquire() as conn:
        return (await reliability_store.list_reliabilities(conn, [node_id])).get((node_id, job_class))


async def load(evidence: Evidence, pool: Pool, node_id: NodeId) -> None:
    async with pool.acquire() as conn:
        await evidence.load(conn, [node_id])


async def test_finished_attempts_raise_the_bound(pool, node_id):
    evidence = Evidence(pool)
    await load(evidence, pool, node_id)
    assert evidence.bound(node_id, SlotKind.CPU) == pytest.approx(NEWCOMER)
    evidence.note_ended([make_end(node_id) for _ in range(40)])
    await evidence.flush()
    assert evidence.bound(node_id, SlotKind.CPU) > 0.85


@pytest.mark.parametrize("cause", sorted(NODE_FAULTS))
async def test_a_fault_of_the_node_lowers_the_bound(pool, node_id, cause):
    evidence = Evidence(pool)
    await load(evidence, pool, node_id)
    evidence.note_ended([make_end(node_id) for _ in range(40)])
    await evidence.flush()
    before = evidence.bound(node_id, SlotKind.CPU)
    evidence.note_ended([make_end(node_id, cause)])
    await evidence.flush()
    assert evidence.bound(node_id, SlotKind.CPU) < before


@pytest.mark.parametrize("cause", sorted(set(Cause) - NODE_FAULTS))
async def test_an_end_that_is_not_the_nodes_fault_says_nothing_about_it(pool, node_id, cause):
    evidence = Evidence(pool)
    evidence.note_ended([make_end(node_id, cause)])
    await evidence.flush()
    assert await get_known(pool, node_id) is None


async def test_gpu_and_cpu_slots_are_judged_apart(pool, node_id):
    evidence = Evidence(pool)
    await load(evidence, pool, node_id)
    evidence.note_ended([make_end(node_id, slot="gpu:0") for _ in range(40)])
    await evidence.flush()
    assert evidence.bound(node_id, SlotKind.GPU) > 0.85
    assert evidence.bound(node_id, SlotKind.CPU) == pytest.approx(NEWCOMER)


async def test_the_order_of_outcomes_counts(pool, node_id):
    other = NodeId(entropy.new_id())
    evidence = Evidence(pool)
    ends = [None, Cause.GPU_LOST, Cause.GPU_LOST]
    evidence.note_ended([make_end(node_id, cause) for cause in ends])
    evidence.note_ended([make_end(other, cause) for cause in reversed(ends)])
    await evidence.flush()
    in_a_row, ended_by_success = await get_known(pool, node_id), await get_known(pool, other)
    assert (in_a_row.faults_running, ended_by_success.faults_running) == (2, 0)


async def test_two_hubs_add_to_the_same_evidence(pool, node_id):
    hubs = [Evidence(pool) for _ in range(6)]
    for hub in hubs:
        hub.note_ended([make_end(node_id) for _ in range(3)])
    await asyncio.gather(*(hub.flush() for hub in hubs))
    together = Evidence(pool)
    other = NodeId(entropy.new_id())
    together.note_ended([make_end(other) for _ in range(18)])
    await together.flush()
    assert (await get_known(pool, node_id)).finished == pytest.approx(
        (await get_known(pool, other)).finished, rel=1e-3
    )


async def test_many_hubs_with_the_same_nodes_never_lock_each_other_out(pool):
    nodes = [NodeId(entropy.new_id()) for _ in range(30)]
    hubs = [Evidence(pool) for _ in range(6)]
    for _ in range(5):
        for number, hub in enumerate(hubs):
            hub.note_ended([make_end(node) for node in nodes[number:] + nodes[:number]])
        await asyncio.gather(*(hub.flush() for hub in hubs))
    assert all([(await get_known(pool, node)).finished > 20 for node in nodes])


async def test_a_node_is_a_newcomer_until_its_record_was_read_and_placement_is_told_then(pool, node_id):
    await record_outcomes(pool, {(node_id, "script|cpu"): [True] * 40}, now=clock.now())
    evidence, told = Evidence(pool), []
    evidence.on_change = told.append
    assert evidence.bound(node_id, SlotKind.CPU) == pytest.approx(NEWCOMER)
    await evidence._load_wanted()
    assert evidence.bound(node_id, SlotKind.CPU) > 0.85
    assert told == [[node_id]]
    await evidence._load_wanted()
    assert len(told) == 1


async def test_what_other_hubs_found_out_is_read_after_a_while(pool, node_id, monkeypatch):
    evidence = Evidence(pool)
    await load(evidence, pool, node_id)
    await record_outcomes(pool, {(node_id, "script|cpu"): [True] * 40}, now=clock.now())
    later = clock.seconds() + evidence_module.MEMORY_SECONDS + 1
    monkeypatch.setattr(evidence_module.clock, "seconds", lambda: later)
    assert evidence.bound(node_id, SlotKind.CPU) == pytest.approx(NEWCOMER)
    await evidence._load_wanted()
    assert evidence.bound(node_id, SlotKind.CPU) > 0.85


async def test_while_the_database_is_away_nothing_is_lost_and_the_order_stays(pool, node_id, monkeypatch):
    evidence = Evidence(pool)
    evidence.note_ended([make_end(node_id, Cause.GPU_LOST)])

    async def break_off(*_, **__):
        raise ConnectionError("away")

    with monkeypatch.context() as away:
        away.setattr(evidence_module, "record_outcomes", break_off)
        with pytest.raises(ConnectionError):
            await evidence.flush()
    evidence.note_ended([make_end(node_id)])
    await evidence.flush()
    known = await get_known(pool, node_id)
    assert (known.faults_running, known.failed > 0, known.finished) == (0, True, 1.0)


async def test_what_is_counted_has_a_limit(pool, monkeypatch):
    monkeypatch.setattr(evidence_module, "PENDING_MAX", 10)
    monkeypatch.setattr(evidence_module, "NODES_MAX", 10)
    evidence = Evidence(pool)
    nodes = [NodeId(entropy.new_id()) for _ in range(50)]
    evidence.note_ended([make_end(node) for node in nodes for _ in range(300)])
    assert len(evidence._pending) == 10
    assert max(map(len, evidence._pending.values())) == evidence_module.OUTCOMES_MAX
    async with pool.acquire() as conn:
        await evidence.load(conn, nodes)
    assert len(evidence._known) == 10
