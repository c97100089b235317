"""A small economy in virtual time: owners, submitters, a queue, and between them the real rules of the market.

Prices, gates, the cheapest offer, spot and its ticks are those of core/market; money moves on books of core/ledger.
The queue is simple on purpose: a freed slot serves the account that has had least among those who may start there,
then age. Seeded: the same seed makes the same history.
"""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from statistics import fmean
from uuid import UUID

from computepool.core.ids import AccountId
from computepool.core.ledger.charging import price_seconds
from computepool.core.market.cheapest import OfferIndex
from computepool.core.market.offers import Ask, Offer
from computepool.core.market.price import find_start_refusal, price_match
from computepool.core.market.rate_card import Bucket, RateCard
from computepool.core.market.spot import (
    RULE,
    TICK_SECONDS,
    SpotRule,
    SpotState,
    Supply,
    Waiting,
    advance,
    measure_pressures,
    price_spot,
)
from sims.till import Till

KIND = "compute"


@dataclass(slots=True, eq=False)
class Node:
    number: int
    bucket: Bucket
    offer: Offer
    online: bool = True
    attempt: Attempt | None = None
    free_since: float = 0.0
    started_count: int = 0
    earned: int = 0


@dataclass(slots=True, eq=False)
class Submitter:
    account_id: AccountId
    # Slot-seconds that were given to it.
    used_seconds: float = 0.0


@dataclass(slots=True, eq=False)
class Job:
    number: int
    submitter: Submitter
    buckets: tuple[Bucket, ...]
    # The most that an hour is worth to the submitter, and what they say it is.
    value: int
    ceiling: int
    # Of each slice.
    seconds: list[int]
    arrived_at: float
    gives_up_at: float
    group: str = ""
    next_slice: int = 0
    running: int = 0
    closed: bool = False

    @property
    def waiting_count(self) -> int:
        return len(self.seconds) - self.next_slice


@dataclass(slots=True, eq=False)
class Attempt:
    number: int
    job: Job
    slice_index: int
    node: Node
    price: int
    started_at: float
    seconds: int


@dataclass(frozen=True, slots=True)
class Settled:
    """One paid slice, as the measures see it."""

    attempt_number: int
    group: str
    account_id: AccountId
    node_number: int
    bucket: Bucket
    at: float
    waited_seconds: float
    seconds: int
    price: int
    value: int
    ceiling: int
    floor: int


@dataclass(slots=True)
class Trace:
    """One point per tick."""

    surge: dict[Bucket, list[float]] = field(default_factory=lambda: defaultdict(list))
    utilisation: list[float] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    # Mean wait of the slices that started in the tick, of jobs in no group; the last one again when none did.
    wait_seconds: list[float] = field(default_factory=list)


