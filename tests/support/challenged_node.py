"""A node's side of a challenge, as fast or as dishonest as a test wants it."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence

from computepool.core.trust.commitment import Tree
from computepool.core.trust.memory import split_seed, word_at
from computepool.core.trust.products import Work
from computepool.hub.config import HubSettings
from computepool.hub.services import challenges as service
from computepool.hub.services.challenges import Examiner, Opening
from computepool.hub.store.challenges import Challenge
from computepool.node.hardware.engines.choose import find_engine
from computepool.wire.challenges import OpenedSegment
from tests.support.spine import EnrolledNode, Spine

SETTINGS = HubSettings(demo=True, hardware_proof=True, challenge_seconds=1e-6)
SLOT = "cpu:0"


class Answering:
    """What it computes and commits to; `forge` changes the whole result before that."""

    def __init__(self, work: Work, *, forge: bool = False) -> None:
        whole = find_engine(on_gpu=False).compute(work)
        if forge:
            whole = bytes(len(whole))
        each = work.segment_bytes
        self._pieces = [whole[at : at + each] for at in range(0, len(whole), each)]
        self._tree = Tree(self._pieces)

    @property
    def root(self) -> bytes:
        return self._tree.root

    def open(self, segments: list[int]) -> list[OpenedSegment]:
        return [
            OpenedSegment(
                piece=base64.b64encode(self._pieces[index]).decode(),
                path=tuple(step.hex() for step in self._tree.prove(index)),
            )
            for index in segments
        ]


async def ask(spine: Spine, node: EnrolledNode, slot: str = SLOT) -> Challenge:
    _, challenge = await service.issue_challenge(spine.pool, SETTINGS, node.id, slot)
    assert challenge is not None
    return challenge


async def commit(spine: Spine, node: EnrolledNode, challenge: Challenge, root: bytes) -> list[int]:
    return (await service.commit_challenge(spine.pool, node.id, challenge.id, root)).segments


async def show(
    spine: Spine, node: EnrolledNode, challenge: Challenge, opened: Sequence[OpenedSegment], *, lost: int = 0
) -> Opening:
    """`lost`: so many words of the filled memory are not what they were."""
    places = await spine.fetch_value("SELECT words FROM challenges WHERE id = $1", challenge.id) or []
    words = [word_at(*split_seed(challenge.work.seed), place) for place in places]
    words[:lost] = [0] * lost
    return await service.open_challenge(spine.pool, SETTINGS, Examiner(), node.id, challenge.id, opened, words)


async def play(spine: Spine, node: EnrolledNode, slot: str = SLOT, *, forge: bool = False, lost: int = 0) -> Opening:
    challenge = await ask(spine, node, slot)
    answering = await asyncio.to_thread(Answering, challenge.work, forge=forge)
    segments = await commit(spine, node, challenge, answering.root)
    return await show(spine, node, challenge, answering.open(segments), lost=lost)


async def slots_of(spine: Spine, node: EnrolledNode) -> dict[str, tuple[str, float | None]]:
    rows = await spine.fetch("SELECT name, tier, speed_tflops FROM slots WHERE node_id = $1", node.id)
    return {row["name"]: (row["tier"], row["speed_tflops"]) for row in rows}
