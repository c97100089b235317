"""Which waiting shapes a fleet may have a slot for, free or busy; with the others a round need not bother.

Much may wait that fits nowhere, for days, and every round would look at all of it. Remembered until slots come that
could run what none could before, or somebody begins to wait who may have slots of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from computepool.core.ids import AccountId, ShapeId
from computepool.core.jobs.order import PriorityClass
from computepool.core.placement.pools import Fleet
from computepool.core.placement.shape import Shape

# What waits: by shape and class, whose work it is.
Runs = Mapping[ShapeId, Mapping[PriorityClass, Set[AccountId]]]


class Outlook:
    def __init__(self) -> None:
        # Of this fleet as it was then.
        self._fleet: Fleet | None = None
        self._version = 0
        self._verdicts: dict[ShapeId, bool] = {}

    def list_hopeful(self, fleet: Fleet, shapes: Mapping[ShapeId, Shape], runs: Runs) -> list[ShapeId]:
        """In the order of the runs."""
        if fleet is not self._fleet or fleet.version != self._version:
            self._fleet, self._version = fleet, fleet.version
            self._verdicts.clear()
        verdicts = self._verdicts
        hopeful = []
        for shape_id in runs:
            verdict = verdicts.get(shape_id)
            if verdict is None:
                shape = shapes[shape_id]
                verdict = any(fleet.may_suit(shape, account_ids) for account_ids in runs[shape_id].values())
                verdicts[shape_id] = verdict
            if verdict:
                hopeful.append(shape_id)
        return hopeful

    def forget(self, shape_id: ShapeId) -> None:
        """Somebody else waits for it from now on, or nobody any more."""
        self._verdicts.pop(shape_id, None)
