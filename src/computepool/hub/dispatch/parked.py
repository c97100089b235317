"""Calls that nodes hold open. Each node has at most one per hub; it brings work, and word of what to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from computepool.core.ids import AttemptId, NodeId
from computepool.core.nodes.state import NodeState
from computepool.core.placement.slot import Slot
from computepool.wire.attempts import Assignment, Controls, NextAnswer

# With more calls than this one hub process turns nodes away, to another hub or to later.
CALLS_MAX = 50_000


@dataclass(eq=False, slots=True)
class ParkedCall:
    node_id: NodeId
    free_slots: frozenset[str]
    running: frozenset[AttemptId]
    # Answer after the next round even if there is nothing: the node does not want to wait.
    hurried: bool
    # Set when a round has looked the node up: its state, and the slots that are free by the hub's own record.
    greeted: bool = False
    state: NodeState = NodeState.ACTIVE
    _offered: list[Slot] = field(default_factory=list)
    answer: asyncio.Future[NextAnswer | None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    @property
    def open(self) -> bool:
        return not self.answer.done()

    def offer(self, slots: Sequence[Slot]) -> None:
        self._offered = list(slots)
        self.greeted = True

    @property
    def open_slots(self) -> list[Slot]:
        """What may be filled: nothing before the node was looked up, and nothing while it takes no work."""
        return self._offered if self.greeted and self.state is NodeState.ACTIVE else []

    def settle(self, answer: NextAnswer | None) -> None:
        if not self.answer.done():
            self.answer.set_result(answer)

    def give(self, assignments: list[Assignment], controls: Controls) -> None:
        if assignments or controls.stop or controls.drain or controls.pause:
            self.settle(NextAnswer(assignments=assignments, controls=controls))


class ParkedCalls:
    def __init__(self) -> None:
        self._calls: dict[NodeId, ParkedCall] = {}

    def park(self, call: ParkedCall) -> None:
        earlier = self._calls.get(call.node_id)
        if earlier is not None:
            # The node has given that one up; nobody reads its answer any more.
            earlier.settle(None)
        self._calls[call.node_id] = call

    def leave(self, call: ParkedCall) -> None:
        call.settle(None)
        if self._calls.get(call.node_id) is call:
            del self._calls[call.node_id]

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[ParkedCall]:
        return iter([call for call in self._calls.values() if call.open])

    def dismiss_all(self) -> None:
        """On shutdown: everyone is told to call again, elsewhere."""
        for call in list(self._calls.values()):
            call.settle(None)
