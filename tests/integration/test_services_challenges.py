"""Proof of hardware on a real database: rounds, verdicts, and everything that must not work."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

import msgspec
import pytest

from computepool.core.errors import Conflict, InvalidRequest, NotFound
from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.trust import challenge as rules
from computepool.core.trust.challenge import ISSUED_MAX, ROUNDS, ProofState
from computepool.hub.services import challenges as service
from computepool.hub.services import nodes as node_service
from computepool.hub.services.keyring import to_base64
from computepool.wire.nodes import EnrolNode, Gpu, Hardware
from tests.support.challenged_node import SETTINGS, SLOT, Answering, ask, commit, play, show, slots_of
from tests.support.spine import EnrolledNode, Spine, open_spine

CARD = Gpu(name="NVIDIA GeForce RTX 4090", vram_bytes=24 << 30)


@pytest.fixture(autouse=True)
def little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card's claim would keep a processor busy for minutes."""
    monkeypatch.setattr(rules, "_SIZES", ((0.0, 64),))


@pytest.fixture
async def spine(dsn: str) -> AsyncIterator[Spine]:
    async with open_spine(dsn, hardware_proof=True) as spine:
        yield spine


async def test_a_processor_that_computes_is_proven_and_counts_by_what_it_showed(spine):
    node = await spine.enrol(cores=2, cpu_tflops=1e-7)
    opening = await play(spine, node)
    assert not opening.again
    assert opening.standing.proof.state is ProofState.PROVEN
    assert (await slots_of(spine, node))["cpu:0"] == ("cpu", pytest.approx(1e-7))
    assert await spine.fetch_value("SELECT count(*) FROM events WHERE kind = 'proof_proven'") == 1
    # There is nothing left to show.
    assert (await service.issue_challenge(spine.pool, SETTINGS, node.id, SLOT))[1] is None


async def test_a_card_has_no_tier_by_its_name_alone(spine):
    node = await spine.enrol(gpus=(CARD,))
    assert (await slots_of(spine, node))["gpu:0"] == ("unknown", None)


async def test_a_demo_takes_a_card_by_its_name(dsn):
    async with open_spine(dsn, demo=True) as spine:
        node = await spine.enrol(gpus=(CARD,))
        assert (await slots_of(spine, node))["gpu:0"][0] == "rtx-4090"


async def test_a_4090_that_computes_like_something_else_enrols_at_what_it_showed_and_its_owner_is_told(spine):
    owner = await spine.sign_up()
    node = await spine.enrol(owner=owner, gpus=(CARD,))
    openings = [await play(spine, node, "gpu:0") for _ in range(ROUNDS)]
    assert [opening.again for opening in openings] == [True] * (ROUNDS - 1) + [False]
    proof = openings[-1].standing.proof
    assert proof.state in (ProofState.SLOWER, ProofState.UNSURE)
    assert (await slots_of(spine, node))["gpu:0"] == (proof.tier, pytest.approx(proof.shown_tflops))
    assert proof.tier.startswith("unknown")
    seen = await node_service.get_node(spine.pool, owner, node.id)
    assert "a rtx-4090 shows 45.4 at least" in seen.proofs["gpu:0"].reason


async def test_what_was_shown_survives_a_new_start_and_another_card_begins_anew(spine):
    owner = await spine.sign_up()
    node = await spine.enrol(owner=owner, gpus=(CARD,))
    for _ in range(ROUNDS):
        opening = await play(spine, node, "gpu:0")
    tier = opening.standing.proof.tier
    await enrol_again(spine, owner, node, CARD)
    assert (await slots_of(spine, node))["gpu:0"][0] == tier
    await enrol_again(spine, owner, node, Gpu(name="NVIDIA GeForce RTX 3060", vram_bytes=12 << 30))
    assert (await slots_of(spine, node))["gpu:0"] == ("unknown", None)
    assert (await service.issue_challenge(spine.pool, SETTINGS, node.id, "gpu:0"))[0].proof is None


async def enrol_again(spine: Spine, owner, node: EnrolledNode, card: Gpu) -> None:
    request = EnrolNode(
        name="node",
        public_key=to_base64(node.private.public_key().public_bytes_raw()),
        hardware=Hardware(gpus=(card,), cores=8, ram_bytes=64 << 30, disk_bytes=1 << 40),
        isolation=IsolationLevel.SANDBOXED,
    )
    assert await node_service.enrol_node(spine.pool, SETTINGS, owner, request) == node.id


