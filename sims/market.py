"""The economy under stress: six stories on the real market and ledger code, measured and drawn.

thunderstorm   400 nodes of one region arrive at once, in a grid that was short of them
spike          demand for one tier trebles
dark           a region's nodes vanish together with what they were running
whale          one account submits as much as all others do in hours
cartel         owners of many slots withdraw half of them to lift the price
shading        a few submitters bid less than what the work is worth to them, in a bucket with too little supply

    python -m sims.market [--histories N] [--plots FOLDER] [--no-plots]

Prints tables and, as its last line, one JSON object. What each figure means stands beside the function that takes it.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median, pstdev
from typing import Any

from benchmarks.tables import Report
from computepool.core.ledger.charging import price_seconds
from computepool.core.market.cheapest import OfferIndex
from computepool.core.market.offers import Ask, Offer
from computepool.core.market.rate_card import Bucket, RateCard, parse_rate_card
from computepool.core.market.spot import RULE, TICK_SECONDS, SpotRule
from sims.economy import Demand, Economy, Node, account, add_fleet, stream

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"

REGIONS = ("us", "eu", "in")
BIG = tuple(Bucket("rtx-4090", region) for region in REGIONS)
MID = tuple(Bucket("rtx-3060", region) for region in REGIONS)
# Ticks before and after the event of a story.
BEFORE, AFTER = 40, 60
# Slices that a slot finishes in a minute: the mean of the lengths that Demand draws.
SLICES_PER_SLOT_MINUTE = 60 / 567
# Of the work that is asked for, how much is worth the reference price or more: what a load means at that price.
WORTH_REFERENCE = 0.83
# A price has settled once it stays as near to its later mean as one tick could move it.
SETTLED_RATIO = RULE.step_ppm_max / 1e6
MEAN_FROM = 20

STORM_OWNERS = [account(number) for number in range(500, 620)]
OWNERS = [account(number) for number in range(1, 200)]
CARTEL = [account(number) for number in range(700, 710)]
PROBES = tuple(account(number) for number in range(2_000, 2_008))
WHALE = account(3_000)


@dataclass(slots=True)
class Story:
    name: str
    economy: Economy
    # The tick at which it happens.
    shock: int
    # Buckets whose price is followed.
    buckets: tuple[Bucket, ...]


# All histories of each, for the plots.
STORIES: dict[str, list[Story]] = {}
# Over all histories.
BREACHES: Counter[str] = Counter(paid_above_ceiling=0, paid_below_floor=0)


def load_card() -> RateCard:
    return parse_rate_card(files("computepool.core.market").joinpath("rate_card.toml").read_text(encoding="utf-8"))


def open_grid(
    seed: str, *, big: int, mid: int, load: float, rule: SpotRule = RULE, kind: type[Economy] = Economy
) -> Economy:
    """So many slots of each tier in every region; the load is work asked for over work that fits, at any price."""
    economy = kind(load_card(), seed, rule)
    add_fleet(economy, {**dict.fromkeys(BIG, big), **dict.fromkeys(MID, mid)}, owners=OWNERS)
    end = (BEFORE + AFTER) * TICK_SECONDS
    for buckets, slots in ((BIG, 3 * big), (MID, 3 * mid)):
        stream(economy, Demand(slots * load * SLICES_PER_SLOT_MINUTE, buckets), start=0, end=end)
    return economy


# The stories


def tell_thunderstorm(seed: str, rule: SpotRule = RULE, kind: type[Economy] = Economy) -> Story:
    economy = open_grid(seed, big=17, mid=17, load=1.5, rule=rule, kind=kind)
    economy.run(BEFORE)
    for node in economy.nodes:
        node.started_count = 0
    add_fleet(economy, {Bucket("rtx-4090", "in"): 200, Bucket("rtx-3060", "in"): 200}, owners=STORM_OWNERS)
    economy.run(AFTER)
    return Story("thunderstorm", economy, BEFORE, BIG + MID)


def tell_spike(seed: str, rule: SpotRule = RULE) -> Story:
    economy = open_grid(seed, big=60, mid=120, load=0.75, rule=rule)
    extra = Demand(3 * 120 * 1.5 * SLICES_PER_SLOT_MINUTE, MID)
    stream(economy, extra, start=BEFORE * TICK_SECONDS, end=(BEFORE + AFTER) * TICK_SECONDS)
    economy.run(BEFORE + AFTER)
    return Story("spike", economy, BEFORE, MID)


def tell_dark(seed: str, rule: SpotRule = RULE) -> Story:
    economy = open_grid(seed, big=60, mid=120, load=0.9, rule=rule)
    economy.run(BEFORE)
    for node in economy.nodes:
        if node.bucket.region == "in":
            economy.vanish(node)
    economy.run(AFTER)
    return Story("dark", economy, BEFORE, tuple(bucket for bucket in BIG + MID if bucket.region != "in"))


def tell_whale(seed: str, rule: SpotRule = RULE) -> Story:
    economy = open_grid(seed, big=60, mid=120, load=0.8, rule=rule)
    economy.run(BEFORE)
    ceiling = economy.card.reference(MID[0]) * 5 // 2
    seconds = [max(30, int(500 * economy.random.lognormvariate(0.0, 0.5))) for _ in range(5_000)]
    economy.submit(WHALE, MID, value=ceiling, ceiling=ceiling, seconds=seconds, patience_seconds=1e9, group="whale")
    economy.run(AFTER)
    return Story("whale", economy, BEFORE, MID)


def tell_cartel(seed: str, rule: SpotRule = RULE, *, withdraw: bool = True) -> tuple[Story, int]:
    """Also what the cartel earned after the moment at which it withdraws, or would have."""
    economy = open_grid(seed, big=36, mid=60, load=1.1, rule=rule)
    members = add_fleet(economy, dict.fromkeys(BIG, 24), owners=CARTEL)
    end = (BEFORE + AFTER) * TICK_SECONDS
    stream(economy, Demand(len(members) * 1.1 * SLICES_PER_SLOT_MINUTE, BIG), start=0, end=end)
    economy.run(BEFORE)
    earned = sum(node.earned for node in members)
    if withdraw:
        for node in members[::2]:
            economy.withdraw(node)
    economy.run(AFTER)
    return Story("cartel", economy, BEFORE, BIG), sum(node.earned for node in members) - earned


# Figures


def count_settle_ticks(prices: Sequence[float]) -> int:
    """From the event on: ticks until the price stays within one largest step of its mean from tick 20 on."""
    final = fmean(prices[MEAN_FROM:])
    ticks = len(prices)
    while ticks and abs(prices[ticks - 1] - final) <= SETTLED_RATIO * final:
        ticks -= 1
    return ticks


def find_settle_ticks(histories: Sequence[Story]) -> int:
    """Of the bucket that took longest, its price averaged over the histories of a story.

    The mean shows what the event does to the price; what demand does by chance an hour later is not the event's.
    """
    return max(count_settle_ticks(average_prices(histories, bucket)) for bucket in histories[0].buckets)


def average_prices(histories: Sequence[Story], bucket: Bucket) -> list[float]:
    paths = (story.economy.trace.surge[bucket][story.shock :] for story in histories)
    return [fmean(prices) for prices in zip(*paths, strict=True)]


def find_noise(histories: Sequence[Story]) -> float:
    """How far the single histories lie from their mean once it has settled; of the noisiest bucket."""
    noise = []
    for bucket in histories[0].buckets:
        paths = [story.economy.trace.surge[bucket][story.shock + MEAN_FROM :] for story in histories]
        noise.append(fmean(pstdev(prices) / fmean(prices) for prices in zip(*paths, strict=True)))
    return max(noise)


def find_swing(histories: Sequence[Story]) -> float:
    """The mean move from tick to tick once it has settled, as a part of the price; of the most restless bucket."""
    swings = []
    for bucket in histories[0].buckets:
        paths = [story.economy.trace.surge[bucket][story.shock + MEAN_FROM :] for story in histories]
        moves = [abs(following - price) for path in paths for price, following in pairwise(path)]
        swings.append(fmean(moves) / fmean(map(fmean, paths)))
    return max(swings)


def find_share(nodes: Sequence[Node]) -> tuple[float, float]:
    """Slices started per node since the storm: the most that any got, and the median over all that are there."""
    counts = [node.started_count for node in nodes if node.online]
    return max(counts), median(counts)


def count_breaches(economy: Economy) -> tuple[int, int]:
    """Attempts for which the books show more than the ceiling, or less than the floor, for the seconds they ran."""
    paid = economy.till.sum_paid()
    above = below = 0
    for each in economy.settled:
        amount = paid.get(each.attempt_number, 0)
        above += amount > price_seconds(each.ceiling, each.seconds)
        below += amount < price_seconds(each.floor, each.seconds)
    return above, below


def close_books(economy: Economy) -> None:
    """At the end of every history: the ledger must be exact, and breaches are counted."""
    faults = economy.till.list_faults()
    if faults:
        raise SystemExit(f"the books do not add up: {faults}")
    above, below = count_breaches(economy)
    BREACHES["paid_above_ceiling"] += above
    BREACHES["paid_below_floor"] += below


@dataclass(frozen=True, slots=True)
class Bid:
    name: str
    # From true value and reference price to the ceiling that is said.
    say: Callable[[int, int], int]
    # Of the floors in the fleet, or something else.
    is_floor: bool = True


BIDS = (
    Bid("the median floor (0.65)", lambda value, reference: min(value, reference * 65 // 100)),
    Bid("a high floor (0.95)", lambda value, reference: min(value, reference * 95 // 100)),
    Bid("0.9 of the value", lambda value, reference: value * 9 // 10, is_floor=False),
)
# Work worth the reference price over what fits: the bucket is contended in all of them.
CONTENDED = (1.1, 1.3, 1.6)
SHADING_SLOTS = 100
SHADING_TICKS = 105


def run_shading(seed: str, load: float, bid: Bid | None, kind: type[Economy] = Economy) -> float:
    """What the probes got out of it: value minus price, over all that they could run before they gave up.

    One submitter in twenty shades. Only what arrived between ticks 15 and 55 counts: all of it has been served or has
    given up before the end, so that nobody is helped by the end of demand.
    """
    bucket = BIG[0]
    economy = kind(load_card(), seed)
    reference = economy.card.reference(bucket)
    add_fleet(economy, {bucket: SHADING_SLOTS}, owners=OWNERS)
    rate = SHADING_SLOTS * load / WORTH_REFERENCE * SLICES_PER_SLOT_MINUTE
    end = SHADING_TICKS * TICK_SECONDS
    said = None if bid is None else (lambda value: bid.say(value, reference))
    stream(economy, Demand(rate * 0.95, (bucket,)), start=0, end=end)
    stream(economy, Demand(rate * 0.05, (bucket,), group="probe", accounts=PROBES, bid=said), start=0, end=end)
    economy.run(SHADING_TICKS)
    close_books(economy)
    counted = range(15 * TICK_SECONDS, 55 * TICK_SECONDS)
    return sum(
        (each.value - each.price) * each.seconds
        for each in economy.settled
        if each.group == "probe" and int(each.at - each.waited_seconds) in counted
    )


def measure_shading(report: Report, seeds: Sequence[str]) -> float:
    """The most that bidding a floor gained over bidding the truth, over all loads, floors and seeds."""
    rows, gains = [], []
    for load in CONTENDED:
        row: dict[str, list[float]] = {bid.name: [] for bid in BIDS}
        for seed in seeds:
            truth = run_shading(seed, load, None)
            for bid in BIDS:
                row[bid.name].append(run_shading(seed, load, bid) / truth - 1)
        gains += [max(row[bid.name]) for bid in BIDS if bid.is_floor]
        rows.append([f"{load:g} x supply", *(f"{fmean(found):+.2f}" for found in row.values())])
    report.table(
        "What shading gains over the truth (mean of the histories)", ["demand", *(b.name for b in BIDS)], rows
    )
    return max(gains)


# Controls: what the same measures say when something is spoilt on purpose


class LowestFloorFirst(Economy):
    """Gives work to whoever asks for least, not to whoever has waited longest."""

    def find_turn(self, node: Node) -> float:
        return float(node.offer.floor_microcredits_per_hour)


class WithoutForce(Economy):
    """Lets low ceilings run although others wait and would pay more."""

    has_force = False


# Straight to what the moment asks for.
UNDAMPED = SpotRule(smoothing_ppm=1_000_000, reach_ppm=5_000_000, step_ppm_min=5_000_000, step_ppm_max=5_000_000)


def measure_controls(seed: str) -> dict[str, float]:
    most, middle = find_share(tell_thunderstorm(seed, kind=LowestFloorFirst).economy.nodes)
    truth = run_shading(seed, CONTENDED[1], None, WithoutForce)
    undamped = STORIES["undamped"] = [tell_spike(seed, UNDAMPED)]
    return {
        "control_share_lowest_floor_first": most / max(middle, 1),
        "control_settle_undamped": find_settle_ticks(undamped),
        "control_move_undamped": find_swing(undamped),
        "control_shading_without_force": run_shading(seed, CONTENDED[1], BIDS[1], WithoutForce) / truth - 1,
    }


# The run


def tell_all(report: Report, seeds: Sequence[str]) -> dict[str, float]:
    settle, swings, shares, rows = [], [], [0.0], []
    for tell in (tell_thunderstorm, tell_spike, tell_dark, tell_whale):
        histories = [tell(seed) for seed in seeds]
        for story in histories:
            close_books(story.economy)
            if tell is tell_thunderstorm:
                most, middle = find_share(story.economy.nodes)
                shares.append(most / middle)
        STORIES[histories[0].name] = histories
        settle.append(find_settle_ticks(histories))
        swings.append(find_swing(histories))
        rows.append(_summarise(histories, settle[-1]))
    report.table(
        f"Before -> after the event (means of 20 ticks and {len(seeds)} histories)",
        ["story", "surge", "use", "wait, min", "settled, ticks", "then moves per tick", "then noise"],
        rows,
    )
    return {"max_share_vs_median": max(shares), "settle_ticks": max(settle), "move_per_tick": max(swings)}


def _summarise(histories: Sequence[Story], ticks: int) -> list[object]:
    first = histories[0]
    traces = [story.economy.trace for story in histories]

    def change(series: Sequence[Sequence[float]], scale: float = 1.0) -> str:
        before = fmean(fmean(each[first.shock - 20 : first.shock]) for each in series)
        after = fmean(fmean(each[-20:]) for each in series)
        return f"{before / scale:.2f} -> {after / scale:.2f}"

    return [
        first.name,
        change([trace.surge[bucket] for trace in traces for bucket in first.buckets]),
        change([trace.utilisation for trace in traces]),
        change([trace.wait_seconds for trace in traces], 60),
        ticks,
        f"{find_swing(histories) * 100:.1f} %",
        f"{find_noise(histories) * 100:.1f} %",
    ]


def measure_cartel(report: Report, seeds: Sequence[str]) -> tuple[float, int]:
    """What withdrawing half of its slots gained the cartel, at best of the seeds; it owns two slots in five.

    Also how many ticks the price took to settle.
    """
    gains = []
    for seed in seeds:
        story, with_cartel = tell_cartel(seed)
        without = tell_cartel(seed, withdraw=False)[1]
        close_books(story.economy)
        gains.append(with_cartel / without - 1)
        STORIES.setdefault(story.name, []).append(story)
    ticks = find_settle_ticks(STORIES["cartel"])
    report.line(
        f"cartel: withdrawing half of its slots changed what it earned by {_say(gains)}; settled after {ticks} ticks"
    )
    return max(gains), ticks


def measure_whale(report: Report) -> None:
    economy = STORIES["whale"][0].economy
    shock_at = BEFORE * TICK_SECONDS
    others = [s for s in economy.settled if s.group != "whale" and s.bucket in MID]
    before = [s.waited_seconds for s in others if s.at < shock_at]
    after = [s.waited_seconds for s in others if s.at >= shock_at]
    report.line(
        f"whale: others of its tier waited {fmean(before) / 60:.1f} min on average before it came, and "
        f"{fmean(after) / 60:.1f} min after"
    )


def measure_cheapest(report: Report) -> None:
    """What the cheapest-offer question costs, with taking the offer and giving it back, as the fleet grows."""
    rng = random.Random("cheapest")
    card = load_card()
    buckets = [Bucket(tier, region) for tier in card.tiers_ppm for region in card.regions]
    spots = {bucket: card.reference(bucket) for bucket in buckets}
    costs = []
    for size in (1_000, 10_000, 100_000):
        index: OfferIndex[int] = OfferIndex()
        placed = []
        for key in range(size):
            bucket = rng.choice(buckets)
            floor = int(card.reference(bucket) * rng.uniform(0.4, 1.5))
            placed.append((bucket, Offer(account(key % 5_000), floor)))
            index.put(key, *placed[-1], free_since=float(key))
        questions = [_draw_question(rng, buckets, spots) for _ in range(1_000)]
        start = time.process_time()
        for number, (ask, where) in enumerate(questions):
            found = index.find_cheapest(ask, where, spots=spots)
            if found is not None:
                index.remove(found.key)
                index.put(found.key, *placed[found.key], free_since=float(size + number))
        costs.append(f"{(time.process_time() - start) / len(questions) * 1e6:.0f} us among {size:,}")
    report.line(f"cheapest offer, taken and given back: {', '.join(costs)}")


def _draw_question(
    rng: random.Random, buckets: Sequence[Bucket], spots: Mapping[Bucket, int]
) -> tuple[Ask, tuple[Bucket, ...]]:
    where = tuple(rng.sample(buckets, rng.choice((1, 5, len(buckets)))))
    ceiling = rng.choice((None, int(spots[where[0]] * rng.uniform(0.6, 1.5))))
    return Ask(account(9_000), "ml", 600, ceiling), where


def _say(values: Sequence[float]) -> str:
    return " ".join(f"{value:+.2f}" for value in values)


def draw(folder: Path) -> None:
    """In the environment of the benchmarks' peers: there is matplotlib, which this project does not need."""
    from benchmarks.peers import environment

    environment.ensure_venv()
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "market.json"
        path.write_text(json.dumps([_to_plot(name, histories) for name, histories in STORIES.items()]))
        subprocess.run(
            [str(environment.PYTHON), str(Path(__file__).with_name("market_plot.py")), str(path), str(folder)],
            check=True,
            timeout=300,
        )


