"""A run as its owner knows it: seats and the VNodes on them, epoch, checkpoints; what happens to it and what follows.

Records only; `epochs.py` decides. What a run's row does not hold (sessions, beats, suspicions) is its owner's memory
and starts anew with the next owner. Times are seconds of the owner's clock. Steps count from 1: step n is the n-th
update, checkpoint n the state after it, and checkpoint 0 the state that follows from the seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from uuid import UUID

from computepool.core.ids import AttemptId, NodeId, RunId
from computepool.core.jobs.cause import Cause
from computepool.core.networks.placement import Location, SeatId
from computepool.core.networks.spec import Exactness

# A VNode and its replica.
Part = tuple[str, int]


def seat_id(index: int) -> SeatId:
    """Of a run's seats in order, which are the slices of its job."""
    return SeatId(f"seat-{index}")


class RunState(str, Enum):
    # Not every VNode has a PNode whose host has joined.
    PLACING = "placing"
    PREPARING = "preparing"
    RUNNING = "running"
    # It ran before: VNodes were lost, or everybody goes back to the last checkpoint.
    RECOVERING = "recovering"
    STOPPING = "stopping"
    STOPPED = "stopped"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


OVER = frozenset({RunState.STOPPED, RunState.SUCCEEDED, RunState.FAILED})


class FeedKind(str, Enum):
    """What a line of the run's feed is about."""

    STEP = "step"
    CHECKPOINT = "checkpoint"
    PLACEMENT = "placement"
    FAILURE = "failure"
    RECOVERY = "recovery"
    STATE = "state"
    AUDIT = "audit"


@dataclass(frozen=True, slots=True)
class Seat:
    id: SeatId
    # None: nobody fills it.
    attempt_id: AttemptId | None = None
    node_id: NodeId | None = None
    numeric_class: str = ""
    # The start of the node's agent under which it was leased; None: not known.
    boot_id: UUID | None = None
    # Where other hosts can dial it, once that is proven; empty: by relay.
    address: str = ""
    leased_at: float = 0.0
    # A session is open.
    joined: bool = False
    # When the last one closed, while none is open.
    closed_at: float | None = None
    heard_at: float = 0.0
    prepared_epoch: int = 0
    # As the host last told, and when it last told another figure.
    watermark: int = 0
    moved_at: float = 0.0
    # The same of what it does for requests.
    answering: int = 0
    answered_at: float = 0.0
    # Since when it is under suspicion, and when it is next asked for a sign of life.
    suspected_at: float | None = None
    probe_at: float = 0.0
    # Who says that it is gone, in this epoch.
    reporters: frozenset[SeatId] = frozenset()
    # Its owner wants the machine back since then.
    leaving_at: float | None = None
    # How often another host could not reach it though it was alive.
    link_faults: int = 0

    @property
    def is_vacant(self) -> bool:
        return self.attempt_id is None

    def __str__(self) -> str:
        return f"{self.id} (PNode {self.node_id})" if self.node_id else self.id