# What must not work


async def test_a_forged_product_is_found_out(spine):
    node = await spine.enrol(cores=2, cpu_tflops=1e-7)
    proof = (await play(spine, node, forge=True)).standing.proof
    assert (proof.state, proof.shown_tflops) == (ProofState.FORGED, None)
    assert (await slots_of(spine, node))["cpu:0"] == ("cpu", None)


async def test_a_card_that_loses_words_of_its_memory_is_found_out(spine):
    node = await spine.enrol(gpus=(CARD,))
    assert (await play(spine, node, "gpu:0", lost=1)).standing.proof.state is ProofState.FORGED


async def test_an_answer_to_another_seed_is_found_out(spine):
    node = await spine.enrol(cores=2, cpu_tflops=1e-7)
    first, second = await ask(spine, node), await ask(spine, node)
    replayed = Answering(first.work)
    segments = await commit(spine, node, second, replayed.root)
    opening = await show(spine, node, second, replayed.open(segments))
    assert opening.standing.proof.state is ProofState.FORGED


async def test_a_segment_that_was_not_committed_to_is_found_out(spine):
    node = await spine.enrol(cores=2, cpu_tflops=1e-7)
    challenge = await ask(spine, node)
    right, other = Answering(challenge.work), Answering(challenge.work, forge=True)
    segments = await commit(spine, node, challenge, other.root)
    opening = await show(spine, node, challenge, right.open(segments))
    assert opening.standing.proof.state is ProofState.FORGED


async def test_a_late_answer_is_not_taken(spine):
    node = await spine.enrol()
    challenge = await ask(spine, node)
    await spine.fetch(
        "UPDATE challenges SET issued_at = issued_at - interval '1 hour', expires_at = expires_at - interval '1 hour'"
    )
    with pytest.raises(Conflict, match="too late"):
        await commit(spine, node, challenge, b"\0" * 32)


async def test_an_answer_is_taken_once(spine):
    node = await spine.enrol(cores=2, cpu_tflops=1e-7)
    challenge = await ask(spine, node)
    answering = Answering(challenge.work)
    with pytest.raises(Conflict, match="Commit"):
        await show(spine, node, challenge, [])
    segments = await commit(spine, node, challenge, answering.root)
    with pytest.raises(Conflict, match="answered"):
        await commit(spine, node, challenge, answering.root)
    with pytest.raises(InvalidRequest, match="segments"):
        await show(spine, node, challenge, answering.open(segments)[:-1] if len(segments) > 1 else [])
    await show(spine, node, challenge, answering.open(segments))
    with pytest.raises(Conflict, match="opened"):
        await show(spine, node, challenge, answering.open(segments))


async def test_a_node_answers_its_own_challenges_only(spine):
    node, other = await spine.enrol(), await spine.enrol()
    challenge = await ask(spine, node)
    with pytest.raises(NotFound):
        await commit(spine, other, challenge, b"\0" * 32)
    with pytest.raises(NotFound):
        await ask(spine, node, "gpu:0")
    with pytest.raises(NotFound):
        await service.commit_challenge(spine.pool, node.id, UUID(int=1), b"\0" * 32)


async def test_nobody_asks_until_luck_strikes(spine):
    node = await spine.enrol()
    for _ in range(ISSUED_MAX):
        await ask(spine, node)
    assert (await service.issue_challenge(spine.pool, SETTINGS, node.id, SLOT))[1] is None


async def test_segments_are_chosen_after_the_commitment_and_differ(spine):
    node = await spine.enrol(cpu_tflops=1.0)
    settings = msgspec.structs.replace(SETTINGS, challenge_seconds=0.1)
    picked = []
    for _ in range(2):
        _, challenge = await service.issue_challenge(spine.pool, settings, node.id, SLOT)
        assert await spine.fetch_value("SELECT segments FROM challenges WHERE id = $1", challenge.id) is None
        picked.append(await commit(spine, node, challenge, b"\0" * 32))
    assert picked[0] != picked[1]
