"""What one hub process is made of. Built once, in `main.py`, and handed to the transports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from computepool.core.ids import AccountId
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
from computepool.hub.dispatch.reception import Reception
from computepool.hub.dispatch.registry import Registry
from computepool.hub.dispatch.rounds import Ending, Rounds
from computepool.hub.live.feed import Live
from computepool.hub.metrics import HubMetrics
from computepool.hub.payments.port import Providers
from computepool.hub.services.blocked_inputs import BlockedInputs
from computepool.hub.services.callers import Callers
from computepool.hub.services.cash_terms import CashBook
from computepool.hub.services.challenges import Examiner
from computepool.hub.services.keyring import Keyring
from computepool.hub.services.plugs import Plugs
from computepool.hub.services.prices import PriceBook
from computepool.hub.services.rate_limits import RateLimits
from computepool.hub.services.sittings import Sittings
from computepool.hub.services.submissions import Submission, Submissions
from computepool.hub.services.transitions import EndedAttempt
from computepool.hub.store.connect import Pool
from computepool.hub.store.hub import Change, ChangeKind
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
    reception: Reception
    rounds: Rounds
    registry: Registry
    prices: PriceBook
    cash_book: CashBook
    providers: Providers
    beats: Beats
    metrics: HubMetrics
    weights: WeightBook
    door: Door
    backlog: Backlog
    share: FairShare
    evidence: Evidence
    elsewhere: Elsewhere
    submissions: Submissions
    submits: Lane[Submission, Job]
    large_submits: Lane[Submission, Job]
    completions: Lane[Ending, CompleteOutcome]
    live: Live
    # What pseudonyms are made with.
    pseudonym_key: bytes
    rate_limits: RateLimits = field(default_factory=RateLimits)
    pace: Pace = field(default_factory=Pace)
    examiner: Examiner = field(default_factory=Examiner)
    sittings: Sittings = field(default_factory=Sittings)
    blocked_inputs: BlockedInputs = field(default_factory=BlockedInputs)
    # The beat that nodes are told, stretched with the fleet.
    beat_seconds: float = 30.0
    plugs: Plugs = field(default_factory=Plugs)
    # Whether the dashboard is served from here.
    has_site: bool = False
    # Set when the process is asked to end: no call is parked any more.
    closing: bool = False

    def on_end(self, ended: Sequence[EndedAttempt]) -> None:
        """Attempts have left their slots: their accounts are charged what it took, their nodes get the credit."""
        self.reception.forget_sent(attempt.attempt_id for attempt in ended)
        self.share.note_ended(ended)
        self.evidence.note_ended(ended)
        if any(attempt.cause is not None for attempt in ended):
            # Slices may be back in the queue.
            self.rounds.hear_of_queue()

    def hear_changes(self, changes: Sequence[Change] | None) -> None:
        """What owners and the operator have changed, at whichever hub; None: nobody knows what."""
        if changes is None:
            self.callers.forget_all()
            self.submissions.allowances.forget_all()
            self.registry.forget_all_soon()
            self.live.check_soon(None)
        for change in changes or ():
            if change.subject_id is None:
                continue
            if change.kind is ChangeKind.NODE:
                self.callers.forget_node(change.subject_id)
            elif change.kind is ChangeKind.ACCOUNT:
                self.callers.forget_account(change.subject_id)
                self.submissions.allowances.forget(change.subject_id)
                self.live.check_soon(AccountId(change.subject_id))
        self.callers.note_heard()

    def close_calls(self) -> None:
        self.closing = True
        self.parked.dismiss_all()
        self.live.close()
