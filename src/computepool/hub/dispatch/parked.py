"""Calls that nodes hold open. Each node has at most one per hub; it brings work, and word of what to stop.

A call is answered once. While leases for its node are being written it is held, so that all of them travel in one
answer and none is sent after the call has gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from computepool import clock
from computepool.core.ids import AttemptId, NodeId
from computepool.core.jobs.lease import Attempt
from computepool.core.nodes.state import NodeState
from computepool.hub.store.attempts import Grant
from computepool.wire.attempts import Controls

# With more calls than this one hub process turns nodes away, to another hub or to later.
CALLS_MAX = 50_000
# Calls whose time is up within the same step are dismissed together: a timer for each is larger than the call.
STEP_SECONDS = 0.05


@dataclass(eq=False, slots=True)
class Tidings:
    """What a call is answered with; the leases are still to be put into words."""

    leased: list[Grant | Attempt] = field(default_factory=list)
    controls: Controls | None = None

    def __bool__(self) -> bool:
        return bool(self.leased) or self.controls is not None


# Of all calls that nobody has anything to say to yet, which are nearly all that are parked. Never filled.
NO_TIDINGS = Tidings()


@dataclass(eq=False, slots=True)
class ParkedCall:
    node_id: NodeId
    free_slots: frozenset[str]
    running: frozenset[AttemptId]
    # Called once, with the call, when there are tidings, or when there is nothing more to wait for.
    answer: Callable[[ParkedCall], None]
    parked_at: float
    # How whoever answers can be heard by the caller.
    reply: Any = None
    state: NodeState = NodeState.ACTIVE
    # Outside of the hours at which its node is lent.
    closed: bool = False
    # Answer after the next round even if there is nothing: the node does not want to wait.
    hurried: bool = False
    # Asked together with a completion, beside the node's parked call.
    claim: bool = False
    # The record has been asked what else there is to say to this node.
    greeted: bool = False
    open: bool = True
    tidings: Tidings = NO_TIDINGS
    # Transactions under way that may lease slots of this node.
    _held: int = 0
    _dismissed: bool = False
    # Those whose time is up together with this one's.
    due: set[ParkedCall] | None = None

    @property
    def takes_work(self) -> bool:
        return self.open and self.state is NodeState.ACTIVE and not self.closed

    def hold(self) -> None:
        self._held += 1

    def release(self) -> None:
        self._held -= 1
        self._answer_if_due()

    def add_lease(self, lease: Grant | Attempt) -> None:
        self._own_tidings().leased.append(lease)
        self._answer_if_due()

    def has_lease(self, attempt_id: AttemptId) -> bool:
        return any(lease.id == attempt_id for lease in self.tidings.leased)

    def control(self, controls: Controls) -> None:
        self._own_tidings().controls = controls
        self._answer_if_due()

    def _own_tidings(self) -> Tidings:
        if self.tidings is NO_TIDINGS:
            self.tidings = Tidings()
        return self.tidings

    def dismiss(self) -> None:
        """Answers as soon as nothing is under way for it, with whatever there is."""
        self._dismissed = True
        self._answer_if_due()

    def close(self) -> None:
        """Nobody waits for it any more."""
        self.open = False
        # What was to be called knows the connection, and that knows the call: they would keep each other for long.
        self.reply = None
        self._stop_timer()

    def _answer_if_due(self) -> None:
        if self.open and not self._held and (self._dismissed or self.tidings):
            self.open = False
            self._stop_timer()
            self.answer(self)

    def _stop_timer(self) -> None:
        if self.due is not None:
            self.due.discard(self)
            self.due = None


class Dismissals:
    """Ends calls when their time is up, a little late rather than early."""

    def __init__(self) -> None:
        self._due: dict[int, set[ParkedCall]] = {}

    def add(self, call: ParkedCall, seconds: float) -> None:
        step = int((clock.seconds() + seconds) / STEP_SECONDS) + 1
        due = self._due.get(step)
        if due is None:
            due = self._due[step] = set()
            asyncio.get_running_loop().call_later(step * STEP_SECONDS - clock.seconds(), self._dismiss, step)
        due.add(call)
        call.due = due

    def _dismiss(self, step: int) -> None:
        for call in list(self._due.pop(step)):
            call.dismiss()


class ParkedCalls:
    def __init__(self) -> None:
        self._calls: dict[NodeId, ParkedCall] = {}
        # Which call a slot was offered by: where a lease of it is delivered.
        self._offers: dict[tuple[NodeId, str], ParkedCall] = {}

    def park(self, call: ParkedCall) -> None:
        if not call.claim:
            earlier = self.find(call.node_id)
            self._calls[call.node_id] = call
            if earlier is not None:
                # The node has given that one up.
                earlier.dismiss()
        for name in call.free_slots:
            self._offers[call.node_id, name] = call

    def find(self, node_id: NodeId) -> ParkedCall | None:
        """The node's parked call."""
        call = self._calls.get(node_id)
        return call if call is not None and call.open else None

    def find_offering(self, node_id: NodeId, slot: str) -> ParkedCall | None:
        call = self._offers.get((node_id, slot))
        return call if call is not None and call.open else None

    def leave(self, call: ParkedCall) -> list[str]:
        """The slots that nobody offers any more."""
        if self._calls.get(call.node_id) is call:
            del self._calls[call.node_id]
        parked = self.find(call.node_id)
        gone = []
        for name in call.free_slots:
            if self._offers.get((call.node_id, name)) is not call:
                continue
            if parked is not None and parked is not call and name in parked.free_slots:
                # A claim came beside the parked call, which goes on offering it.
                self._offers[call.node_id, name] = parked
            else:
                del self._offers[call.node_id, name]
                gone.append(name)
        return gone

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[ParkedCall]:
        return iter([call for call in self._calls.values() if call.open])

    def dismiss_all(self) -> None:
        """On shutdown: everyone is told to call again, elsewhere."""
        for call in list(self._calls.values()):
            call.dismiss()
