"""Which runs of the queue have slices waiting, as far as this hub knows. A cache: the database is true.

A run is known at once when this hub wrote to it, and soon when another did (NOTIFY, or the look that the timer
takes). It is forgotten when a round found it empty, unless something was written to it in the meantime.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence, Set

from computepool.core.ids import AccountId, ShapeId
from computepool.core.jobs.order import PriorityClass
from computepool.core.placement.checks import find_gate_refusal
from computepool.core.placement.fronts import Fronts
from computepool.core.placement.outlook import Outlook
from computepool.core.placement.rounds import Head, Round, Run
from computepool.core.placement.shape import Shape
from computepool.core.placement.slot import Slot

# Runs that one hub looks at; with more, the rest waits until some of these are empty.
RUNS_MAX = 20_000
VERDICTS_MAX = 10_000
SHAPES_MAX = 50_000


class _Verdict:
    """What is known of a slot: a shape that waited and fits it; that none does which began to wait until then."""

    __slots__ = ("fits", "fits_begun", "refused_until")

    def __init__(self) -> None:
        self.fits: ShapeId | None = None
        self.fits_begun = 0
        self.refused_until = 0


class Backlog:
    def __init__(self) -> None:
        # By shape and class: the accounts that wait.
        self.runs: dict[ShapeId, dict[PriorityClass, set[AccountId]]] = {}
        self.shapes: dict[ShapeId, Shape] = {}
        # Which of these no slot here could run.
        self.outlook = Outlook()
        self._shapes_of: defaultdict[AccountId, Counter[ShapeId]] = defaultdict(Counter)
        self._noted: dict[Run, int] = {}
        # How many slices a run has, where this hub has queued or seen all of them. Others may have taken some; a look
        # at the whole queue forgets all of this.
        self._counts: dict[Run, int] = {}
        # Which they are, of the first of them: for a hub that is alone.
        self.fronts = Fronts()
        self._forgotten_at = 0
        # Grows with everything that is noted; whoever looked before a note must not undo it.
        self._clock = 0
        # When each shape began to wait, and of slots which shapes were found not to fit, or to.
        self._begun: dict[ShapeId, int] = {}
        self._verdicts: dict[Slot, _Verdict] = {}

    def __len__(self) -> int:
        return len(self._noted)

    def __contains__(self, run: object) -> bool:
        return run in self._noted

    @property
    def moment(self) -> int:
        return self._clock

    def count_shapes(self, account_id: AccountId) -> int:
        return len(self._shapes_of[account_id]) if account_id in self._shapes_of else 0

    def waits(self, account_id: AccountId, shape_id: ShapeId) -> bool:
        return account_id in self._shapes_of and shape_id in self._shapes_of[account_id]

    def find_count(self, run: Run) -> int | None:
        return self._counts.get(run)

    def note(self, run: Run, count: int | None = None, heads: Sequence[Head] = ()) -> None:
        """Something was queued there: so many slices, if that is known; and which come first of them."""
        self._clock += 1
        if run not in self._noted:
            if len(self._noted) >= RUNS_MAX:
                return
            self._add(run)
            if count is not None:
                self._counts[run] = count
            if heads:
                self.fronts.replace(run, heads, whole=len(heads) == count)
        else:
            if count is None:
                self._counts.pop(run, None)
            elif run in self._counts:
                self._counts[run] += count
            if heads:
                self.fronts.add(run, heads, whole=len(heads) == count)
            else:
                self.fronts.forget(run)
        self._noted[run] = self._clock

    def note_planned(self, round_: Round, *, as_of: int) -> None:
        """What a round found and what it left, which began to look at the moment `as_of`."""
        for run, count in round_.left.items():
            is_news = self._forgotten_at <= as_of and self._noted.get(run, self._clock + 1) <= as_of
            if count is not None and is_news:
                self._counts[run] = count
            else:
                self._counts.pop(run, None)
            if is_news and run in round_.seen:
                self.fronts.replace(run, round_.seen[run].heads, whole=round_.seen[run].whole)
        for pair in round_.pairs:
            self.fronts.remove(pair.head.run, pair.head.job_id, pair.head.slice_index)

    def doubt(self, runs: Iterable[Run]) -> None:
        """There may be other slices in them than was believed, and more or fewer."""
        for run in runs:
            self._counts.pop(run, None)
            self.fronts.forget(run)

    def forget(self, runs: Iterable[Run], *, as_of: int) -> None:
        """They were found empty by somebody who began to look at the moment `as_of`."""
        for run in runs:
            if self._noted.get(run, self._clock + 1) <= as_of:
                self._remove(run)

    def replace(self, found: Iterable[Run], *, as_of: int) -> None:
        """What the database holds, read by somebody who began at the moment `as_of`."""
        present = set(found)
        self._counts.clear()
        self.fronts.forget_all()
        # Whoever began to look before this may have missed what was looked for.
        self._clock += 1
        self._forgotten_at = self._clock
        self.forget([run for run in self._noted if run not in present], as_of=as_of)
        for run in present:
            if run not in self._noted:
                self.note(run)
        if len(self.shapes) > SHAPES_MAX:
            self.shapes = {id: shape for id, shape in self.shapes.items() if id in self.runs}

    def could_use(self, slot: Slot) -> bool:
        """Whether something that waits could run on this slot."""
        if slot.welcome is not None:
            # Who waits changes more often than what waits, and such slots are few: nothing is remembered.
            return any(self._waits_for_pool(id, slot.welcome) for id in self.runs if self._fits(id, slot))
        verdict = self._verdicts.get(slot)
        if verdict is None:
            if len(self._verdicts) >= VERDICTS_MAX:
                self._verdicts.clear()
            verdict = self._verdicts[slot] = _Verdict()
        if verdict.fits is not None and self._begun.get(verdict.fits) == verdict.fits_begun:
            return True
        # Shapes come and go, and stand in the order in which they came: those that are new are looked at.
        for shape_id in reversed(self.runs):
            begun = self._begun[shape_id]
            if begun <= verdict.refused_until:
                break
            if self._fits(shape_id, slot):
                verdict.fits, verdict.fits_begun = shape_id, begun
                return True
        verdict.refused_until = self._clock
        return False

    def _fits(self, shape_id: ShapeId, slot: Slot) -> bool:
        """As far as anybody's work goes."""
        return find_gate_refusal(self.shapes[shape_id], slot) is None

    def _waits_for_pool(self, shape_id: ShapeId, welcome: Set[AccountId]) -> bool:
        return any(accounts & welcome for accounts in self.runs[shape_id].values())

    def _add(self, run: Run) -> None:
        self.outlook.forget(run.shape_id)
        if run.shape_id not in self.runs:
            self._begun[run.shape_id] = self._clock
        self.runs.setdefault(run.shape_id, {}).setdefault(run.priority_class, set()).add(run.account_id)
        shapes = self._shapes_of[run.account_id]
        shapes[run.shape_id] += 1

    def _remove(self, run: Run) -> None:
        del self._noted[run]
        self._counts.pop(run, None)
        self.fronts.forget(run)
        classes = self.runs[run.shape_id]
        classes[run.priority_class].discard(run.account_id)
        if not classes[run.priority_class]:
            del classes[run.priority_class]
        if not classes:
            del self.runs[run.shape_id], self._begun[run.shape_id]
            self.outlook.forget(run.shape_id)
        shapes = self._shapes_of[run.account_id]
        shapes[run.shape_id] -= 1
        if not shapes[run.shape_id]:
            del shapes[run.shape_id]
        if not shapes:
            del self._shapes_of[run.account_id]
