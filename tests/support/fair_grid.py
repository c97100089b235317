"""A small grid on a simulated clock: hubs that share out slots by fair share and know of each other once a second."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import UUID

from computepool.core.ids import AccountId, AttemptId
from computepool.core.placement.fair_share import Delta, FairShare, Total, fade

START = datetime(2030, 1, 1, tzinfo=timezone.utc)
SYNC_SECONDS = 1.0


def account_number(number: int) -> AccountId:
    return AccountId(UUID(int=number))


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
    held_seconds: float
    live: bool = True


@dataclass
class Totals:
    """The table fair_usage, in memory."""

    slot_seconds: dict[AccountId, tuple[float, float]] = field(default_factory=dict)

    # Of the slices that ended by themselves.
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
        """`slots`: how many each hub has. `roaming_ratio`: how many ends are told to another hub."""
        self.demands = {demand.account_id: demand for demand in demands}
        self.queued = dict.fromkeys(self.demands, 0)
        self.shares = [make_share() for _ in slots]
        self.free = list(slots)
        self.totals = Totals()
        self.grants: list[Grant] = []
        # From the grant with this number on, everybody was waiting; and up to which.
        self.now = 0.0
        self._dice = random.Random(seed)
        self._roaming_ratio = roaming_ratio
        self._numbers = itertools.count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        for demand in demands:
            self._at(demand.arrives_at, lambda d=demand: self._arrive(d))
        for hub in range(len(slots)):
            self._at(self._dice.uniform(0, SYNC_SECONDS), lambda hub=hub: self._sync_for_ever(hub))

    def run(self, *, grants: int, stop_when_empty: bool = True) -> FairGrid:
        """Until so many slots were granted, or somebody who came has nothing left."""
        while self._events and len(self.grants) < grants:
            self.now, _, happen = heapq.heappop(self._events)
            happen()
            for hub in range(len(self.free)):
                self._place(hub)
            came = [d for d in self.demands.values() if d.arrives_at <= self.now]
            if stop_when_empty and not all(self.queued[d.account_id] for d in came):
                break
        return self

    def cancel_half(self, account_id: AccountId) -> None:
        """Of what waits and of what runs."""
        self.queued[account_id] //= 2
        live = [(n, g) for n, g in enumerate(self.grants) if g.live and g.account_id == account_id]
        for number, grant in live[::2]:
            expected = self._expected[number]
            grant.held_seconds = self.now - grant.at
            self._end(number, grant, expected, natural=False)

    def list_windows(self, length: int, *, after: float = 0.0) -> list[dict[AccountId, float]]:
        """Each account's share of the slot-seconds of any so many grants in a row."""
        grants = [grant for grant in self.grants if grant.at >= after]
        return [_share(grants[start : start + length]) for start in range(len(grants) - length + 1)]

    def _at(self, moment: float, happen: Callable[..., Any]) -> None:
        heapq.heappush(self._events, (moment, next(self._numbers), happen))

    def at(self, moment: float, happen: Callable[[], None]) -> None:
        self._at(moment, happen)

    def _arrive(self, demand: Demand) -> None:
        self.queued[demand.account_id] += demand.slice_count

    def _place(self, hub: int) -> None:
        waiting = [id for id, count in self.queued.items() if count and hub not in self.demands[id].unfit_hubs]
        if not waiting or not self.free[hub]:
            return
        planned = self.shares[hub].plan(waiting, self.free[hub], now=self.now)
        if self.shares[hub].has_strangers:
            self._sync(hub)
            planned = self.shares[hub].plan(waiting, self.free[hub], now=self.now)
        for account_id in _interleave(planned):
            if self.queued[account_id] and self.free[hub]:
                self._grant(hub, account_id)

    def _grant(self, hub: int, account_id: AccountId) -> None:
        share = self.shares[hub]
        expected = share.expected_seconds(account_id, now=self.now)
        number = len(self.grants)
        grant = Grant(self.now, account_id, hub, self.demands[account_id].seconds(self._dice))
        self.grants.append(grant)
        self.queued[account_id] -= 1
        self.free[hub] -= 1
        share.charge_lease(account_id, AttemptId(UUID(int=number)), expected_seconds=expected, now=self.now)
        self._expected[number] = expected
        self._at(self.now + grant.held_seconds, lambda: self._end(number, grant, expected, natural=True))

    @property
    def _expected(self) -> dict[int, float]:
        return self.__dict__.setdefault("_expected_by_number", {})

    def _end(self, number: int, grant: Grant, expected: float, *, natural: bool) -> None:
        if not grant.live:
            return
        grant.live = False
        self.free[grant.hub] += 1
        told = grant.hub
        if self._dice.random() < self._roaming_ratio:
            told = self._dice.randrange(len(self.shares))
        if natural:
            self.totals.note_end(grant.account_id, grant.held_seconds)
        self.shares[told].charge_end(
            grant.account_id,
            AttemptId(UUID(int=number)),
            expected_seconds=expected,
            held_seconds=grant.held_seconds,
            natural=natural,
            now=self.now,
        )

    def _sync(self, hub: int) -> None:
        share = self.shares[hub]
        suspects = share.list_suspects(1_000, now=self.now)
        share.judge_suspects(suspects, {id for id in suspects if self.grants[id.int].live}, now=self.now)
        deltas = share.take_deltas(1_000, now=self.now)
        totals = [self.totals.add(d, now=self.now, weight=self.demands[d.account_id].weight) for d in deltas]
        share.take_totals(deltas, totals, hub_count=len(self.shares), hub_rank=hub)

    def _sync_for_ever(self, hub: int) -> None:
        self._sync(hub)
        self._at(self.now + SYNC_SECONDS, lambda: self._sync_for_ever(hub))


def _interleave(planned: dict[AccountId, int]) -> list[AccountId]:
    """The grants of one batch are one moment; in a row they stand as evenly as can be."""
    places = [((n + 0.5) / count, id) for id, count in planned.items() for n in range(count)]
    return [id for _, id in sorted(places)]


def _share(grants: Sequence[Grant]) -> dict[AccountId, float]:
    total = sum(grant.held_seconds for grant in grants)
    shares: dict[AccountId, float] = {}
    for grant in grants:
        shares[grant.account_id] = shares.get(grant.account_id, 0.0) + grant.held_seconds / total
    return shares
