"""The fronts of runs, as a hub remembers them: what it has queued itself, or found when it last looked.

A front is what stands first in its run, in order; it is *whole* when nothing stands behind it. Whoever remembers need
not look. What is remembered may be out of date: leases are guarded where they are written, and what is refused there
is forgotten here.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from computepool.core.ids import JobId
from computepool.core.placement.rounds import Head, Run, queue_order

# Remembered heads: of one run, beyond which it is not whole; and in all, beyond which all is forgotten.
FRONT_HEADS_MAX = 256
HEADS_MAX = 50_000


class _Front:
    __slots__ = ("heads", "whole")

    def __init__(self) -> None:
        self.heads: dict[tuple[JobId, int], Head] = {}
        self.whole = True


class Fronts:
    def __init__(self) -> None:
        self._fronts: dict[Run, _Front] = {}
        self._count = 0

    def __len__(self) -> int:
        """How many heads are remembered."""
        return self._count

    def recall(self, run: Run, count: int) -> list[Head] | None:
        """The first so many of a run, or all that it has; nothing when somebody has to look."""
        front = self._fronts.get(run)
        if front is None or (len(front.heads) < count and not front.whole):
            return None
        return list(islice(front.heads.values(), count))

    def replace(self, run: Run, heads: Sequence[Head], *, whole: bool) -> None:
        """What somebody found, in the order of the queue; not `whole`: with more behind them."""
        self.forget(run)
        self._fronts[run] = _Front()
        self._extend(self._fronts[run], heads, whole=whole)

    def add(self, run: Run, heads: Sequence[Head], *, whole: bool) -> None:
        """These were queued just now, in this order; not `whole`: and more behind them."""
        front = self._fronts.get(run)
        if front is None:
            return
        last = next(reversed(front.heads.values()), None)
        if last is not None and queue_order(heads[0]) < queue_order(last):
            # Seldom: a job of a higher priority, or one that another was quicker than.
            known = list(front.heads.values())
            merged = sorted((*known, *heads), key=queue_order)
            # What is behind an end may be behind others that are not known.
            ends = [known[-1]] * (not front.whole) + [heads[-1]] * (not whole)
            known_until = min((merged.index(end) + 1 for end in ends), default=len(merged))
            self.replace(run, merged[:known_until], whole=not ends)
        elif front.whole:
            self._extend(front, heads, whole=whole)

    def _extend(self, front: _Front, heads: Sequence[Head], *, whole: bool) -> None:
        before = len(front.heads)
        room = FRONT_HEADS_MAX - before
        front.whole = whole and len(heads) <= room
        # Some may be known: whoever looked after they were written found them before we were told.
        front.heads.update({(head.job_id, head.slice_index): head for head in heads[:room]})
        self._count += len(front.heads) - before
        if self._count > HEADS_MAX:
            self.forget_all()

    def remove(self, run: Run, job_id: JobId, slice_index: int) -> None:
        """It is not queued any more."""
        front = self._fronts.get(run)
        if front is not None and front.heads.pop((job_id, slice_index), None) is not None:
            self._count -= 1

    def forget(self, run: Run) -> None:
        front = self._fronts.pop(run, None)
        if front is not None:
            self._count -= len(front.heads)

    def forget_all(self) -> None:
        self._fronts.clear()
        self._count = 0