class Economy:
    # A control may take the force of spot away.
    has_force = True

    def __init__(self, card: RateCard, seed: str, rule: SpotRule = RULE) -> None:
        self.card = card
        self.rule = rule
        self.till = Till(card.fee_ppm)
        self.random = random.Random(seed)
        self.now = 0.0
        self.nodes: list[Node] = []
        self.index: OfferIndex[int] = OfferIndex()
        self.states: dict[Bucket, SpotState] = {}
        self.spots: dict[Bucket, int] = {}
        self.settled: list[Settled] = []
        self.trace = Trace()
        self._submitters: dict[AccountId, Submitter] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        # Jobs with waiting slices by where they could run; and of them, those that would pay spot there.
        self._jobs_by_bucket: defaultdict[Bucket, dict[int, Job]] = defaultdict(dict)
        self._paying_by_bucket: defaultdict[Bucket, dict[int, Job]] = defaultdict(dict)
        self._waiting: dict[int, Job] = {}
        self._job_numbers = count(1)
        self._attempt_numbers = count(1)
        self._waits: list[float] = []

    # Time

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), what))

    def run(self, tick_count: int) -> None:
        for _ in range(tick_count):
            end = self.now + TICK_SECONDS
            while self._events and self._events[0][0] <= end:
                self.now, _, what = heapq.heappop(self._events)
                what()
            self.now = end
            self._tick()

    def _tick(self) -> None:
        self._drop_impatient()
        pressures = measure_pressures(self._count_supply(), self._list_waiting(), self.spots)
        for bucket, state in self.states.items():
            self.states[bucket] = advance(state, pressures.get(bucket), self.rule)
            self.spots[bucket] = price_spot(self.card.reference(bucket), self.states[bucket])
            jobs = self._jobs_by_bucket[bucket]
            paying = {number: job for number, job in jobs.items() if job.ceiling >= self.spots[bucket]}
            self._paying_by_bucket[bucket] = paying
        self._start_waiting()
        self._record()

    def _count_supply(self) -> dict[Bucket, Supply]:
        slots: defaultdict[Bucket, int] = defaultdict(int)
        busy: defaultdict[Bucket, int] = defaultdict(int)
        owners: defaultdict[Bucket, set[AccountId]] = defaultdict(set)
        for node in self.nodes:
            if node.online and node.offer.floor_microcredits_per_hour <= self.spots[node.bucket]:
                slots[node.bucket] += 1
                busy[node.bucket] += node.attempt is not None and node.attempt.job.ceiling >= self.spots[node.bucket]
                owners[node.bucket].add(node.offer.owner_id)
        return {bucket: Supply(slots[bucket], busy[bucket], owners[bucket]) for bucket in slots}

    def _list_waiting(self) -> list[Waiting]:
        return [
            Waiting(job.submitter.account_id, job.waiting_count, job.ceiling, job.buckets)
            for job in self._waiting.values()
        ]

    def _record(self) -> None:
        online = [node for node in self.nodes if node.online]
        for bucket, state in self.states.items():
            self.trace.surge[bucket].append(state.surge_ppm / 1e6)
        self.trace.utilisation.append(fmean(node.attempt is not None for node in online) if online else 0.0)
        self.trace.waiting.append(sum(job.waiting_count for job in self._waiting.values()))
        last = self.trace.wait_seconds[-1] if self.trace.wait_seconds else 0.0
        self.trace.wait_seconds.append(fmean(self._waits) if self._waits else last)
        self._waits.clear()

    # Supply

    def add_node(self, bucket: Bucket, floor: int, owner_id: AccountId) -> Node:
        node = Node(len(self.nodes), bucket, Offer(owner_id, floor), online=False)
        self.nodes.append(node)
        if bucket not in self.states:
            self.states[bucket] = SpotState()
            self.spots[bucket] = price_spot(self.card.reference(bucket), self.states[bucket])
        self.bring(node)
        return node

    def bring(self, node: Node) -> None:
        node.online = True
        self._free(node)

    def withdraw(self, node: Node) -> None:
        """The slot takes nothing more; what runs is finished and paid."""
        node.online = False
        if node.number in self.index:
            self.index.remove(node.number)

    def vanish(self, node: Node) -> None:
        """As if its power failed: what ran is not paid and waits again."""
        self.withdraw(node)
        attempt, node.attempt = node.attempt, None
        if attempt is None:
            return
        job = attempt.job
        job.running -= 1
        job.seconds.append(job.seconds[attempt.slice_index])
        if not job.closed:
            self._enqueue(job)

    def _free(self, node: Node) -> None:
        node.free_since = self.now
        if not node.online:
            return
        self.index.put(node.number, node.bucket, node.offer, free_since=self.find_turn(node))
        job = self._choose_job(node)
        if job is not None:
            floor, spot = node.offer.floor_microcredits_per_hour, self.spots[node.bucket]
            self._start(job, node, price_match(floor=floor, ceiling=job.ceiling, spot=spot))

    def find_turn(self, node: Node) -> float:
        """The smallest is next among offers of equal price. A control may spoil it."""
        return self.now

    def _choose_job(self, node: Node) -> Job | None:
        floor, spot = node.offer.floor_microcredits_per_hour, self.spots[node.bucket]
        paying = self._paying_by_bucket[node.bucket]
        has_backlog = self.has_force and bool(paying)
        # While spot has force, whoever would pay less need not be asked.
        fitting = (
            job
            for job in (paying if has_backlog else self._jobs_by_bucket[node.bucket]).values()
            if not find_start_refusal(floor=floor, ceiling=job.ceiling, spot=spot, has_backlog_at_spot=has_backlog)
        )
        return min(fitting, key=_turn_of, default=None)

    # Demand

    def submit(
        self,
        account_id: AccountId,
        buckets: tuple[Bucket, ...],
        *,
        value: int,
        ceiling: int,
        seconds: list[int],
        patience_seconds: float,
        group: str = "",
    ) -> Job:
        job = Job(
            number=next(self._job_numbers),
            submitter=self._submitters.setdefault(account_id, Submitter(account_id)),
            buckets=buckets,
            value=value,
            ceiling=ceiling,
            seconds=seconds,
            arrived_at=self.now,
            gives_up_at=self.now + patience_seconds,
            group=group,
        )
        self.till.hold(job.number, account_id, sum(price_seconds(ceiling, each) for each in seconds), now=self.now)
        self._enqueue(job)
        self._try_to_start(job)
        return job

    def _enqueue(self, job: Job) -> None:
        self._waiting[job.number] = job
        for bucket in job.buckets:
            self._jobs_by_bucket[bucket][job.number] = job
            if job.ceiling >= self.spots[bucket]:
                self._paying_by_bucket[bucket][job.number] = job

    def _dequeue(self, job: Job) -> None:
        self._waiting.pop(job.number, None)
        for bucket in job.buckets:
            self._jobs_by_bucket[bucket].pop(job.number, None)
            self._paying_by_bucket[bucket].pop(job.number, None)

    def _drop_impatient(self) -> None:
        for job in [job for job in self._waiting.values() if job.gives_up_at <= self.now]:
            self._dequeue(job)
            del job.seconds[job.next_slice :]
            self._close_if_done(job)

    def _start_waiting(self) -> None:
        for job in sorted(self._waiting.values(), key=_turn_of):
            self._try_to_start(job)

    def _try_to_start(self, job: Job) -> None:
        backlog = {
            bucket
            for bucket in job.buckets
            if self.has_force and len(self._paying_by_bucket[bucket]) > (job.number in self._paying_by_bucket[bucket])
        }
        while job.waiting_count:
            ask = Ask(job.submitter.account_id, KIND, job.seconds[job.next_slice], job.ceiling)
            found = self.index.find_cheapest(ask, job.buckets, spots=self.spots, backlog_at_spot=backlog)
            if found is None:
                return
            self._start(job, self.nodes[found.key], found.price_microcredits_per_hour)

    def _start(self, job: Job, node: Node, price: int) -> None:
        attempt = Attempt(
            number=next(self._attempt_numbers),
            job=job,
            slice_index=job.next_slice,
            node=node,
            price=price,
            started_at=self.now,
            seconds=job.seconds[job.next_slice],
        )
        self.index.remove(node.number)
        node.attempt = attempt
        node.started_count += 1
        job.next_slice += 1
        job.running += 1
        job.submitter.used_seconds += attempt.seconds
        if not job.group:
            self._waits.append(self.now - job.arrived_at)
        if not job.waiting_count:
            self._dequeue(job)
        self.at(self.now + attempt.seconds, lambda: self._finish(attempt))

    def _finish(self, attempt: Attempt) -> None:
        node, job = attempt.node, attempt.job
        if node.attempt is not attempt:
            return
        node.attempt = None
        job.running -= 1
        paid = price_seconds(attempt.price, attempt.seconds)
        self.till.settle(job.number, attempt.number, node.offer.owner_id, paid, now=self.now)
        node.earned += paid
        self.settled.append(
            Settled(
                attempt_number=attempt.number,
                group=job.group,
                account_id=job.submitter.account_id,
                node_number=node.number,
                bucket=node.bucket,
                at=attempt.started_at,
                waited_seconds=attempt.started_at - job.arrived_at,
                seconds=attempt.seconds,
                price=attempt.price,
                value=job.value,
                ceiling=job.ceiling,
                floor=node.offer.floor_microcredits_per_hour,
            )
        )
        self._close_if_done(job)
        self._free(node)

    def _close_if_done(self, job: Job) -> None:
        if not job.waiting_count and not job.running and not job.closed:
            job.closed = True
            self.till.close(job.number, now=self.now)


