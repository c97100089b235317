"""What one hub process is made of. Built once, in `main.py`, and handed to the transports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from computepool.core.placement.weights import WeightBook
from computepool.hub.blobs.local import LocalBlobs
from computepool.hub.config import HubSettings
from computepool.hub.dispatch.backlog import Backlog
from computepool.hub.dispatch.beats import Beats
from computepool.hub.dispatch.door import Door
from computepool.hub.dispatch.elsewhere import Elsewhere
from computepool.hub.dispatch.evidence import Evidence
from computepool.hub.dispatch.fair_share import FairShare
from computepool.hub.dispatch.group_commit import GroupCommit, SingleCommit
from computepool.hub.dispatch.pace import Pace
from computepool.hub.dispatch.parked import ParkedCalls
from computepool.hub.dispatch.registry import Registry
from computepool.hub.dispatch.rounds import Ending, Rounds
from computepool.hub.metrics import HubMetrics
from computepool.hub.services.callers import Callers
from computepool.hub.services.keyring import Keyring
from computepool.hub.services.rate_limits import RateLimits
from computepool.hub.services.submissions import Submission
from computepool.hub.services.transitions import EndedAttempt
from computepool.hub.store.connect import Pool
from computepool.hub.store.jobs import Job
from computepool.wire.attempts import CompleteOutcome

Item = TypeVar("Item")
Answer = TypeVar("Answer")
# How calls of one kind are written: together or, to measure what that is worth, each by itself.
Lane: TypeAlias = GroupCommit[Item, Answer] | SingleCommit[Item, Answer]


@dataclass(slots=True)
class Hub:
    settings: HubSettings
    pool: Pool
    keyring: Keyring
    blobs: LocalBlobs
    callers: Callers
    parked: ParkedCalls
    rounds: Rounds
    registry: Registry
    beats: Beats
    metrics: HubMetrics
    weights: WeightBook
    door: Door
    backlog: Backlog
    share: FairShare
    evidence: Evidence
    elsewhere: Elsewhere
    submits: Lane[Submission, Job]
    large_submits: Lane[Submission, Job]
    completions: Lane[Ending, CompleteOutcome]
    rate_limits: RateLimits = field(default_factory=RateLimits)
    pace: Pace = field(default_factory=Pace)
    # The beat that nodes are told, stretched with the fleet.
    beat_seconds: float = 30.0
    # Set when the process is asked to end: no call is parked any more.
    closing: bool = False

    def on_end(self, ended: Sequence[EndedAttempt]) -> None:
        """Attempts have left their slots: their accounts are charged what it took, their nodes get the credit."""
        self.share.note_ended(ended)
        self.evidence.note_ended(ended)

    def forget_nodes(self) -> None:
        """Somewhere an owner or the operator has changed something about nodes."""
        self.callers.forget_nodes()
        self.registry.forget_all_soon()

    def close_calls(self) -> None:
        self.closing = True
        self.parked.dismiss_all()
