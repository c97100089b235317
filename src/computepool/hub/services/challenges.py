"""Proof of hardware: hands out rounds of seeded work, times them, looks at what comes back and concludes."""

from __future__ import annotations

import asyncio
import base64
import binascii
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from computepool import clock, entropy
from computepool.core.errors import Conflict, InvalidRequest, NodeRemoved, NotFound
from computepool.core.ids import NodeId
from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.nodes.slots import GpuCard, Machine, cut_into_slots
from computepool.core.nodes.state import NodeState
from computepool.core.trust import challenge as rules
from computepool.core.trust import memory
from computepool.core.trust import sittings as sitting_rules
from computepool.core.trust.challenge import ProofState, Verdict
from computepool.core.trust.claims import Granted, Shown, SlotClaim, grant, list_claims
from computepool.core.trust.commitment import is_proved
from computepool.core.trust.products import SEED_BYTES, Spot, compute_spots
from computepool.core.trust.sittings import Sitting
from computepool.hub.config import HubSettings
from computepool.hub.store import challenges as store
from computepool.hub.store import events as event_store
from computepool.hub.store import hub as hub_store
from computepool.hub.store import nodes as node_store
from computepool.hub.store import sittings as sitting_store
from computepool.hub.store.challenges import Challenge, Proof
from computepool.hub.store.connect import Connection, Pool
from computepool.hub.store.events import NewEvent
from computepool.hub.store.hub import ChangeKind
from computepool.hub.store.nodes import Node
from computepool.wire.challenges import OpenedSegment
from computepool.wire.nodes import Hardware

_LATE = "This came too late to count. Ask for another round."


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of one slot."""

    slot_claim: SlotClaim
    # None: nothing has been shown, or by another card.
    proof: Proof | None

    @property
    def state(self) -> ProofState:
        return ProofState.UNPROVEN if self.proof is None else self.proof.state


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the node is to show of what it has committed to."""

    segments: list[int]
    words: list[int]


@dataclass(frozen=True, slots=True)
class Opening:
    standing: Standing
    again: bool


class Examiner:
    """One look at an answer at a time: each takes up to a second of this process, and nobody waits for it."""

    def __init__(self) -> None:
        self._gate = asyncio.Semaphore(1)

    async def examine(self, challenge: Challenge, opened: Sequence[OpenedSegment]) -> bool:
        async with self._gate:
            return await asyncio.to_thread(is_right, challenge, opened)


def to_machine(hardware: Hardware, *, region: str | None, isolation: IsolationLevel) -> Machine:
    return Machine(
        gpus=[GpuCard(gpu.name, gpu.vram_bytes, gpu.tflops) for gpu in hardware.gpus],
        cores=hardware.cores,
        ram_bytes=hardware.ram_bytes,
        disk_bytes=hardware.disk_bytes,
        cpu_slots=hardware.cpu_slots,
        region=region,
        isolation=isolation,
        cpu_tflops=hardware.cpu_tflops,
    )


async def grant_slots(
    conn: Connection, settings: HubSettings, node_id: NodeId, machine: Machine, *, synthetic: bool
) -> list[Granted]:
    """What each slot of this machine counts as, by all that its node has shown."""
    proofs = await store.list_proofs(conn, [node_id])
    shown = _list_shown(machine, proofs.values())
    return grant(machine, shown, demanded=settings.is_proof_demanded and not synthetic)


async def issue_challenge(
    pool: Pool, settings: HubSettings, node_id: NodeId, slot: str
) -> tuple[Standing, Challenge | None]:
    """A round for this slot, or none when there is nothing to show now."""
    async with pool.acquire() as conn, conn.transaction():
        node = await _lock_node(conn, node_id)
        standing = await find_standing(conn, node, slot)
        claim = standing.slot_claim.claim
        if node.synthetic or not await _is_welcome(conn, node_id, slot, standing):
            return standing, None
        issued = await store.count_issued(conn, node_id=node_id, slot=slot, window=rules.ISSUED_WINDOW)
        if issued >= rules.ISSUED_MAX:
            return standing, None
        seconds = settings.challenge_seconds
        work = rules.plan_work(claim, seed=entropy.new_bytes(SEED_BYTES), seconds=seconds)
        issued_challenge = await store.insert_challenge(
            conn,
            id=entropy.new_id(),
            node_id=node_id,
            slot=slot,
            claim=standing.slot_claim.fingerprint,
            work=work,
            memory_bytes=memory.plan_fill_bytes(standing.slot_claim.vram_bytes),
            seconds=rules.answer_seconds(seconds),
        )
    return standing, issued_challenge