def _to_plot(name: str, histories: Sequence[Story]) -> dict[str, Any]:
    """Each line as one path per history."""
    traces = [story.economy.trace for story in histories]
    shock = histories[0].shock
    return {
        "name": name,
        "minutes": [(tick - shock) * TICK_SECONDS / 60 for tick in range(len(traces[0].waiting))],
        "surge": {
            f"{bucket.tier} {bucket.region}": [trace.surge[bucket] for trace in traces] for bucket in traces[0].surge
        },
        "wait_minutes": [[seconds / 60 for seconds in trace.wait_seconds] for trace in traces],
        "use": [trace.utilisation for trace in traces],
    }


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="sims.market", description="The economy under stress.")
    parser.add_argument("--histories", type=int, default=4, metavar="N", help="of each story; half as many of bids")
    parser.add_argument("--plots", type=Path, default=IMAGES, metavar="FOLDER")
    parser.add_argument("--no-plots", action="store_true")
    options = parser.parse_args(arguments)
    seeds = [f"seed {number}" for number in range(1, options.histories + 1)]
    fewer = seeds[: (len(seeds) + 1) // 2]
    report = Report("market")
    figures = tell_all(report, seeds)
    measure_whale(report)
    measure_cheapest(report)
    figures["cartel_gain"], ticks = measure_cartel(report, fewer)
    figures["settle_ticks"] = max(figures["settle_ticks"], ticks)
    figures["bid_shading_gain"] = measure_shading(report, fewer)
    figures |= BREACHES
    figures |= measure_controls(seeds[0])
    if not options.no_plots:
        draw(options.plots)
    report.finish(figures)


if __name__ == "__main__":
    main(sys.argv[1:])