@dataclass(frozen=True, slots=True)
class Avoidance:
    """Why a node gets no seat for a while: it has just lost one."""

    until: float
    # Of this start of its agent alone: who was started anew is trusted at once. None: of any.
    boot_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class Run:
    id: RunId
    vnode_ids: tuple[str, ...]
    # The VNode whose host tells the curve.
    loss: str
    # How many steps it is to have made in the end.
    steps: int
    seats: Mapping[SeatId, Seat]
    replicas: int = 1
    exact: Exactness = Exactness.PREFERRED
    # When all steps are made it stays where it is and answers, until it is stopped or its hours are over.
    serves: bool = False
    state: RunState = RunState.PLACING
    epoch: int = 1
    # Empty until it was first placed. A VNode whose seat is vacant is lost.
    locations: tuple[Location, ...] = ()
    # Where each VNode was placed at first. A seat that lost all of its own gets them back once it is filled again.
    home: Mapping[Part, SeatId] = field(default_factory=dict)
    # The curve is whole up to this step.
    step: int = 0
    # Later steps whose losses came before those between, and when the first of them did: of this epoch.
    ahead: frozenset[int] = frozenset()
    ahead_at: float = 0.0
    # The newest step that every VNode has stored.
    checkpoint_step: int = 0
    # VNodes that have stored a later step: reports of this epoch and of those before it back to `reports_from_epoch`,
    # since which all hosts would compute the same bits.
    reported: Mapping[int, frozenset[str]] = field(default_factory=dict)
    reports_from_epoch: int = 1
    numeric_class: str = ""
    # 0: exact so far.
    inexact_from_step: int = 0
    # Epochs since the last new checkpoint that began with a loss or a stall.
    recoveries: int = 0
    # Why it waits or ended, in words.
    message: str = ""
    # From here on it is of the owner's memory.
    prepare_epoch: int = 0
    prepare_at: float = 0.0
    # Where this epoch starts, and the step after which its hosts stop and store.
    from_step: int = 0
    until_step: int = 0
    # Of this epoch.
    epoch_step: int = 0
    stepped_at: float | None = None
    step_seconds: float | None = None
    gap_seconds_max: float = 0.0
    place_at: float = 0.0
    stop_at: float | None = None
    # When what was set aside for it is used up.
    ends_at: float | None = None
    # While it serves: when its hosts were last paid to.
    paid_at: float = 0.0
    # Its steps are audited: it ends, or only serves, when the audits are settled; since when it waits for that.
    audited: bool = False
    settle_at: float | None = None
    # Stalls since the last new checkpoint, and the seats that were given to others because of them.
    stalls: int = 0
    replaced: frozenset[SeatId] = frozenset()
    avoided: Mapping[NodeId, Avoidance] = field(default_factory=dict)

    @property
    def is_serving(self) -> bool:
        """There is nothing left to train, though the last steps may still be under audit."""
        return self.serves and self.checkpoint_step >= self.steps

    @property
    def taken_seats(self) -> list[Seat]:
        """Seats that VNodes are on, vacant or not, in order."""
        named = {location.seat for location in self.locations}
        return [seat for id, seat in sorted(self.seats.items()) if id in named]

    def list_parts(self, seat: SeatId) -> list[Part]:
        return [(each.vnode_id, each.replica) for each in self.locations if each.seat == seat]

    def hosts(self, seat: SeatId, vnode_id: str) -> bool:
        return any(each.vnode_id == vnode_id and each.seat == seat for each in self.locations)


# What happens. Whatever a host says carries its attempt: an earlier one of the same seat is not listened to.


@dataclass(frozen=True, slots=True)
class SeatFill:
    seat: SeatId
    attempt_id: AttemptId
    node_id: NodeId
    numeric_class: str
    boot_id: UUID | None = None


@dataclass(frozen=True, slots=True)
class SeatsFilled:
    """Leases were written for vacant seats; `moves` says where VNodes that had no host are placed anew."""

    fills: tuple[SeatFill, ...]
    moves: Mapping[Part, SeatId]


@dataclass(frozen=True, slots=True)
class NobodyFits:
    """No PNode can take what is to be placed, each reason in words."""

    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HostJoined:
    seat: SeatId
    attempt_id: AttemptId
    address: str = ""


@dataclass(frozen=True, slots=True)
class BeatHeard:
    seat: SeatId
    attempt_id: AttemptId
    epoch: int = 0
    watermark: int = 0
    # The same of what it does for requests.
    answering: int = 0


@dataclass(frozen=True, slots=True)
class HostPrepared:
    seat: SeatId
    attempt_id: AttemptId
    epoch: int


@dataclass(frozen=True, slots=True)
class SessionClosed:
    seat: SeatId
    attempt_id: AttemptId


@dataclass(frozen=True, slots=True)
class PeerReported:
    by: SeatId
    seat: SeatId
    epoch: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ProbeAnswered:
    """A sign of life of a host without a session: it could be dialled, or its agent was heard with it."""

    seat: SeatId
    attempt_id: AttemptId


@dataclass(frozen=True, slots=True)
class LeasesLost:
    """The ordinary course of attempts has ended these: silence, a restart, a report of the agent."""

    attempt_ids: frozenset[AttemptId]


