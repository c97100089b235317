"""What it costs to find the best slot for a slice, take it and give it back: the fleet index against a plain loop.

The plain way is a list of dicts: filter by the gates, weigh price, speed and reliability, take the maximum. Both get
the same fleets and the same stream of requests, in turns: 200 different ones that come again and again, as the shapes
of a backlog do. 64 slots are out at any time, so that what is taken is missed by those who come after, and taking and
giving back is paid for. CPU time of this process, medians of rounds in which all sizes take turns.

The index cuts its leaves as it is asked, so the first questions cost more. What a hub pays day after day is measured
once the leaves have stopped growing; what it pays in its first minute, and for questions never asked twice, is
shown apart. Then bad luck on purpose: fleets made to be hard for the index. Last, random cases against scoring all.

    python -m benchmarks.match [--rounds N] [--cases N] [--quick] [--out FILE]
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import log
from pathlib import Path
from typing import Any
from uuid import UUID

from benchmarks.tables import Report
from computepool.core.ids import NodeId, SlotName
from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.jobs.spec import Requirements
from computepool.core.placement.checks import find_refusal
from computepool.core.placement.fleet import FleetIndex
from computepool.core.placement.scorers import TIER_TFLOPS, Candidate, break_tie, make_candidate, score
from computepool.core.placement.shape import Shape, to_shape
from computepool.core.placement.slot import Slot, SlotKind
from computepool.core.placement.weights import Preference, Weights
from computepool.hub.services.weights import load_weights

SIZES = (500, 5_000, 20_000, 100_000)
OUT_COUNT = 64
REQUESTS = 2_000
DIFFERENT_REQUESTS = 200
# Warm is who has not cut more than one leaf in a hundred during so many rounds.
STEADY_ROUNDS = 5
STEADY_GROWTH = 1.01
WARM_UP_ROUNDS_MAX = 80
LOOP_REQUESTS = {500: 200, 5_000: 40, 20_000: 12, 100_000: 6}
GB = 1_000_000_000
CREDIT = 1_000_000

# Tier, its VRAM, its price in credits per hour, how common it is.
CARDS = (
    ("rtx-5090", 32, 36, 1),
    ("rtx-4090", 24, 36, 4),
    ("rtx-3090", 24, 30, 5),
    ("rtx-4070", 12, 30, 8),
    ("rtx-3080", 10, 24, 8),
    ("rtx-3060", 12, 24, 20),
    ("rtx-2070", 8, 24, 8),
    ("gtx-1080ti", 11, 18, 4),
    ("gtx-1080", 8, 18, 6),
    ("gtx-1660", 6, 15.6, 10),
    ("cpu", 0, 9.6, 40),
)
REGIONS = ("IN", "DE", "FR", "GB", "US", "BR", "PL", "NL", "ES", "IT", "SE", "CA", "AU", "JP", "KR", "ZA", None)
REGION_PRICE = {"IN": 0.7, "DE": 0.95, "FR": 0.95, "PL": 0.95, "NL": 0.95, "ES": 0.95, "IT": 0.95, "SE": 0.95}
ISOLATION = (IsolationLevel.SANDBOXED, IsolationLevel.CONTAINER, IsolationLevel.GVISOR)

Request = tuple[Shape, Preference, int | None]


def make_fleet(size: int, rng: random.Random) -> list[Candidate]:
    return [make_slot(number, rng) for number in range(size)]


def make_slot(number: int, rng: random.Random) -> Candidate:
    tier, vram, credits, _ = rng.choices(CARDS, weights=[card[3] for card in CARDS])[0]
    region = rng.choice(REGIONS)
    slot = Slot(
        node_id=NodeId(UUID(int=number)),
        name=SlotName("cpu:0" if tier == "cpu" else "gpu:0"),
        kind=SlotKind.CPU if tier == "cpu" else SlotKind.GPU,
        tier=tier,
        vram_bytes=vram * GB,
        cores=rng.choice((1, 2, 4, 4, 6, 8, 12, 16)),
        ram_bytes=int(rng.choice((4, 8, 8, 16, 16, 32, 64)) * GB * rng.uniform(0.9, 1.05)),
        disk_bytes=int(rng.lognormvariate(4.5, 1.0) * GB),
        region=region,
        isolation=rng.choices(ISOLATION, weights=(60, 35, 5))[0],
    )
    # Most owners keep to the rate card; the others ask for something of their own.
    factor = REGION_PRICE.get(region or "", 1.0) * (1.0 if rng.random() < 0.5 else rng.uniform(0.6, 1.5))
    declared = TIER_TFLOPS.get(tier, 0.05 * slot.cores) * rng.uniform(0.8, 1.1)
    return make_candidate(
        slot,
        price_microcredits_per_hour=int(credits * factor * CREDIT),
        reliability=rng.choice((0.05, rng.uniform(0.3, 0.95), rng.uniform(0.85, 0.95))),
        declared_tflops=declared,
    )


def make_request(rng: random.Random) -> Request:
    gpu = rng.random() < 0.6
    need = Requirements(
        gpu=gpu,
        vram_bytes=rng.choice((0, 4, 8, 10, 12, 20, 24)) * GB if gpu else 0,
        cores=rng.choice((1, 1, 1, 2, 4, 8)),
        ram_bytes=rng.choice((1, 1, 2, 4, 8, 12, 30)) * GB,
        disk_bytes=rng.choice((1, 1, 5, 20, 100)) * GB,
        tiers=rng.choice(((), (), (), ("rtx-4090", "rtx-5090"), ("rtx-3060",))) if gpu else (),
        regions=rng.choice(((), (), (), ("IN",), ("DE", "FR", "NL"))),
        isolation=rng.choices(ISOLATION, weights=(80, 17, 3))[0],
    )
    ceiling = rng.choice((None, None, 10, 20, 24, 30, 40))
    return to_shape(need), rng.choice(list(Preference)), None if ceiling is None else ceiling * CREDIT


class IndexSide:
    """Ours: the fleet index with all sets of weights that are shipped."""

    def __init__(self, fleet: Iterable[Candidate]) -> None:
        self.index = FleetIndex(load_weights().sets)
        for candidate in fleet:
            self.index.add(candidate)

    def allocate(self, request: Request) -> Any:
        shape, preference, ceiling = request
        found = self.index.best(shape, preference, ceiling=ceiling)
        return found and self.index.take(found.slot.node_id, found.slot.name)

    def free(self, taken: Any) -> None:
        self.index.give(taken.slot.node_id, taken.slot.name)


class LoopSide:
    """The plain way."""

    def __init__(self, fleet: Iterable[Candidate]) -> None:
        self.nodes = [_to_dict(candidate) for candidate in fleet]

    def allocate(self, request: Request) -> Any:
        shape, preference, ceiling = request
        feasible = [
            node
            for node in self.nodes
            if node["free"]
            and (node["gpu"] or not shape.gpu)
            and node["vram_bytes"] >= shape.vram_bytes
            and node["cores"] >= shape.cores
            and node["ram_bytes"] >= shape.ram_bytes
            and node["disk_bytes"] >= shape.disk_bytes
            and node["isolation"] >= shape.isolation.rank
            and (not shape.tiers or node["tier"] in shape.tiers)
            and (not shape.regions or node["region"] in shape.regions)
            and (ceiling is None or node["price"] <= ceiling)
        ]
        price = 0.0 if preference is Preference.FASTEST else 1.0
        speed = 0.0 if preference is Preference.CHEAPEST else 1.0

        def weigh(node: dict[str, Any]) -> float:
            points = speed * log(node["speed"]) - price * log(node["price"]) + log(node["reliability"])
            return points if shape.gpu or not node["gpu"] else points - 1_000

        found = max(feasible, key=weigh, default=None)
        if found is not None:
            found["free"] = False
        return found

    def free(self, taken: Any) -> None:
        taken["free"] = True


def _to_dict(candidate: Candidate) -> dict[str, Any]:
    slot = candidate.slot
    return {
        "free": True,
        "gpu": slot.kind is SlotKind.GPU,
        "tier": slot.tier,
        "vram_bytes": slot.vram_bytes,
        "cores": slot.cores,
        "ram_bytes": slot.ram_bytes,
        "disk_bytes": slot.disk_bytes,
        "region": slot.region,
        "isolation": slot.isolation.rank,
        "price": candidate.price_microcredits_per_hour,
        "speed": candidate.speed_tflops,
        "reliability": candidate.reliability,
    }


def measure(side: Any, requests: list[Request]) -> float:
    """CPU seconds per allocation: find, take, and give back what was taken 64 requests ago."""
    out: deque[Any] = deque()
    start = time.process_time()
    for request in requests:
        taken = side.allocate(request)
        if taken is not None:
            out.append(taken)
        if len(out) > OUT_COUNT:
            side.free(out.popleft())
    seconds = time.process_time() - start
    for taken in out:
        side.free(taken)
    return seconds / len(requests)


def list_requests(number: int) -> list[Request]:
    rng = random.Random(number)
    return [make_request(random.Random(f"known/{rng.randrange(DIFFERENT_REQUESTS)}")) for _ in range(REQUESTS)]


@dataclass(slots=True)
class Contest:
    """Both sides with one fleet, and CPU seconds per allocation, one figure per round."""

    size: int
    index: IndexSide
    loop: LoopSide
    warm_up: list[float] = field(default_factory=list)
    by_index: list[float] = field(default_factory=list)
    by_loop: list[float] = field(default_factory=list)

    @property
    def index_seconds(self) -> float:
        return statistics.median(self.by_index)

    @property
    def loop_seconds(self) -> float:
        return statistics.median(self.by_loop)


def open_contest(report: Report, size: int) -> Contest:
    fleet = make_fleet(size, random.Random(size))
    start = time.process_time()
    ours = IndexSide(fleet)
    seconds = time.process_time() - start
    report.line(f"{size:>8} slots added in {seconds:.2f} s ({seconds / size * 1e6:.1f} us each)")
    return Contest(size, ours, LoopSide(fleet))


def warm_up(report: Report, contest: Contest) -> None:
    leaves = [0]
    for number in range(WARM_UP_ROUNDS_MAX):
        contest.warm_up.append(measure(contest.index, list_requests(number)))
        leaves.append(contest.index.index.leaf_count)
        if len(leaves) > STEADY_ROUNDS and leaves[-1] <= leaves[-1 - STEADY_ROUNDS] * STEADY_GROWTH:
            break
    first, second = contest.warm_up[0], contest.warm_up[1]
    spent = sum(contest.warm_up) * REQUESTS
    report.line(
        f"{contest.size:>8} slots, cold: {first * 1e6:.1f} us for each of the first {REQUESTS:,} questions, "
        f"{second * 1e6:.1f} us for the next; warm after {len(contest.warm_up) * REQUESTS:,} ({spent:.1f} s) "
        f"with {leaves[-1]} leaves"
    )


def compare_sizes(report: Report, rounds: int) -> dict[int, Contest]:
    contests = {size: open_contest(report, size) for size in SIZES}
    # What stands here lives to the end: the collector need not walk over it again and again while we measure.
    gc.collect()
    gc.freeze()
    for contest in contests.values():
        warm_up(report, contest)
    for number in range(rounds):
        requests = list_requests(1_000 + number)
        for contest in contests.values() if number % 2 == 0 else reversed(contests.values()):
            contest.by_index.append(measure(contest.index, requests))
            contest.by_loop.append(measure(contest.loop, requests[: LOOP_REQUESTS[contest.size]]))
    for contest in contests.values():
        new = measure(contest.index, [make_request(random.Random(f"new/{each}")) for each in range(REQUESTS)])
        report.line(f"{contest.size:>8} slots: questions not asked before cost {new * 1e6:.1f} us each")
    return contests


def find_growth(small: Contest, large: Contest) -> tuple[float, float]:
    """How much dearer a question is in the larger fleet: warm, as the median of rounds; and cold."""
    pairs = zip(large.by_index, small.by_index, strict=True)
    return statistics.median(mine / other for mine, other in pairs), large.warm_up[0] / small.warm_up[0]


# Bad luck on purpose


def show_hard_questions(report: Report) -> None:
    rng = random.Random(7)
    fleet = make_fleet(100_000, rng)
    wish = Requirements(gpu=True, ram_bytes=60 * GB)
    rows = []
    for name, hard, need, ceiling in (
        ("best 10,000 fail the RAM gate", [_spoil_ram(c, n) for n, c in enumerate(fleet)], wish, None),
        ("only one slot fits, and it scores worst", [_spoil_all(c, n) for n, c in enumerate(fleet)], wish, None),
        ("every slot asks one credit too much", [_ask_more(c) for c in fleet], Requirements(), 5 * CREDIT),
        ("nothing fits at all", fleet, Requirements(gpu=True, ram_bytes=1000 * GB), None),
    ):
        index = IndexSide(hard).index
        shape = to_shape(need)
        first, *then = [
            _time(lambda i=index, s=shape, c=ceiling: i.best(s, Preference.FASTEST, ceiling=c), 1) for _ in range(501)
        ]
        rows.append([name, first * 1e3, max(then) * 1e3, statistics.median(then) * 1e6])
    report.table(
        "Hard questions, 100,000 slots",
        ["", "first time, ms", "worst of the next 500, ms", "their median, us"],
        rows,
    )
    index = IndexSide(fleet).index
    times = []
    for _ in range(3_000):
        shape, preference, ceiling = _make_odd_request(rng)
        times.append(_time(lambda s=shape, p=preference, c=ceiling: index.best(s, p, ceiling=c), 1))
    times.sort()
    report.line(
        f"  3,000 odd shapes, none asked twice: median {times[1_500] * 1e6:.0f} us, "
        f"99 % {times[2_970] * 1e6:.0f} us, worst {times[-1] * 1e3:.1f} ms; then {index.leaf_count} leaves"
    )


def _make_odd_request(rng: random.Random) -> Request:
    need = Requirements(
        gpu=rng.random() < 0.5,
        cores=rng.randint(1, 16),
        ram_bytes=rng.randint(1, 64 * GB),
        disk_bytes=rng.randint(1, 500 * GB),
        regions=tuple(region for region in rng.sample(REGIONS, rng.randint(0, 4)) if region),
        isolation=rng.choice(ISOLATION),
    )
    return to_shape(need), rng.choice(list(Preference)), rng.randint(5 * CREDIT, 50 * CREDIT)


def _spoil_ram(candidate: Candidate, number: int) -> Candidate:
    fast = number < 10_000
    slot = candidate.slot
    spoilt = _with(slot, ram_bytes=(59 if fast else 61) * GB)
    return Candidate(spoilt, 200.0 if fast else 20.0, candidate.price_microcredits_per_hour, 0.9)


def _spoil_all(candidate: Candidate, number: int) -> Candidate:
    gates = {"kind": SlotKind.GPU, "tier": "rtx-4090", "vram_bytes": 24 * GB, "ram_bytes": 59 * GB}
    if number == 0:
        return Candidate(_with(candidate.slot, **{**gates, "ram_bytes": 61 * GB}), 0.1, 1, 0.1)
    return Candidate(_with(candidate.slot, **gates), candidate.speed_tflops, 1, 0.9)


def _ask_more(candidate: Candidate) -> Candidate:
    return Candidate(candidate.slot, candidate.speed_tflops, 6 * CREDIT, candidate.reliability)


def _with(slot: Slot, **changes: Any) -> Slot:
    names = (
        "node_id",
        "name",
        "kind",
        "tier",
        "vram_bytes",
        "cores",
        "ram_bytes",
        "disk_bytes",
        "region",
        "isolation",
    )
    return Slot(**{**{name: getattr(slot, name) for name in names}, **changes})


def _time(ask: Callable[[], object], count: int) -> float:
    start = time.process_time()
    for _ in range(count):
        ask()
    return (time.process_time() - start) / count


# The same winner


def best_by_exhaustion(
    candidates: Iterable[Candidate], request: Request, weights: Weights, avoid: NodeId | None
) -> Candidate | None:
    """Every gate of every slot, every score: slow and plainly right."""
    shape, preference, ceiling = request
    feasible = [
        candidate
        for candidate in candidates
        if find_refusal(shape, candidate.slot) is None
        and (ceiling is None or candidate.price_microcredits_per_hour <= ceiling)
        and candidate.slot.node_id != avoid
    ]

    def rank(candidate: Candidate) -> tuple[float, tuple[object, ...]]:
        return -score(candidate, shape, weights, preference), break_tie(candidate, gpu=shape.gpu)

    return min(feasible, key=rank, default=None)


def share_of_equal_scores(cases: int) -> tuple[float, float]:
    """Shares of random cases in which the index finds the best score, and the very slot. Slots come and go."""
    book = load_weights()
    rng = random.Random(1)
    equal = same = done = 0
    while done < cases:
        fleet = make_fleet(rng.choice((20, 200, 600)), rng)
        index = FleetIndex(book.sets)
        for candidate in fleet:
            index.add(candidate)
        for _ in range(min(200, cases - done)):
            done += 1
            _stir(index, fleet, rng)
            request = make_request(rng) if rng.random() < 0.5 else _make_odd_request(rng)
            shape, preference, ceiling = request
            name = rng.choice(sorted(book.sets))
            avoid = rng.choice((None, NodeId(UUID(int=rng.randrange(20)))))
            found = index.best(shape, preference, weights=name, ceiling=ceiling, avoid=avoid)
            best = best_by_exhaustion(index, request, book.sets[name], avoid)
            same += found == best
            equal += _score_of(found, request, book.sets[name]) == _score_of(best, request, book.sets[name])
    return equal / cases, same / cases


def _stir(index: FleetIndex, fleet: list[Candidate], rng: random.Random) -> None:
    """Some slot goes or comes back, and some slot changes its price or its owner's mind."""
    free = {(candidate.slot.node_id, candidate.slot.name) for candidate in index}
    slot = rng.choice(fleet).slot
    key = (slot.node_id, slot.name)
    if key in free:
        index.withdraw(*key)
    elif key in index:
        index.give(*key)
    number = rng.randrange(len(fleet))
    index.remove(fleet[number].slot.node_id, fleet[number].slot.name)
    fleet[number] = make_slot(number, rng)
    index.add(fleet[number])


