"""The agent's side of challenges: computes what the hub asks for, in time, and tells the owner what came of it.

Nothing here keeps a node from working: a slot that cannot be shown counts for less, and the log says why.
"""

from __future__ import annotations

import asyncio

from computepool.core.errors import ComputePoolError
from computepool.core.trust.challenge import ProofState
from computepool.core.trust.claims import CPU_SLOT
from computepool.node import journal, patience
from computepool.node.hardware.detect import Detected
from computepool.node.hardware.measuring import CannotMeasure, Measuring, open_measuring
from computepool.node.hardware.port import Card
from computepool.node.holdings import Holdings
from computepool.node.hub_client import HubClient
from computepool.wire.challenges import ChallengeAnswer, OpenedSegment, SlotProof

# A whole sitting, with its rounds: after that, work is more useful than proof.
SITTING_SECONDS = 180.0
ROUNDS_MAX = 6
# How soon a sitting ends after something else has come in its way: the owner, or a job.
DISTURBED_SECONDS = 0.2
# Between two looks whether a slot that is asked for can sit.
LOOK_SECONDS = 1.0


def list_targets(detected: Detected) -> dict[str, Card | None]:
    """What can be shown, by slot; None: the processor."""
    targets: dict[str, Card | None] = {f"gpu:{index}": card for index, card in enumerate(detected.cards)}
    if detected.hardware.cpu_slots:
        targets[CPU_SLOT] = None
    return targets


async def prove_slots(hub: HubClient, detected: Detected) -> None:
    for slot, card in list_targets(detected).items():
        await _sit(hub, slot, card)


class Prover:
    """Shows a slot's speed again when the hub asks for it: one slot at a time, while it is idle and lent."""

    def __init__(self, hub: HubClient, detected: Detected, holdings: Holdings) -> None:
        self._hub = hub
        self._targets = list_targets(detected)
        self._holdings = holdings

    async def run(self) -> None:
        while True:
            await self._holdings.asked.wait()
            for slot in self._holdings.list_asked():
                try:
                    await self._show(slot)
                except Exception as error:
                    # The top of the loop: a proof that cannot be given must not end the node.
                    journal.error("sitting_broke", slot=slot, trace=error)
                    self._holdings.note_shown(slot)
            await asyncio.sleep(LOOK_SECONDS)

    async def _show(self, slot: str) -> None:
        if slot not in self._targets:
            self._holdings.note_shown(slot)
        elif self._holdings.can_show(slot):
            journal.info("asked_for_proof", slot=slot)
            if await self._sit_undisturbed(slot):
                self._holdings.note_shown(slot)

    async def _sit_undisturbed(self, slot: str) -> bool:
        """False when something came in its way: the owner's machine is free at once, and the proof is for later."""
        sitting = asyncio.ensure_future(_sit(self._hub, slot, self._targets[slot]))
        try:
            while not sitting.done():
                await asyncio.wait({sitting}, timeout=DISTURBED_SECONDS)
                if not self._holdings.can_show(slot):
                    return False
            sitting.result()
            return True
        finally:
            sitting.cancel()
            await asyncio.gather(sitting, return_exceptions=True)


async def _sit(hub: HubClient, slot: str, card: Card | None) -> None:
    try:
        async with asyncio.timeout(SITTING_SECONDS):
            await _prove(hub, slot, card)
    except (CannotMeasure, ComputePoolError) as error:
        journal.warning("not_proven", slot=slot, reason=error)
    except TimeoutError:
        journal.warning("not_proven", slot=slot, reason=f"it took more than {SITTING_SECONDS:.0f} s")


async def _prove(hub: HubClient, slot: str, card: Card | None) -> None:
    # The process first, and warm: the clock runs from the hub's answer on.
    async with open_measuring(card) as process:
        for _ in range(ROUNDS_MAX):
            answer = await patience.until_answered(lambda: hub.ask_challenge(slot), what="challenge", slot=slot)
            if answer.challenge is None:
                _tell(slot, answer.proof)
                return
            if not await _play_round(hub, slot, process, answer):
                return


async def _play_round(hub: HubClient, slot: str, process: Measuring, answer: ChallengeAnswer) -> bool:
    """Whether another round is wanted."""
    challenge = answer.challenge
    assert challenge is not None
    root = await process.compute(
        seed=challenge.seed,
        size=challenge.size,
        products=challenge.products,
        seconds=challenge.answer_seconds,
    )
    asked = await hub.commit_challenge(challenge.id, root=root)
    opened = await process.open(asked.segments)
    segments = tuple(OpenedSegment(piece=each.piece, path=tuple(each.path)) for each in opened)
    words = tuple(
        await process.fill(
            seed=challenge.seed,
            byte_count=challenge.memory_bytes,
            indices=asked.words,
            seconds=challenge.answer_seconds,
        )
    )
    said = await patience.until_answered(
        lambda: hub.open_challenge(challenge.id, segments, words), what="challenge", slot=slot
    )
    if not said.again:
        _tell(slot, said.proof)
    return said.again


def _tell(slot: str, proof: SlotProof) -> None:
    fields = {
        "slot": slot,
        "state": proof.state.value,
        "claimed_tier": proof.claimed_tier,
        "tier": proof.tier,
        "shown_tflops": proof.shown_tflops,
        "reason": proof.reason,
    }
    if proof.state is ProofState.PROVEN:
        journal.info("slot_proven", **fields)
    else:
        journal.warning("tier_not_granted", **fields)