@dataclass(frozen=True, slots=True)
class AnswerMissed:
    """Somebody has waited so long for an answer of these seats, which are named in the order of the network."""

    epoch: int
    seats: tuple[SeatId, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class LeaveAnnounced:
    seat: SeatId
    attempt_id: AttemptId
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointReported:
    """The bytes are stored: whoever passes this on has looked."""

    seat: SeatId
    attempt_id: AttemptId
    epoch: int
    step: int
    vnode_id: str


@dataclass(frozen=True, slots=True)
class StepReported:
    seat: SeatId
    attempt_id: AttemptId
    epoch: int
    step: int


@dataclass(frozen=True, slots=True)
class FaultReported:
    seat: SeatId
    attempt_id: AttemptId
    epoch: int
    vnode_id: str
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class StepsRejected:
    """An audit: what this host did after `step` does not count, and it loses its seat. It may be gone already."""

    seat: SeatId
    attempt_id: AttemptId
    node_id: NodeId
    step: int
    # False: somebody was wrong, and it is not known who.
    blamed: bool
    message: str


@dataclass(frozen=True, slots=True)
class AuditsOpened:
    """Its hosts tell what can be audited."""


@dataclass(frozen=True, slots=True)
class AuditsSettled:
    """Nothing of what is stored is under audit any more."""


@dataclass(frozen=True, slots=True)
class StopAsked:
    reason: str = "stopped by its owner"


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The job that pays for the seats was cancelled or has expired."""


@dataclass(frozen=True, slots=True)
class Ticked:
    pass


Event = (
    SeatsFilled
    | NobodyFits
    | HostJoined
    | BeatHeard
    | HostPrepared
    | SessionClosed
    | PeerReported
    | ProbeAnswered
    | LeasesLost
    | AnswerMissed
    | LeaveAnnounced
    | CheckpointReported
    | StepReported
    | FaultReported
    | StepsRejected
    | AuditsOpened
    | AuditsSettled
    | StopAsked
    | JobEnded
    | Ticked
)


# What follows. Orders to hosts leave after what was decided is written; one of an older epoch is dropped.


@dataclass(frozen=True, slots=True)
class PlaceSeats:
    """Find PNodes for these: all that is lost, or everything if nothing was placed yet."""

    seats: tuple[SeatId, ...]


@dataclass(frozen=True, slots=True)
class SendPrepare:
    seat: SeatId
    attempt_id: AttemptId
    epoch: int


@dataclass(frozen=True, slots=True)
class SendRun:
    seat: SeatId
    attempt_id: AttemptId
    epoch: int
    from_step: int
    until_step: int


@dataclass(frozen=True, slots=True)
class SendDrop:
    seat: SeatId
    attempt_id: AttemptId
    epoch: int


@dataclass(frozen=True, slots=True)
class SendProbe:
    seat: SeatId
    attempt_id: AttemptId


@dataclass(frozen=True, slots=True)
class VacateSeat:
    """The attempt is over: it is paid to the last complete checkpoint, and its slot is free."""

    seat: SeatId
    attempt_id: AttemptId
    node_id: NodeId
    cause: Cause


@dataclass(frozen=True, slots=True)
class KeepStep:
    """This step's loss counts."""

    step: int


@dataclass(frozen=True, slots=True)
class KeepReport:
    """What this VNode has stored of this step counts."""

    step: int
    vnode_id: str


@dataclass(frozen=True, slots=True)
class CompleteCheckpoint:
    """Every VNode has stored this step: it is what is returned to, and what hosts are paid to."""

    step: int


@dataclass(frozen=True, slots=True)
class PaySeats:
    """Hosts have served to here, and are paid for it whatever becomes of them."""


@dataclass(frozen=True, slots=True)
class ForgetSteps:
    """Checkpoints after this step are void. If an attempt is named, it is paid to this step and no further."""

    step: int
    attempt_id: AttemptId | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Tell:
    kind: FeedKind
    message: str
    step: int = 0


@dataclass(frozen=True, slots=True)
class EndRun:
    state: RunState
    # Otherwise hosts are paid to the last complete checkpoint.
    pays_to_now: bool


Effect = (
    PlaceSeats
    | SendPrepare
    | SendRun
    | SendDrop
    | SendProbe
    | VacateSeat
    | KeepStep
    | KeepReport
    | CompleteCheckpoint
    | PaySeats
    | ForgetSteps
    | Tell
    | EndRun
)


@dataclass(frozen=True, slots=True)
class Decision:
    run: Run
    effects: tuple[Effect, ...] = ()
