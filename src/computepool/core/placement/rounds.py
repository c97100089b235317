"""A round: which heads of the queue to take, and which free slot each of them gets.

The queue lies in runs, one per shape, priority class and account. A slot serves the most demanding shape it can, so
that a big card is not spent on work that a small one could do; then the highest class; then the account that has had
least; then, inside a run, own priority and age. A slice takes the slot with the best score. Plain bookkeeping over
the fleet: the caller brings heads from the database, and time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol

from computepool.core.ids import AccountId, JobId, NodeId, ShapeId
from computepool.core.jobs.order import PriorityClass
from computepool.core.placement.outlook import Outlook, Runs
from computepool.core.placement.pools import Fleet
from computepool.core.placement.scorers import Candidate
from computepool.core.placement.shape import Shape
from computepool.core.placement.weights import Preference

# A slice keeps away from the node that failed it last, unless nobody else took it for this long.
AVOID_SECONDS = 10
# A slice leaves a slot here alone while another hub has a better one, for longer the better that is: so the hub that
# has the best one takes it first, the next best only if that one did not, and a scarce card last of all.
ELSEWHERE_SECONDS_MIN = 0.1
ELSEWHERE_SECONDS_MAX = 0.6
# Heads that cannot be placed are passed over, and more of their run is looked at, up to this many.
LOOK_FURTHER_MAX = 512
# Who has few slots to fill asks for no spare ones: the others would miss them more than a look costs.
SPARES_FROM = 8
# A round doubles what it asks for with each look that has brought less than it should, so often at most. Where others
# take from the same queue it begins as if there had been so many.
SHORTAGES_MAX = 3
SHORTAGES_CROWDED = 2


class Run(NamedTuple):
    """One ordered run of the queue."""

    shape_id: ShapeId
    priority_class: PriorityClass
    account_id: AccountId


class Head(NamedTuple):
    """A queued slice that is next in its run."""

    job_id: JobId
    slice_index: int
    run: Run
    priority: int
    queued_at: datetime
    avoid_node_id: NodeId | None
    attempt_count: int


class Seen(NamedTuple):
    """What a look at a run has brought: what stands first in it, and whether that is all."""

    heads: Sequence[Head]
    whole: bool


class Wish(NamedTuple):
    """How a job wants its slots chosen."""

    prefer: Preference
    weight_set: str


class Pair(NamedTuple):
    head: Head
    candidate: Candidate
    # The most that the slice may cost an hour.
    ceiling: int | None = None


class Share(Protocol):
    """The fair share between accounts."""

    def plan(
        self, accounts: Collection[AccountId], count: int, caps: Mapping[AccountId, int]
    ) -> Mapping[AccountId, int]:
        """How many of the next `count` grants each of these accounts should get; none more than its cap."""


# How much better a free slot of another hub is for this shape and wish than this candidate, for which slice of which
# account; 0: none.
GapElsewhere = Callable[[Shape, Preference, Candidate, tuple[JobId, int], AccountId], float]


class Round:
    """Takes slots from the fleet as it pairs them."""

    def __init__(
        self,
        fleet: Fleet,
        shapes: Mapping[ShapeId, Shape],
        runs: Runs,
        share: Share,
        *,
        grants_max: int,
        gap_elsewhere: GapElsewhere | None = None,
        on_pair: Callable[[Candidate], None] = lambda _: None,
        is_aside: Callable[[tuple[JobId, int]], bool] = lambda _: False,
        find_count: Callable[[Run], int | None] = lambda _: None,
        crowded: bool = False,
        outlook: Outlook | None = None,
    ) -> None:
        """`is_aside` names slices that get nothing for the moment; `find_count` tells how many a run has, if that is
        known: whoever is served first has often little, and to find that out each time would take a look. One more is
        asked for than there should be. Where it is `crowded`, others take from the same queue and have often taken
        what was there: a round with many slots to fill asks for spare ones from the beginning, and counts are not
        doubted, because what is asked for is kept from the others meanwhile. The `outlook` remembers from round to
        round which shapes fit nowhere."""
        self._fleet = fleet
        self._shapes = shapes
        self._runs = runs
        self._share = share
        self._grants_max = grants_max
        self._gap_elsewhere = gap_elsewhere
        self._on_pair = on_pair
        self._is_aside = is_aside
        self._find_count = find_count
        self._crowded = crowded
        # Shapes that ask for the same, the most demanding first.
        self._levels = _group_by_demand((outlook or Outlook()).list_hopeful(fleet, shapes, runs), shapes)
        # Runs with nothing more to look at in this round, how far others were looked into, what was placed of them.
        self._closed: set[Run] = set()
        self._looked: Counter[Run] = Counter()
        self._placed: Counter[Run] = Counter()
        # How many slices of each account may be placed before the fair share is asked again.
        self._quotas: Counter[AccountId] = Counter()
        # And how many more if others have less than that. The more often that was so, the more are asked for.
        self._spares: Counter[AccountId] = Counter()
        self._shortages = SHORTAGES_CROWDED if crowded else 0
        self._takes: dict[Run, int] | None = None
        self.pairs: list[Pair] = []
        self.undone: list[Candidate] = []
        # Runs of which every slice was placed.
        self.emptied: set[Run] = set()
        # How many slices are left in the runs that were looked at, where that is known; and runs that had more than
        # was believed.
        self.left: dict[Run, int | None] = {}
        self._miscounted: set[Run] = set()
        # What whoever brings the heads has seen of runs, for those who will ask next.
        self.seen: dict[Run, Seen] = {}
        # Runs that more was taken from than was used: whoever looked meanwhile did not see it.
        self.spared: set[Run] = set()
        # Slices that were left for another hub, and should be looked at again after so many seconds.
        self.postponed: list[Head] = []
        self.postponed_seconds: float | None = None

    def list_takes(self) -> dict[Run, int]:
        """How many heads to take from which runs; empty when the round is over.

        One level of demand at a time, and in it one class: what stands lower waits until that has nothing more.
        """
        if self._takes is None:
            self._takes = next((takes for level in self._levels if (takes := self._plan_level(level))), {})
        return self._takes

    def _plan_level(self, level: Sequence[ShapeId]) -> dict[Run, int]:
        room = min(len(self._fleet), self._grants_max - len(self.pairs))
        if room <= 0:
            return {}
        feasible = {id: count for id in level if (count := self._count_feasible(id, room))}
        # Whoever has slots of their own, or of a pool, may find there what nobody else is given.
        apart = self._count_apart([id for id in level if id not in feasible], room)
        if not feasible and not apart:
            return {}
        open_runs = self._list_open(level if apart else feasible, feasible, apart)
        # As many as the shape with most slots could use: shapes may fit the same slots. The next look takes more.
        count = max((feasible.get(run.shape_id, 0) for run in open_runs), default=0)
        if not count:
            count = max((apart.get((run.shape_id, run.account_id), 0) for run in open_runs), default=0)
        accounts = {run.account_id for run in open_runs}
        self._plan_quotas(accounts, count, self._list_caps(open_runs))
        return {
            run: min(LOOK_FURTHER_MAX, wanted + self._count_more(run))
            for run in open_runs
            if (wanted := self._quotas[run.account_id] + self._spares[run.account_id])
        }

    def _plan_quotas(self, accounts: Collection[AccountId], count: int, caps: Mapping[AccountId, int]) -> None:
        self._quotas.clear()
        self._spares.clear()
        if not accounts:
            return
        self._quotas.update(self._share.plan(accounts, count, caps))
        if self._shortages and count >= SPARES_FROM:
            more = count * 2 ** min(self._shortages, SHORTAGES_MAX)
            self._spares.update(self._share.plan(accounts, more, caps))
            self._spares.subtract(self._quotas)

    def _count_more(self, run: Run) -> int:
        """What is asked for beside what can be used: what was placed is seen again, and what was passed over too."""
        one_more = not self._crowded and self._find_unplaced(run) is not None
        return self._placed[run] + self._looked[run] + int(one_more)

    def _list_caps(self, runs: Iterable[Run]) -> dict[AccountId, int]:
        """What accounts can use at most, of those of whom it is known."""
        caps: Counter[AccountId] = Counter()
        unknown: set[AccountId] = set()
        for run in runs:
            count = self._find_unplaced(run)
            if count is None:
                unknown.add(run.account_id)
            else:
                caps[run.account_id] += count
        return {account_id: cap for account_id, cap in caps.items() if account_id not in unknown}

    def _find_unplaced(self, run: Run) -> int | None:
        """How many slices a run has still, if that is known."""
        count = None if run in self._miscounted else self._find_count(run)
        return None if count is None else max(0, count - self._placed[run])

    def _count_feasible(self, shape_id: ShapeId, limit: int) -> int:
        shape = self._shapes[shape_id]
        return self._fleet.count_feasible(shape, ceiling=shape.ceiling_microcredits_per_hour, limit=limit)

    def _count_apart(self, shape_ids: Iterable[ShapeId], limit: int) -> dict[tuple[ShapeId, AccountId], int]:
        """What is free for some accounts alone: their own slots, whatever these ask of others, and private pools."""
        counts = {}
        for shape_id in shape_ids:
            shape = self._shapes[shape_id]
            waiting = self._runs.get(shape_id, {}).values()
            for account_id in {each for accounts in waiting for each in self._fleet.list_apart(accounts)}:
                count = self._fleet.count_apart(
                    shape, account_id, ceiling=shape.ceiling_microcredits_per_hour, limit=limit
                )
                if count:
                    counts[shape_id, account_id] = count
        return counts

    def _list_open(
        self,
        shape_ids: Iterable[ShapeId],
        feasible: Container[ShapeId],
        apart: Container[tuple[ShapeId, AccountId]],
    ) -> list[Run]:
        """Of these shapes: the runs of the highest class that has something left to look at, and slots that it fits.

        The queue may move while a round waits for its heads: a shape may be gone from it.
        """
        for priority_class in reversed(PriorityClass):
            found = [
                run
                for shape_id in shape_ids
                for account_id in self._runs.get(shape_id, {}).get(priority_class, ())
                if (run := Run(shape_id, priority_class, account_id)) not in self._closed
                and (shape_id in feasible or (shape_id, account_id) in apart)
                and self._find_unplaced(run) != 0
            ]
            if found:
                return found
        return []

    def pair(
        self, takes: Mapping[Run, int], heads: Sequence[Head], wishes: Mapping[JobId, Wish], *, now: datetime
    ) -> None:
        """Gives each head the best slot that may run it, an account's own by priority and age."""
        got = Counter(head.run for head in heads)
        placed = {(pair.head.job_id, pair.head.slice_index) for pair in self.pairs}
        left: Counter[Run] = Counter()
        skipped: Counter[Run] = Counter()
        spare: list[Head] = []
        for head in sorted(heads, key=queue_order):
            if (head.job_id, head.slice_index) in placed:
                continue
            if self._quotas[head.run.account_id] <= 0:
                spare.append(head)
            elif self._place(head, wishes, now):
                self._quotas[head.run.account_id] -= 1
            else:
                left[head.run] += 1
        missing = self._quotas.total()
        self._shortages += bool(missing)
        for head in spare:
            if not missing or self._spares[head.run.account_id] <= 0:
                skipped[head.run] += 1
            elif self._place(head, wishes, now):
                self._spares[head.run.account_id] -= 1
                missing -= 1
            else:
                left[head.run] += 1
        self.spared.update(skipped)
        for run, asked in takes.items():
            seen_all = got[run] < asked
            self._note_taken(run, seen_all=seen_all, left=left[run], skipped=skipped[run])
            self.left[run] = self._count_left(run, got[run], seen_all=seen_all)
        self._takes = None

    def _count_left(self, run: Run, got: int, *, seen_all: bool) -> int | None:
        """None where nobody knows, or where there was more than was believed."""
        known = got if seen_all else self._find_count(run)
        if known is not None and known < got:
            self._miscounted.add(run)
        if known is None or run in self._miscounted:
            return None
        if known == self._placed[run]:
            self.emptied.add(run)
        return known - self._placed[run]

    def _place(self, head: Head, wishes: Mapping[JobId, Wish], now: datetime) -> bool:
        is_aside = self._is_aside((head.job_id, head.slice_index))
        candidate = None if is_aside else self._choose(head, wishes[head.job_id], now)
        if candidate is not None:
            self._take(head, candidate)
        return candidate is not None

    def _take(self, head: Head, candidate: Candidate) -> None:
        self._fleet.take(candidate.slot.node_id, candidate.slot.name)
        self._placed[head.run] += 1
        self._on_pair(candidate)
        shape = self._shapes[head.run.shape_id]
        self.pairs.append(Pair(head, candidate, shape.ceiling_microcredits_per_hour))

    def _note_taken(self, run: Run, *, seen_all: bool, left: int, skipped: int) -> None:
        if skipped:
            return
        if seen_all:
            self._closed.add(run)
            if not left:
                self.emptied.add(run)
        elif left:
            # Those in front keep away from the nodes that are free; the slices behind them may not.
            if self._looked[run] >= LOOK_FURTHER_MAX:
                self._closed.add(run)
            self._looked[run] = max(4 * self._looked[run], left)

    def _choose(self, head: Head, wish: Wish, now: datetime) -> Candidate | None:
        shape = self._shapes[head.run.shape_id]
        waited = now - head.queued_at
        avoid = head.avoid_node_id if waited < timedelta(seconds=AVOID_SECONDS) else None
        candidate = self._fleet.best(
            shape,
            wish.prefer,
            account_id=head.run.account_id,
            weights=wish.weight_set,
            ceiling=shape.ceiling_microcredits_per_hour,
            avoid=avoid,
        )
        if candidate is None or self._gap_elsewhere is None or waited.total_seconds() >= ELSEWHERE_SECONDS_MAX:
            return candidate
        if candidate.slot.welcome is not None:
            # Other hubs tell of few slots of pools: one's own is not left for them.
            return candidate
        slice_ = (head.job_id, head.slice_index)
        gap = self._gap_elsewhere(shape, wish.prefer, candidate, slice_, head.run.account_id)
        left = patience_seconds(gap) - waited.total_seconds()
        if left <= 0:
            return candidate
        self.postponed.append(head)
        self.postponed_seconds = min(left, self.postponed_seconds or left)
        return None

    def undo(self) -> None:
        """The leases were not written. The slots are for the caller to give back, if they are still offered."""
        self.undone, self.pairs = [pair.candidate for pair in self.pairs], []


def patience_seconds(gap: float) -> float:
    """How long a slice waits for a slot whose score is better by this much."""
    if gap <= 0:
        return 0.0
    return ELSEWHERE_SECONDS_MIN + (ELSEWHERE_SECONDS_MAX - ELSEWHERE_SECONDS_MIN) * min(1.0, gap)


def _group_by_demand(shape_ids: Iterable[ShapeId], shapes: Mapping[ShapeId, Shape]) -> list[list[ShapeId]]:
    levels: dict[tuple[int, int, int], list[ShapeId]] = {}
    for shape_id in shape_ids:
        levels.setdefault(demand(shapes[shape_id]), []).append(shape_id)
    return [levels[level] for level in sorted(levels, reverse=True)]


def queue_order(head: Head) -> tuple[int, datetime, JobId, int]:
    return -head.priority, head.queued_at, head.job_id, head.slice_index


def demand(shape: Shape) -> tuple[int, int, int]:
    """How much a shape asks of a slot: a slot serves the most demanding one that it can give."""
    return int(shape.gpu), shape.vram_bytes, int(bool(shape.tiers))