def _turn_of(job: Job) -> tuple[float, int]:
    return job.submitter.used_seconds, job.number


def account(number: int) -> AccountId:
    return AccountId(UUID(int=number))


@dataclass(frozen=True, slots=True)
class Demand:
    """A stream of jobs: how many slices a minute, where they could run, and what an hour is worth to their owners."""

    slices_per_minute: float
    buckets: tuple[Bucket, ...]
    # Of the reference price of the first bucket.
    value_median: float = 1.4
    value_sigma: float = 0.35
    accounts: tuple[AccountId, ...] = tuple(account(1_000 + number) for number in range(40))
    slices_mean: float = 4.0
    seconds_median: float = 500.0
    patience_seconds: float = 3_600.0
    group: str = ""
    # What the ceiling says of the true value; the truth if not set.
    bid: Callable[[int], int] | None = None


def stream(economy: Economy, demand: Demand, *, start: float, end: float) -> None:
    """Poisson arrivals from start to end; the values, sizes and lengths come from the economy's own generator."""
    rng = economy.random
    gap = 60.0 * demand.slices_mean / demand.slices_per_minute

    def arrive() -> None:
        _submit_one(economy, demand)
        following = economy.now + rng.expovariate(1.0 / gap)
        if following < end:
            economy.at(following, arrive)

    economy.at(start + rng.expovariate(1.0 / gap), arrive)


def _submit_one(economy: Economy, demand: Demand) -> None:
    rng = economy.random
    reference = economy.card.reference(demand.buckets[0])
    value = int(reference * demand.value_median * rng.lognormvariate(0.0, demand.value_sigma))
    slices = 1 + int(rng.expovariate(1.0 / max(demand.slices_mean - 0.5, 0.01)))
    economy.submit(
        rng.choice(demand.accounts),
        demand.buckets,
        value=value,
        ceiling=demand.bid(value) if demand.bid else value,
        seconds=[max(30, int(demand.seconds_median * rng.lognormvariate(0.0, 0.5))) for _ in range(slices)],
        patience_seconds=demand.patience_seconds * rng.uniform(0.5, 1.5),
        group=demand.group,
    )


def add_fleet(
    economy: Economy, counts: Mapping[Bucket, int], *, owners: Iterable[AccountId], floor_median: float = 0.65
) -> list[Node]:
    """Owners own several nodes each; floors spread around a part of the reference price."""
    rng = economy.random
    known = list(owners)
    added = []
    for bucket, number in counts.items():
        reference = economy.card.reference(bucket)
        for _ in range(number):
            floor = int(reference * floor_median * rng.lognormvariate(0.0, 0.3))
            added.append(economy.add_node(bucket, floor, rng.choice(known)))
    return added
