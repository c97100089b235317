"""A node's side of a challenge, as fast or as dishonest as a test wants it."""

from __future__ import annotations

import base64

from computepool.core.trust.commitment import Tree
from computepool.core.trust.products import Work
from computepool.node.hardware.engines.choose import find_engine
from computepool.wire.challenges import OpenedSegment


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
