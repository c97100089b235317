"""A small grid on a simulated clock: hubs that share out slots by fair share and hear of each other once a second."""

from __future__ import annotations

import heapq
import itertools
import random
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID

from computepool.core.ids import AccountId, AttemptId
from computepool.core.placement.fair_share import Delta, FairShare, Total, fade

START = datetime(2030, 1, 1, tzinfo=UTC)
SYNC_SECONDS = 1.0


def account_number(number: int) -> AccountId:
    return AccountId(UUID(int=number))


def attempt_number(number: int) -> AttemptId:
    return AttemptId(UUID(int=number))


@dataclass
class Demand:
    """One account's work: so many slices from a moment on, each of a length of its own."""

    account_id: AccountId
    slice_count: int
    seconds: Callable[[random.Random], float]
    weight: float = 1.0
    arrives_at: float = 0.0
    # Hubs whose slots cannot run it.
    unfit_hubs: frozenset[int] = frozenset()


@dataclass
class Grant:
    at: float
    account_id: AccountId
    hub: int
    expected_seconds: float
    held_seconds: float
    live: bool = True

    def had_by(self, moment: float) -> float:
        return min(max(0.0, moment - self.at), self.held_seconds)


@dataclass
class Totals:
    """The database, as far as fair shares need one."""

    slot_seconds: dict[AccountId, tuple[float, float]] = field(default_factory=dict)
    # Slices that ended by themselves: their seconds, and how many.
    ended: dict[AccountId, tuple[float, int]] = field(default_factory=dict)

    def add(self, delta: Delta, *, now: float, weight: float) -> Total:
        had, at = self.slot_seconds.get(delta.account_id, (0.0, now))
        had = fade(had, now - at) + delta.seconds
        self.slot_seconds[delta.account_id] = (had, now)
        ended_seconds, ended_count = self.ended.get(delta.account_id, (0.0, 0))
        mean = ended_seconds / ended_count if ended_count and delta.asks_mean else None
        return Total(delta.account_id, had, weight, START + timedelta(seconds=now), mean)

    def note_end(self, account_id: AccountId, seconds: float) -> None:
        ended_seconds, ended_count = self.ended.get(account_id, (0.0, 0))
        self.ended[account_id] = (ended_seconds + seconds, ended_count + 1)


