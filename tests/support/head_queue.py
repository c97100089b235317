"""The queue in memory, as a round sees it through the database, and a whole round over it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from computepool.core.ids import AccountId, JobId, ShapeId
from computepool.core.placement.pools import Fleet
from computepool.core.placement.rounds import Head, Pair, Round, Run, Wish
from computepool.core.placement.scorers import Candidate
from computepool.core.placement.shape import Shape
from computepool.core.placement.weights import Preference, Weights
from computepool.hub.services.leases import LOOKS_MAX
from tests.support.builders import NOW
from tests.support.spine import EvenShare, group_runs

SETS = {"default": Weights(price=1.0, speed=1.0, reliability=1.0)}
VALUE = Wish(Preference.VALUE, "default")


@dataclass(frozen=True)
class HeadQueue:
    """What waits. Also runs that nothing waits in: a hub may not know yet that they are empty."""

    heads: list[Head]
    shapes: Mapping[ShapeId, Shape]
    empty_runs: frozenset[Run] = frozenset()
    wishes: Mapping[JobId, Wish] = field(default_factory=dict)

    def take(self, takes: Mapping[Run, int]) -> list[Head]:
        """In the order of the queue. What a round has taken it sees again: its own locks do not hide it."""
        found = []
        for run, count in takes.items():
            assert count > 0
            waiting = sorted((head for head in self.heads if head.run == run), key=queue_order)
            found += waiting[:count]
        return found

    def wish_of(self, job_id: JobId) -> Wish:
        return self.wishes.get(job_id, VALUE)


def queue_order(head: Head) -> tuple[Any, ...]:
    return -head.priority, head.queued_at, head.job_id, head.slice_index


class ScriptedShare:
    """Serves accounts in the order of their numbers, all of the first before any of the second."""

    def __init__(self, order: Iterable[AccountId]) -> None:
        self._order = list(order)

    def plan(
        self, accounts: Collection[AccountId], count: int, caps: Mapping[AccountId, int]
    ) -> Mapping[AccountId, int]:
        first = min(accounts, key=self._order.index)
        return {first: count}


def open_round(queue: HeadQueue, candidates: Iterable[Candidate], **options: Any) -> Round:
    fleet = Fleet(SETS)
    for candidate in candidates:
        fleet.add(candidate)
    runs = group_runs([*(head.run for head in queue.heads), *sorted(queue.empty_runs)])
    return Round(fleet, queue.shapes, runs, options.pop("share", EvenShare()), **{"grants_max": 512, **options})


def run_round(round_: Round, queue: HeadQueue, *, now: datetime = NOW, looks: int = LOOKS_MAX) -> list[Pair]:
    """As the lease service does it, without writing anything."""
    for _ in range(looks):
        takes = round_.list_takes()
        if not takes:
            break
        heads = queue.take(takes)
        wishes = {head.job_id: queue.wish_of(head.job_id) for head in heads}
        round_.pair(takes, heads, wishes, now=now)
    return round_.pairs


def place(queue: HeadQueue, candidates: Iterable[Candidate], **options: Any) -> list[Pair]:
    return run_round(open_round(queue, candidates, **options), queue)