def _score_of(found: Candidate | None, request: Request, weights: Weights) -> float | None:
    return None if found is None else score(found, request[0], weights, request[1])


def show(report: Report, contests: dict[int, Contest]) -> None:
    report.table(
        "CPU time per allocation: find, take, give back; medians",
        ["slots", "index, us", "dict loop, us", "loop / index"],
        [
            [f"{c.size:,}", c.index_seconds * 1e6, c.loop_seconds * 1e6, c.loop_seconds / c.index_seconds]
            for c in contests.values()
        ],
    )
    report.curve(
        "Choosing the best slot",
        x="slots",
        y="CPU us per allocation",
        series={
            "index": [(c.size, c.index_seconds * 1e6) for c in contests.values()],
            "index, its first 2,000 questions": [(c.size, c.warm_up[0] * 1e6) for c in contests.values()],
            "loop over dicts": [(c.size, c.loop_seconds * 1e6) for c in contests.values()],
        },
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--quick", action="store_true", help="few rounds and cases; proves that it runs")
    parser.add_argument("--out", type=Path, help="store the whole report in this file, as JSON")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.cases = min(args.rounds, 3), min(args.cases, 200)
    report = Report("match", complete=not args.quick, out=args.out)
    contests = compare_sizes(report, args.rounds)
    show(report, contests)
    small, large = contests[500], contests[100_000]
    growth, cold_growth = find_growth(small, large)
    report.line(f"\n  growth from 500 to 100,000 slots: {growth:.2f} warm, {cold_growth:.1f} for the first questions")
    if not args.quick:
        show_hard_questions(report)
    equal, same = share_of_equal_scores(args.cases)
    report.line(f"\n  {args.cases:,} random cases: best score found in {equal:.2%}, the very same slot in {same:.2%}")
    report.finish(
        {
            "growth_500_to_100k": growth,
            "speedup_over_dict_loop_100k": large.loop_seconds / large.index_seconds,
            "ms_500_nodes": small.index_seconds * 1e3,
            "equal_best_score_share": equal,
        }
    )


if __name__ == "__main__":
    main()