class FairGrid:
    def __init__(
        self,
        demands: Sequence[Demand],
        *,
        slots: Sequence[int],
        seed: int = 0,
        make_share: Callable[[], FairShare] = FairShare,
        roaming_ratio: float = 0.0,
    ) -> None:
        """`slots`: how many each hub has. `roaming_ratio`: how many ends are told to any hub, not the slot's own."""
        self.demands = {demand.account_id: demand for demand in demands}
        self.queued = dict.fromkeys(self.demands, 0)
        self.shares = [make_share() for _ in slots]
        self.grants: list[Grant] = []
        self.now = 0.0
        self._came: set[AccountId] = set()
        self._free = list(slots)
        self._totals = Totals()
        self._dice = random.Random(seed)
        self._roaming_ratio = roaming_ratio
        self._numbers = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        for demand in demands:
            self.at(demand.arrives_at, lambda demand=demand: self.submit(demand.account_id, demand.slice_count))
        for hub in range(len(slots)):
            self.at(self._dice.uniform(0, SYNC_SECONDS), lambda hub=hub: self._sync_for_ever(hub))

    # What happens

    def at(self, moment: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (moment, next(self._numbers), happen))

    def submit(self, account_id: AccountId, slice_count: int) -> None:
        self.queued[account_id] += slice_count
        self._came.add(account_id)

    def cancel_half(self, account_id: AccountId) -> None:
        """Of what waits and of what runs."""
        self.queued[account_id] //= 2
        live = [number for number, g in enumerate(self.grants) if g.live and g.account_id == account_id]
        for number in live[::2]:
            self.grants[number].held_seconds = self.now - self.grants[number].at
            self._end(number, natural=False)

    def run(self, *, grant_count: int) -> FairGrid:
        """Until so many slots were granted, or somebody who has come has nothing waiting."""
        while len(self.grants) < grant_count:
            self.now, _, happen = heapq.heappop(self._events)
            happen()
            for hub in range(len(self._free)):
                self._place(hub)
            if not all(self.queued[account_id] for account_id in self._came):
                break
        return self

    def run_until(self, moment: float) -> FairGrid:
        while self._events and self._events[0][0] <= moment:
            self.now, _, happen = heapq.heappop(self._events)
            happen()
            for hub in range(len(self._free)):
                self._place(hub)
        return self

    def _place(self, hub: int) -> None:
        waiting = [id for id, count in self.queued.items() if count and hub not in self.demands[id].unfit_hubs]
        if not waiting or not self._free[hub]:
            return
        planned = self.shares[hub].plan(waiting, self._free[hub], now=self.now)
        if self.shares[hub].has_strangers:
            self._sync(hub)
            planned = self.shares[hub].plan(waiting, self._free[hub], now=self.now)
        for account_id in _interleave(planned):
            if self.queued[account_id]:
                self._grant(hub, account_id)

    def _grant(self, hub: int, account_id: AccountId) -> None:
        share, number = self.shares[hub], len(self.grants)
        expected = share.expected_seconds(account_id, now=self.now)
        held = self.demands[account_id].seconds(self._dice)
        self.grants.append(Grant(self.now, account_id, hub, expected, held))
        self.queued[account_id] -= 1
        self._free[hub] -= 1
        share.charge_lease(account_id, attempt_number(number), expected_seconds=expected, now=self.now)
        self.at(self.now + held, lambda: self._end(number, natural=True))

    def _end(self, number: int, *, natural: bool) -> None:
        grant = self.grants[number]
        if not grant.live:
            return
        grant.live = False
        self._free[grant.hub] += 1
        if natural:
            self._totals.note_end(grant.account_id, grant.held_seconds)
        roams = self._dice.random() < self._roaming_ratio
        told = self._dice.randrange(len(self.shares)) if roams else grant.hub
        self.shares[told].charge_end(
            grant.account_id,
            attempt_number(number),
            expected_seconds=grant.expected_seconds,
            held_seconds=grant.held_seconds,
            natural=natural,
            now=self.now,
        )

    def _sync(self, hub: int) -> None:
        share = self.shares[hub]
        suspects = share.list_suspects(1_000, now=self.now)
        share.judge_suspects(suspects, {id for id in suspects if self.grants[id.int].live}, now=self.now)
        deltas = share.take_deltas(1_000, now=self.now)
        totals = [self._totals.add(d, now=self.now, weight=self.demands[d.account_id].weight) for d in deltas]
        share.take_totals(deltas, totals, hub_count=len(self.shares), hub_rank=hub)

    def _sync_for_ever(self, hub: int) -> None:
        self._sync(hub)
        self.at(self.now + SYNC_SECONDS, lambda: self._sync_for_ever(hub))

    # What came of it

    def list_granted_shares(self, account_id: AccountId, *, window: int, after: float, skip: int = 0) -> list[float]:
        """The account's part of the slot-seconds of any so many grants in a row."""
        grants = [grant for grant in self.grants if grant.at >= after][skip:]
        own = list(itertools.accumulate((g.held_seconds * (g.account_id == account_id) for g in grants), initial=0.0))
        every = list(itertools.accumulate((g.held_seconds for g in grants), initial=0.0))
        return [
            (own[start + window] - own[start]) / (every[start + window] - every[start])
            for start in range(len(grants) - window + 1)
        ]

    def list_held_shares(self, account_id: AccountId, *, window: int, after: float, skip: int = 0) -> list[float]:
        """The account's part of the slot-seconds that were had while so many grants in a row were made.

        What was granted before is left out: nobody could share that.
        """
        grants = [grant for grant in self.grants if grant.at >= after]
        moments = [grant.at for grant in grants][skip:]
        own = _integrate([g for g in grants if g.account_id == account_id], moments)
        every = _integrate(grants, moments)
        return [
            (own[start + window] - own[start]) / (every[start + window] - every[start])
            for start in range(len(moments) - window)
        ]


def _integrate(grants: Sequence[Grant], moments: Sequence[float]) -> list[float]:
    """Slot-seconds had by each of these moments."""
    began = [grant.at for grant in grants]
    longest = max((grant.held_seconds for grant in grants), default=0.0)
    done = list(itertools.accumulate((grant.held_seconds for grant in grants), initial=0.0))
    sums = []
    for moment in moments:
        # Everything that began before `early` has ended by now.
        early, late = bisect_right(began, moment - longest), bisect_right(began, moment)
        sums.append(done[early] + sum(grant.had_by(moment) for grant in grants[early:late]))
    return sums


def _interleave(planned: Mapping[AccountId, int]) -> list[AccountId]:
    """The grants of one batch are one moment; in a row they stand as evenly as can be."""
    places = [((n + 0.5) / count, id) for id, count in planned.items() for n in range(count)]
    return [id for _, id in sorted(places)]
