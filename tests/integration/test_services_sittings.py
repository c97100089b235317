"""Slots that are asked to show their speed again, on a real database: when, who is told, and what it comes to."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from computepool.core.trust import challenge as rules
from computepool.core.trust import sittings as sitting_rules
from computepool.core.trust.challenge import ROUNDS, ProofState
from computepool.core.trust.sittings import MISSES_MAX, UNSURE_MAX
from computepool.hub.services import challenges as challenge_service
from computepool.hub.services import nodes as node_service
from computepool.hub.services import sittings as service
from computepool.hub.services.sittings import Sittings
from computepool.hub.store import nodes as node_store
from computepool.wire.nodes import Gpu
from tests.support.challenged_node import SETTINGS, play, slots_of
from tests.support.spine import EnrolledNode, Spine, open_spine

CARD = Gpu(name="NVIDIA GeForce RTX 4090", vram_bytes=24 << 30)
GPU = "gpu:0"


@pytest.fixture(autouse=True)
def little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "_SIZES", ((0.0, 64),))
    monkeypatch.setattr(rules, "ISSUED_MAX", 1_000)


@pytest.fixture
async def spine(dsn: str) -> AsyncIterator[Spine]:
    async with open_spine(dsn, hardware_proof=True) as spine:
        yield spine


@pytest.fixture
async def node(spine: Spine, monkeypatch: pytest.MonkeyPatch) -> EnrolledNode:
    """A card that was proven, and whose node calls."""
    node = await spine.enrol(gpus=(CARD,))
    let_pass(monkeypatch)
    assert (await play(spine, node, GPU)).standing.state is ProofState.PROVEN
    await spine.fetch("UPDATE nodes SET last_seen_at = clock_timestamp()")
    await spine.fetch("UPDATE sittings SET due_at = clock_timestamp() + interval '1 day' WHERE slot = 'cpu:0'")
    return node


def let_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "_least_tflops", lambda claim: 0.0)


def become_slower(monkeypatch: pytest.MonkeyPatch, *, busy: bool = False) -> None:
    """From now on no round is fast enough; `busy`: and rounds differ."""
    monkeypatch.setattr(rules, "_least_tflops", lambda claim: 1e9)
    monkeypatch.setattr(rules, "BUSY_SPREAD_RATIO", -1.0 if busy else 1.0)


async def make_due(spine: Spine) -> None:
    await spine.fetch("UPDATE sittings SET due_at = clock_timestamp() - interval '1 second' WHERE slot = $1", GPU)


async def turn(spine: Spine) -> int:
    return await service.take_turns(spine.pool, SETTINGS, limit=10)


async def ask(spine: Spine, asked: Sittings | None = None) -> Sittings:
    """The request is made, and the node hears of it."""
    asked = asked or Sittings()
    await make_due(spine)
    assert await turn(spine) == 1
    await asked.refresh(spine.pool)
    return asked


async def tell(spine: Spine, asked: Sittings, node: EnrolledNode) -> None:
    assert asked.list_to_tell(node.id, ["cpu:0", GPU], idle=True) == (GPU,)
    await asked.flush(spine.pool)


async def miss(spine: Spine) -> None:
    seconds = sitting_rules.ANSWER_WITHIN.total_seconds()
    await spine.fetch("UPDATE sittings SET told_at = told_at - $1 * interval '1 second'", seconds)
    assert await turn(spine) == 1


async def sit(spine: Spine, node: EnrolledNode) -> ProofState:
    """One sitting, with as many rounds as are wanted."""
    for _ in range(ROUNDS):
        opening = await play(spine, node, GPU)
        if not opening.again:
            return opening.standing.state
    raise AssertionError("no verdict")


async def test_a_slot_that_enrols_has_a_moment_ahead_of_it_that_a_new_start_does_not_change(spine):
    owner = await spine.sign_up()
    node = await spine.enrol(owner=owner, gpus=(CARD,))
    rows = await spine.fetch("SELECT slot, due_at, asked_at FROM sittings ORDER BY slot")
    assert [row["slot"] for row in rows] == ["cpu:0", GPU]
    assert all(row["asked_at"] is None for row in rows)
    async with spine.pool.acquire() as conn:
        machine = challenge_service._machine_of((await node_service.get_node(spine.pool, owner, node.id)).node)
        await challenge_service.plan_sittings(conn, SETTINGS, node.id, machine)
    assert await spine.fetch("SELECT slot, due_at, asked_at FROM sittings ORDER BY slot") == rows


async def test_nobody_is_asked_before_it_is_due(spine, node):
    assert await turn(spine) == 0
    asked = Sittings()
    assert await asked.refresh(spine.pool) == []
    assert asked.list_to_tell(node.id, [GPU], idle=True) == ()


async def test_a_slot_that_is_asked_takes_no_work_and_is_told_once_when_it_is_free(spine, node):
    asked = await ask(spine)
    assert asked.is_withheld(node.id, GPU)
    assert not asked.is_withheld(node.id, "cpu:0")
    # Busy: nothing to tell yet.
    assert asked.list_to_tell(node.id, ["cpu:0"], idle=False) == ()
    await tell(spine, asked, node)
    assert asked.list_to_tell(node.id, [GPU], idle=True) == ()
    assert await spine.fetch_value("SELECT told_at IS NOT NULL FROM sittings WHERE slot = $1", GPU)


async def test_the_processor_is_asked_when_nothing_runs_and_goes_on_working(spine, node):
    await spine.fetch("UPDATE sittings SET due_at = clock_timestamp() - interval '1 second' WHERE slot = 'cpu:0'")
    await turn(spine)
    asked = Sittings()
    assert await asked.refresh(spine.pool) == [node.id]
    assert not asked.is_withheld(node.id, "cpu:0")
    assert asked.list_to_tell(node.id, ["cpu:0"], idle=False) == ()
    assert asked.list_to_tell(node.id, ["cpu:0"], idle=True) == ("cpu:0",)


async def test_a_node_that_is_away_is_not_asked(spine, node):
    await spine.fetch("UPDATE nodes SET last_seen_at = clock_timestamp() - interval '1 day'")
    await make_due(spine)
    assert await turn(spine) == 1
    assert await spine.fetch_value("SELECT asked_at FROM sittings WHERE slot = $1", GPU) is None
    assert await spine.fetch_value("SELECT due_at > clock_timestamp() FROM sittings WHERE slot = $1", GPU)


async def test_a_card_that_is_as_fast_as_before_keeps_its_tier(spine, node):
    await tell(spine, await ask(spine), node)
    assert await sit(spine, node) is ProofState.PROVEN
    assert (await slots_of(spine, node))[GPU][0] == "rtx-4090"
    assert await spine.fetch("SELECT 1 FROM sittings WHERE asked_at IS NOT NULL OR told_at IS NOT NULL") == []
    # Nobody may sit for as long as they like: what is proven is not shown again unasked.
    assert (await challenge_service.issue_challenge(spine.pool, SETTINGS, node.id, GPU))[1] is None


async def test_a_card_that_became_slower_loses_its_tier(spine, node, monkeypatch):
    await tell(spine, await ask(spine), node)
    become_slower(monkeypatch)
    assert await sit(spine, node) is ProofState.SLOWER
    assert (await slots_of(spine, node))[GPU][0].startswith("unknown")
    assert await spine.fetch_value("SELECT count(*) FROM events WHERE kind = 'proof_slower'") == 1


async def test_control_a_card_that_became_slower_and_is_not_asked_keeps_its_tier(spine, node, monkeypatch):
    monkeypatch.setattr(sitting_rules, "take_turn", lambda sitting, state, **_: sitting_rules.Turn(sitting))
    become_slower(monkeypatch)
    await make_due(spine)
    await turn(spine)
    assert (await challenge_service.issue_challenge(spine.pool, SETTINGS, node.id, GPU))[1] is None
    assert (await slots_of(spine, node))[GPU][0] == "rtx-4090"


async def test_a_busy_machine_keeps_its_tier_and_is_asked_again_but_not_for_ever(spine, node, monkeypatch):
    become_slower(monkeypatch, busy=True)
    for number in range(1, UNSURE_MAX + 1):
        await tell(spine, await ask(spine), node)
        state = await sit(spine, node)
        tier = (await slots_of(spine, node))[GPU][0]
        if number < UNSURE_MAX:
            assert (state, tier) == (ProofState.PROVEN, "rtx-4090")
        else:
            assert state is ProofState.UNSURE
            assert tier.startswith("unknown")
    assert await spine.fetch_value("SELECT count(*) FROM events WHERE kind = 'proof_unsure'") == UNSURE_MAX


async def test_a_slot_that_does_not_answer_is_unproven_until_it_sits(spine, node):
    for number in range(1, MISSES_MAX + 1):
        assert (await slots_of(spine, node))[GPU][0] == "rtx-4090", number
        await tell(spine, await ask(spine), node)
        await miss(spine)
    assert (await slots_of(spine, node))[GPU] == ("unknown", None)
    reason = await spine.fetch_value("SELECT reason FROM proofs WHERE slot = $1 AND state = 'unproven'", GPU)
    assert "3 times" in reason
    # It may come back at any time, by itself.
    assert await sit(spine, node) is ProofState.PROVEN
    assert (await slots_of(spine, node))[GPU][0] == "rtx-4090"


async def test_what_was_not_told_is_not_missed(spine, node):
    await ask(spine)
    await spine.fetch("UPDATE sittings SET asked_at = asked_at - interval '30 days' WHERE asked_at IS NOT NULL")
    assert await turn(spine) == 0


async def test_rounds_of_an_earlier_sitting_do_not_count_in_a_later_one(spine, node, monkeypatch):
    become_slower(monkeypatch, busy=True)
    await tell(spine, await ask(spine), node)
    assert await sit(spine, node) is ProofState.PROVEN
    await tell(spine, await ask(spine), node)
    assert (await play(spine, node, GPU)).again


async def test_two_hubs_make_one_request_of_what_is_due(spine, node):
    await make_due(spine)
    await turn(spine)
    asked_at = await spine.fetch_value("SELECT asked_at FROM sittings WHERE slot = $1", GPU)
    # The second had looked at the same moment, and waited for the node's row.
    async with spine.pool.acquire() as conn, conn.transaction():
        seen = await node_store.lock_node(conn, node.id)
        await service._take_turn(conn, SETTINGS, seen, GPU)
    assert await spine.fetch_value("SELECT asked_at FROM sittings WHERE slot = $1", GPU) == asked_at


async def test_a_removed_node_is_forgotten(spine, node):
    await spine.fetch("UPDATE nodes SET state = 'removed'")
    await make_due(spine)
    await turn(spine)
    assert await spine.fetch("SELECT 1 FROM sittings WHERE slot = $1", GPU) == []
