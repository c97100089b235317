"""What one hub process is made of. Built once, in `main.py`, and handed to the transports."""

from __future__ import annotations

from dataclasses import dataclass, field

from computepool.hub.blobs.local import LocalBlobs
from computepool.hub.config import HubSettings
from computepool.hub.dispatch.beats import Beats
from computepool.hub.dispatch.group_commit import GroupCommit, SingleCommit
from computepool.hub.dispatch.pace import Pace
from computepool.hub.dispatch.parked import ParkedCalls
from computepool.hub.dispatch.registry import Registry
from computepool.hub.dispatch.rounds import Rounds
from computepool.hub.metrics import HubMetrics
from computepool.hub.services.attempts import Completion
from computepool.hub.services.callers import Callers
from computepool.hub.services.jobs import Submission
from computepool.hub.services.keyring import Keyring
from computepool.hub.services.rate_limits import RateLimits
from computepool.hub.store.connect import Pool
from computepool.hub.store.jobs import Job
from computepool.wire.attempts import CompleteAnswer


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
    submits: GroupCommit[Submission, Job] | SingleCommit[Submission, Job]
    completions: GroupCommit[Completion, CompleteAnswer] | SingleCommit[Completion, CompleteAnswer]
    rate_limits: RateLimits = field(default_factory=RateLimits)
    pace: Pace = field(default_factory=Pace)
    # The beat that nodes are told, stretched with the fleet.
    beat_seconds: float = 30.0
    # Set when the process is asked to end: no call is parked any more.
    closing: bool = False

    def close_calls(self) -> None:
        self.closing = True
        self.parked.dismiss_all()