async def commit_challenge(pool: Pool, node_id: NodeId, challenge_id: UUID, root: bytes) -> Wanted:
    """Stops the clock. What is to be shown is chosen only now."""
    async with pool.acquire() as conn, conn.transaction():
        found = await store.lock_challenge(conn, id=challenge_id, node_id=node_id)
        if found is None:
            raise NotFound("There is no such challenge for this node.")
        challenge, now = found
        if challenge.committed_at is not None:
            raise Conflict("This challenge has been answered. Ask for another round.")
        if now > challenge.expires_at:
            raise Conflict(_LATE)
        wanted = Wanted(
            segments=_pick(challenge.work.segments, rules.SAMPLES),
            words=_pick(challenge.memory_bytes // memory.WORD_BYTES, memory.WORDS),
        )
        await store.record_commitment(
            conn, id=challenge_id, committed_at=now, root=root, segments=wanted.segments, words=wanted.words
        )
    return wanted


async def open_challenge(
    pool: Pool,
    settings: HubSettings,
    examiner: Examiner,
    node_id: NodeId,
    challenge_id: UUID,
    opened: Sequence[OpenedSegment],
    words: Sequence[int],
) -> Opening:
    """Looks at what was asked for; with enough rounds, decides what the slot is."""
    async with pool.acquire() as conn, conn.transaction():
        # Held while we look: who opens twice at once finds nothing to open.
        found = await store.lock_challenge(conn, id=challenge_id, node_id=node_id)
        if found is None:
            raise NotFound("There is no such challenge for this node, or it is being looked at.")
        challenge, now = found
        if challenge.committed_at is None:
            raise Conflict("Commit to an answer first.")
        if challenge.opened_at is not None:
            raise Conflict("This challenge has been opened. Ask for another round.")
        if now > challenge.expires_at + (challenge.expires_at - challenge.issued_at):
            raise Conflict(_LATE)
        if len(opened) != len(challenge.segments):
            raise InvalidRequest(f"Open the {len(challenge.segments)} segments that were asked for, in their order.")
        right = memory.is_filled(challenge.work.seed, challenge.words, words) and await examiner.examine(
            challenge, opened
        )
        await store.record_opening(conn, id=challenge_id, is_right=right)
        node = await _lock_node(conn, node_id)
        return await _conclude(conn, settings, node, challenge, now)


async def plan_sittings(conn: Connection, settings: HubSettings, node_id: NodeId, machine: Machine) -> None:
    """When the slots of a node that enrols are to show their speed, if it does not do so by itself."""
    now, mean = clock.now(), timedelta(seconds=settings.challenge_again_seconds)
    waits = {
        slot: sitting_rules.plan_wait(ProofState.UNPROVEN, mean=mean, draw=entropy.draw())
        for slot in list_claims(machine)
    }
    await sitting_store.plan_sittings(conn, node_id, {slot: now + wait for slot, wait in waits.items()})


async def record_verdict(
    conn: Connection, settings: HubSettings, node: Node, slot: str, slot_claim: SlotClaim, verdict: Verdict
) -> None:
    """What the node's slots count as by it, from now on. The caller holds the node's row."""
    await store.upsert_proof(
        conn,
        node_id=node.id,
        slot=slot,
        claim=slot_claim.fingerprint,
        claimed_tier=slot_claim.claim.tier,
        verdict=verdict,
    )
    machine = _machine_of(node)
    granted = await grant_slots(conn, settings, node.id, machine, synthetic=node.synthetic)
    await store.set_slot_speeds(
        conn,
        node_id=node.id,
        names=[str(each.name) for each in cut_into_slots(node.id, machine)],
        tiers=[each.tier for each in granted],
        tflops=[each.tflops for each in granted],
    )
    await hub_store.record_change(conn, ChangeKind.NODE, node.id)


async def record_proof_event(
    conn: Connection, node: Node, slot: str, slot_claim: SlotClaim, verdict: Verdict, *, tier: str
) -> None:
    """`tier`: what the slot counts as after it."""
    body = {"slot": slot, "tier": tier, "claimed_tier": slot_claim.claim.tier, "reason": verdict.reason}
    await event_store.record_events(
        conn,
        [NewEvent(kind=f"proof_{verdict.state.value}", account_id=node.account_id, node_id=node.id, body=body)],
    )


async def find_standing(conn: Connection, node: Node, slot: str) -> Standing:
    slot_claim = list_claims(_machine_of(node)).get(slot)
    if slot_claim is None:
        raise NotFound("This node has no such slot to be shown. One CPU slot, cpu:0, stands for all of them.")
    proofs = await store.list_proofs(conn, [node.id])
    return _to_standing(slot_claim, proofs.get((node.id, slot)))


def has_slot(node: Node, slot: str) -> bool:
    """Whether it is one that can be shown."""
    return slot in list_claims(_machine_of(node))


def list_standings(node: Node, proofs: Mapping[str, Proof]) -> dict[str, Standing]:
    """By the slot that is challenged. Played machines have none."""
    if node.synthetic:
        return {}
    return {
        slot: _to_standing(slot_claim, proofs.get(slot))
        for slot, slot_claim in list_claims(_machine_of(node)).items()
    }


async def _is_welcome(conn: Connection, node_id: NodeId, slot: str, standing: Standing) -> bool:
    """Whether the slot may show its speed: by itself, if that is due, or because it was asked to."""
    sitting = await sitting_store.find_sitting(conn, node_id, slot)
    if sitting is not None and sitting.asked_at is not None:
        return True
    decided_at = None if standing.proof is None else standing.proof.decided_at
    return rules.may_try(standing.state, decided_at=decided_at, now=clock.now())


async def _conclude(
    conn: Connection, settings: HubSettings, node: Node, challenge: Challenge, now: datetime
) -> Opening:
    slot = challenge.slot
    standing = await find_standing(conn, node, slot)
    slot_claim = standing.slot_claim
    if slot_claim.fingerprint != challenge.claim:
        # The node has declared another card since.
        return Opening(standing, again=True)
    rounds = await store.list_rounds(
        conn, node_id=node.id, slot=slot, claim=slot_claim.fingerprint, limit=rules.ROUNDS
    )
    if rules.needs_more(slot_claim.claim, rounds):
        return Opening(standing, again=True)
    verdict = rules.judge(slot_claim.claim, rounds)
    sitting, stands = sitting_rules.conclude(
        await sitting_store.find_sitting(conn, node.id, slot) or Sitting(now),
        verdict.state,
        before=standing.state,
        now=now,
        mean=timedelta(seconds=settings.challenge_again_seconds),
        draw=entropy.draw(),
    )
    await sitting_store.upsert_sitting(conn, node.id, slot, sitting)
    proof = standing.proof
    if stands and proof is not None:
        await record_proof_event(conn, node, slot, slot_claim, verdict, tier=proof.tier)
        return Opening(standing, again=False)
    await record_verdict(conn, settings, node, slot, slot_claim, verdict)
    await record_proof_event(conn, node, slot, slot_claim, verdict, tier=verdict.tier)
    return Opening(await find_standing(conn, node, slot), again=False)


def is_right(challenge: Challenge, opened: Sequence[OpenedSegment]) -> bool:
    """Whether each segment is what was committed to, and one number of each, chosen now, is what it must be."""
    work, root = challenge.work, challenge.root
    assert root is not None
    spots, claimed = [], []
    for index, each in zip(challenge.segments, opened, strict=True):
        try:
            piece = base64.b64decode(each.piece, validate=True)
        except (binascii.Error, ValueError):
            return False
        path = [bytes.fromhex(step) for step in each.path]
        if len(piece) != work.segment_bytes or not is_proved(
            root=root, count=work.segments, index=index, piece=piece, path=path
        ):
            return False
        per_product = work.size // work.segment_rows
        row, strip = _pick_one(work.segment_rows), _pick_one(work.strips)
        spots.append(Spot(index // per_product, index % per_product * work.segment_rows + row, strip))
        claimed.append(struct.unpack_from("<f", piece, 4 * (row * work.strips + strip))[0])
    expected = compute_spots(work, spots)
    return all(each.is_near(value) for each, value in zip(expected, claimed, strict=True))


async def _lock_node(conn: Connection, node_id: NodeId) -> Node:
    node = await node_store.lock_node(conn, node_id)
    if node is None or node.state is NodeState.REMOVED:
        raise NodeRemoved("The owner has removed this node.")
    return node


def _to_standing(slot_claim: SlotClaim, proof: Proof | None) -> Standing:
    return Standing(slot_claim, proof if proof is not None and proof.claim == slot_claim.fingerprint else None)


def _list_shown(machine: Machine, proofs: Iterable[Proof]) -> Mapping[str, Shown]:
    claims = list_claims(machine)
    return {
        proof.slot: Shown(proof.tier, proof.shown_tflops)
        for proof in proofs
        if proof.slot in claims and claims[proof.slot].fingerprint == proof.claim
    }


def _machine_of(node: Node) -> Machine:
    hardware: Any = msgspec.convert(node.hardware, Hardware)
    return to_machine(hardware, region=node.region, isolation=node.isolation)


def _pick(count: int, wanted: int) -> list[int]:
    """Different ones, in order; all of them when there are no more."""
    if count <= wanted:
        return list(range(count))
    picked: set[int] = set()
    while len(picked) < wanted:
        picked.add(_pick_one(count))
    return sorted(picked)


def _pick_one(count: int) -> int:
    return int.from_bytes(entropy.new_bytes(8), "big") % count
