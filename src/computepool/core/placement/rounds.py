"""A round: which heads of the queue to take, and which free slot each of them gets.

The queue lies in runs, one per shape, priority class and account. A slot serves the most demanding shape it can, so
that a big card is not spent on work that a small one could do; then the highest class; then the account that has had
least; then, inside a run, own priority and age. A slice takes the slot with the best score. Plain bookkeeping over a
fleet index: the caller brings heads from the database, and time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol

from computepool.core.ids import AccountId, JobId, NodeId, ShapeId
from computepool.core.jobs.order import PriorityClass
from computepool.core.placement.fleet import FleetIndex
from computepool.core.placement.scorers import Candidate
from computepool.core.placement.shape import Shape
from computepool.core.placement.weights import Preference

# A slice keeps away from the node that failed it last, unless nobody else took it for this long.
AVOID_SECONDS = 10
# A slice leaves a slot here alone while another hub has a better one, but not for longer than this.
ELSEWHERE_SECONDS = 0.3
# Heads that cannot be placed are passed over, and more of their run is looked at, up to this many.
LOOK_FURTHER_MAX = 512


class Run(NamedTuple):
    """One ordered run of the queue."""

    shape_id: ShapeId
    priority_class: PriorityClass
    account_id: AccountId


@dataclass(frozen=True, slots=True)
class Head:
    """A queued slice that is next in its run."""

    job_id: JobId
    slice_index: int
    run: Run
    priority: int
    queued_at: datetime
    avoid_node_id: NodeId | None
    attempt_count: int


class Wish(NamedTuple):
    """How a job wants its slots chosen."""

    prefer: Preference
    weight_set: str


@dataclass(frozen=True, slots=True)
class Pair:
    head: Head
    candidate: Candidate


class Share(Protocol):
    """The fair share between accounts."""

    def plan(self, accounts: Collection[AccountId], count: int) -> Mapping[AccountId, int]:
        """How many of the next `count` grants each of these accounts should get."""


# Whether another hub has a free slot that is better for this shape and wish than this candidate; and for which slice.
IsBetterElsewhere = Callable[[Shape, Preference, Candidate, tuple[JobId, int]], bool]
Runs = Mapping[ShapeId, Mapping[PriorityClass, Set[AccountId]]]


class Round:
    """Takes slots from the fleet as it pairs them."""

    def __init__(
        self,
        fleet: FleetIndex,
        shapes: Mapping[ShapeId, Shape],
        runs: Runs,
        share: Share,
        *,
        grants_max: int,
        is_better_elsewhere: IsBetterElsewhere | None = None,
        on_pair: Callable[[Candidate], None] = lambda _: None,
    ) -> None:
        self._fleet = fleet
        self._shapes = shapes
        self._runs = runs
        self._share = share
        self._grants_max = grants_max
        self._is_better_elsewhere = is_better_elsewhere
        self._on_pair = on_pair
        # Runs with nothing more to look at in this round, and how far others were looked into.
        self._closed: set[Run] = set()
        self._looked: Counter[Run] = Counter()
        self._placed: Counter[Run] = Counter()
        self.pairs: list[Pair] = []
        self.undone: list[Candidate] = []
        # Runs that had fewer slices than were asked for: they are empty now, or others are at them.
        self.emptied: set[Run] = set()
        # A slice was left for another hub, and should be looked at again soon.
        self.postponed = False

    def list_takes(self) -> dict[Run, int]:
        """How many heads to take from which runs; empty when the round is over."""
        takes: dict[Run, int] = {}
        budget = min(len(self._fleet), self._grants_max - len(self.pairs))
        for shape_id in sorted(self._runs, key=lambda id: demand(self._shapes[id]), reverse=True):
            if budget <= 0:
                break
            planned = self._plan_shape(shape_id, budget)
            budget -= sum(planned.values())
            # What this round has placed is still in front of its run until it is written.
            takes |= {run: n + self._placed[run] + self._looked[run] for run, n in planned.items()}
        return {run: min(n, LOOK_FURTHER_MAX) for run, n in takes.items()}

    def _plan_shape(self, shape_id: ShapeId, budget: int) -> dict[Run, int]:
        shape = self._shapes[shape_id]
        count = self._fleet.count_feasible(shape, ceiling=shape.ceiling_microcredits_per_hour, limit=budget)
        open_runs = self._list_open(shape_id) if count else None
        if open_runs is None:
            return {}
        priority_class, accounts = open_runs
        planned = self._share.plan(accounts, count)
        return {Run(shape_id, priority_class, account): n for account, n in planned.items() if n}

    def _list_open(self, shape_id: ShapeId) -> tuple[PriorityClass, list[AccountId]] | None:
        """The highest class that has something left to look at; lower ones wait until it has nothing more."""
        for priority_class in reversed(PriorityClass):
            accounts = self._runs[shape_id].get(priority_class, ())
            found = [a for a in accounts if Run(shape_id, priority_class, a) not in self._closed]
            if found:
                return priority_class, found
        return None

    def pair(
        self, takes: Mapping[Run, int], heads: Sequence[Head], wishes: Mapping[JobId, Wish], *, now: datetime
    ) -> None:
        """Gives each head the best slot that may run it. Heads come in the order of their runs."""
        got = Counter(head.run for head in heads)
        placed = {(pair.head.job_id, pair.head.slice_index) for pair in self.pairs}
        left: Counter[Run] = Counter()
        for head in sorted(heads, key=self._urgency):
            if (head.job_id, head.slice_index) in placed:
                continue
            candidate = self._choose(head, wishes[head.job_id], now)
            if candidate is None:
                left[head.run] += 1
                continue
            self._fleet.take(candidate.slot.node_id, candidate.slot.name)
            self._placed[head.run] += 1
            self._on_pair(candidate)
            self.pairs.append(Pair(head, candidate))
        for run, asked in takes.items():
            self._note_taken(run, asked, got[run], left[run])

    def _note_taken(self, run: Run, asked: int, got: int, left: int) -> None:
        if got < asked:
            self._closed.add(run)
            if not left:
                self.emptied.add(run)
        elif left:
            # Those in front keep away from the nodes that are free; the slices behind them may not.
            if asked >= LOOK_FURTHER_MAX:
                self._closed.add(run)
            self._looked[run] = 4 * max(asked, left)

    def _urgency(self, head: Head) -> tuple[tuple[int, ...], int, int, datetime]:
        negated = tuple(-d for d in demand(self._shapes[head.run.shape_id]))
        return negated, -head.run.priority_class.rank, -head.priority, head.queued_at

    def _choose(self, head: Head, wish: Wish, now: datetime) -> Candidate | None:
        shape = self._shapes[head.run.shape_id]
        waited = now - head.queued_at
        avoid = head.avoid_node_id if waited < timedelta(seconds=AVOID_SECONDS) else None
        candidate = self._fleet.best(
            shape, wish.prefer, weights=wish.weight_set, ceiling=shape.ceiling_microcredits_per_hour, avoid=avoid
        )
        if candidate is None or self._is_better_elsewhere is None:
            return candidate
        if waited >= timedelta(seconds=ELSEWHERE_SECONDS):
            return candidate
        if self._is_better_elsewhere(shape, wish.prefer, candidate, (head.job_id, head.slice_index)):
            self.postponed = True
            return None
        return candidate

    def undo(self) -> None:
        """The leases were not written. The slots are for the caller to give back, if they are still offered."""
        self.undone, self.pairs = [pair.candidate for pair in self.pairs], []


def demand(shape: Shape) -> tuple[int, int, int]:
    """How much a shape asks of a slot: a slot serves the most demanding one that it can give."""
    return int(shape.gpu), shape.vram_bytes, int(bool(shape.tiers))
