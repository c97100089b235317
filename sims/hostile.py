"""A fleet that may lie: how many wrong results get through, what that costs, and whether forging pays.

always       forges every result                   trickle      forges one in fifty
sleeper      is honest for 300, then forges all    hit_and_run  is honest for 300, forges four, is honest again
collude      honest until trusted, then one in fifty; forgers back each other as auditors
reenter      comes back under new names, as often as identities are given
tier_fraud   claims a card 1.3 times as fast as its own

    python -m sims.hostile [--nodes N] [--hostile N] [--strategy NAME] [--seeds N] [--results N] [--jobs N]
                           [--out FOLDER] [--plots FOLDER]

Without a strategy: all of them at 5, 10 and 20 % of the fleet, and the control without validation. Prints tables and,
as its last line, one JSON object. What each figure means stands beside the function that takes it. With --out every
history is kept as soon as it is told; a run that was stopped goes on from there.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, exp, lgamma, log, sqrt
from multiprocessing import Pool
from pathlib import Path
from statistics import fmean, stdev, variance

from benchmarks.tables import Report
from computepool.core.trust.challenge import Claim, ProofState, Round, judge, needs_more, plan_work
from sims.forgers import FORGE, Fleet, Tally
from sims.histories import Outcome, Setting, Shelf

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"

JUDGED = ("always", "trickle", "sleeper", "hit_and_run", "collude")
STRATEGIES = (*JUDGED, "reenter", "tier_fraud")
# At a tenth of the fleet. The first has targets of its own, the others none.
BEYOND = ("reenter", "patient_trickle", "rare")
NODES, RESULTS, SEEDS = 100, 1_500, 20
SHARES = (5, 10, 20)
# Student's t for an upper bound of 95 %, by degrees of freedom. In between, that of fewer counts: it is wider.
_T95 = {1: 6.31, 2: 2.92, 3: 2.35, 4: 2.13, 5: 2.02, 7: 1.89, 9: 1.83, 14: 1.76, 19: 1.73, 29: 1.70}


@dataclass(frozen=True, slots=True)
class Story:
    """One strategy at one share of the fleet, over all seeds."""

    strategy: str
    hostile: int
    tallies: tuple[Tally, ...]
    # By seed: what forging brought a machine on average; in microcredits.
    gains: tuple[float, ...]


def run_one(setting: Setting) -> Outcome:
    fleet = Fleet(
        nodes=setting.nodes,
        hostile=setting.hostile,
        strategy=setting.strategy,
        seed=f"{setting.strategy} {setting.hostile} {setting.seed}",
        validates=setting.validates,
    )
    tally = fleet.run(setting.results)
    return Outcome(tally, fmean(fleet.purse.gain(number) for number in range(setting.hostile)))


def run_many(settings: Sequence[Setting], *, jobs: int = 1, shelf: Shelf | None = None) -> dict[Setting, Outcome]:
    """Those that the shelf has are not run again."""
    found = {} if shelf is None else shelf.find_all(settings)
    missing = [setting for setting in settings if setting not in found]
    begun = time.monotonic()
    for number, (setting, outcome) in enumerate(_play(missing, jobs), start=1):
        found[setting] = outcome
        if shelf is not None:
            shelf.keep(setting, outcome)
        _say_progress(setting, number, len(missing), time.monotonic() - begun)
    return found


def _play(settings: Sequence[Setting], jobs: int) -> Iterator[tuple[Setting, Outcome]]:
    if jobs == 1:
        yield from ((setting, run_one(setting)) for setting in settings)
        return
    with Pool(jobs) as pool:
        yield from zip(settings, pool.imap(run_one, settings), strict=True)


def _say_progress(setting: Setting, number: int, total: int, seconds: float) -> None:
    left = seconds / number * (total - number)
    what = f"{setting.strategy}, {setting.hostile} of {setting.nodes}, {setting.seed}"
    print(f"hostile: {number} of {total} ({what}), {left:.0f} s left", file=sys.stderr, flush=True)


def tell(settings: Sequence[Setting], outcomes: Mapping[Setting, Outcome] | None = None) -> Story:
    told = run_many(settings) if outcomes is None else outcomes
    found = [told[setting] for setting in settings]
    tallies, gains = zip(*found, strict=True)
    return Story(settings[0].strategy, settings[0].hostile, tallies, gains)


def list_settings(
    strategy: str, hostile: int, options: argparse.Namespace, *, validates: bool = True
) -> list[Setting]:
    return [
        Setting(options.nodes, hostile, strategy, options.results, f"seed {number}", validates)
        for number in range(options.seeds)
    ]


# Figures


def bound_wrong(tallies: Sequence[Tally]) -> float:
    """Finalised wrong results over finalised ones: the upper 95 % bound of what seeds come to on average.

    The wider of two: Student's t, which knows that seeds may be few, and the bound of a count, which knows that wrong
    results are. They come in bursts, so bursts are counted, of the size that makes seeds differ as they do.
    """
    counts = [tally.wrong_finalised for tally in tallies]
    finalised = max(1, sum(tally.finalised for tally in tallies))
    mean = fmean(counts)
    burst = max(1.0, variance(counts) / mean) if mean and len(counts) > 1 else 1.0
    by_count = burst * bound_count(ceil(sum(counts) / burst - 1e-9)) / finalised
    return max(by_count, _bound_mean([tally.wrong_finalised / max(1, tally.finalised) for tally in tallies]))


def bound_count(seen: int) -> float:
    """The least mean of a Poisson count at which so few are seen in 5 % of all cases: 3.0 for none, 4.7 for one."""
    low, high = 0.0, 4.0 * seen + 10.0
    while high - low > 1e-9 * high:
        mean = (low + high) / 2
        so_few = sum(exp(number * log(mean) - mean - lgamma(number + 1.0)) for number in range(seen + 1))
        low, high = (mean, high) if so_few > 0.05 else (low, mean)
    return high


def _bound_mean(sample: Sequence[float]) -> float:
    if len(sample) < 2:
        return sample[0]
    t = _T95[max(degrees for degrees in _T95 if degrees < len(sample))]
    return fmean(sample) + t * stdev(sample) / sqrt(len(sample))


def find_overhead(tallies: Sequence[Tally]) -> float:
    """Runs beyond the first, over all results that were delivered."""
    return sum(tally.extra_runs for tally in tallies) / sum(tally.results for tally in tallies)


def find_profit(story: Story) -> float:
    """In credits per machine: what forging brought, at best of the seeds."""
    return max(story.gains) / 1e6


# Proof of hardware

TIERS = ("rtx-5090", "rtx-4090", "rtx-3090", "rtx-4070", "rtx-3080", "rtx-3060", "rtx-2070", "gtx-1080", "gtx-1660")
# Of the maker's figure: what a usual library reaches, and what all of them do. And how much a round is slowed by what
# else the machine does.
EFFICIENCY = 0.65
EFFICIENCY_RANGE = (0.60, 0.80)
SLOWED_MAX = 0.15
FRAUD_FACTOR = 1.3


def sit(tier: str, factor: float, rng: random.Random, efficiency: float = EFFICIENCY) -> ProofState:
    """One sitting of a card that is slower than it claims by this factor."""
    claim = Claim(tier, None, 8)
    work = plan_work(claim, seed=b"", seconds=2.0)
    flops = 2.0 * work.size**3 * work.products
    rounds: list[Round] = []
    while needs_more(claim, rounds):
        speed = claim.expected_tflops * efficiency / factor
        seconds = flops / (speed * 1e12) / (1.0 - rng.uniform(0.0, SLOWED_MAX)) + rng.uniform(0.05, 0.35)
        rounds.append(Round(flops, seconds, right=True))
    return judge(claim, rounds).state


def measure_tiers(
    sittings: int, seed: str = "tiers", *, efficiency: tuple[float, float] = (EFFICIENCY, EFFICIENCY)
) -> tuple[float, float]:
    """Shares of frauds that do not keep the tier, and of honest cards that lose theirs.

    Each card reaches its own share of the maker's figure, within these bounds. Where they are as far apart as fraud
    and truth, no limit on a card's speed alone can tell the two apart.
    """
    rng = random.Random(seed)
    caught = rejected = 0
    for number in range(sittings):
        tier = TIERS[number % len(TIERS)]
        caught += sit(tier, FRAUD_FACTOR, rng, rng.uniform(*efficiency)) is not ProofState.PROVEN
        rejected += sit(tier, 1.0, rng, rng.uniform(*efficiency)) is not ProofState.PROVEN
    return caught / sittings, rejected / sittings


def report_tiers(report: Report, sittings: int) -> dict[str, float]:
    """At one efficiency, which the targets speak of; and, beyond them, at all that libraries reach."""
    caught, rejected = measure_tiers(sittings)
    report.line(f"tier fraud: {caught:.1%} caught, {rejected:.1%} of honest cards rejected")
    spread_caught, spread_rejected = measure_tiers(sittings, efficiency=EFFICIENCY_RANGE)
    low, high = EFFICIENCY_RANGE
    report.line(
        f"tier fraud, cards at {low:.0%} to {high:.0%} of the maker's figure: {spread_caught:.1%} caught, "
        f"{spread_rejected:.1%} of honest cards rejected"
    )
    return {
        "tier_fraud_caught": caught,
        "tier_honest_rejected": rejected,
        "tier_fraud_caught_any_library": spread_caught,
        "tier_honest_rejected_any_library": spread_rejected,
    }


# The run


def report_stories(report: Report, stories: Sequence[Story]) -> None:
    rows = [
        [
            f"{story.strategy}, {story.hostile}",
            f"{fmean(t.wrong_finalised / max(1, t.finalised) for t in story.tallies):.1e}",
            f"{bound_wrong(story.tallies):.1e}",
            f"{find_overhead(story.tallies):.3f}",
            sum(t.honest_bugged for t in story.tallies),
            sum(t.honest_suspected for t in story.tallies),
            f"{sum(t.forgers_bugged for t in story.tallies) / len(story.tallies):.1f}",
            f"{find_profit(story):+.0f}",
        ]
        for story in stories
    ]
    heads = [
        "strategy, forgers",
        "wrong",
        "at most",
        "overhead",
        "honest bugged",
        "suspected",
        "forgers bugged",
        "gain",
    ]
    report.table(f"Finalised wrong results over {len(stories[0].tallies)} seeds", heads, rows)


def run_all(options: argparse.Namespace, report: Report, shelf: Shelf | None) -> dict[str, float]:
    tenth = options.nodes // 10
    judged = {
        share: [list_settings(name, options.nodes * share // 100, options) for name in JUDGED] for share in SHARES
    }
    others = [list_settings(name, tenth, options) for name in BEYOND]
    control = list_settings("always", tenth, options, validates=False)
    groups = [*(group for groups in judged.values() for group in groups), *others, control]
    outcomes = run_many([setting for group in groups for setting in group], jobs=options.jobs, shelf=shelf)

    figures: dict[str, float] = {}
    stories: list[Story] = []
    for share in SHARES:
        told = [tell(group, outcomes) for group in judged[share]]
        report_stories(report, told)
        figures[f"wrong_accepted_at_{share}"] = max(bound_wrong(story.tallies) for story in told)
        figures[f"overhead_at_{share}"] = max(find_overhead(story.tallies) for story in told)
        stories += told
    beyond = [tell(group, outcomes) for group in others]
    report_stories(report, beyond)
    stories += beyond
    tiers = report_tiers(report, 2_000)
    if not options.no_plots:
        draw(options.plots, stories)
    return figures | {
        **{f"{story.strategy}_wrong": bound_wrong(story.tallies) for story in beyond},
        "reenter_overhead": find_overhead(beyond[0].tallies),
        "honest_banned": float(sum(tally.honest_bugged for story in stories for tally in story.tallies)),
        "attacker_profit_max": max(find_profit(story) for story in stories),
        **tiers,
        "control_wrong_without_validation": min(
            t.wrong_finalised / t.finalised for t in tell(control, outcomes).tallies
        ),
    }


def run_strategy(options: argparse.Namespace, report: Report, shelf: Shelf | None) -> dict[str, float]:
    if options.strategy == "tier_fraud":
        return report_tiers(report, 100 * options.seeds)
    settings = list_settings(options.strategy, options.hostile, options)
    story = tell(settings, run_many(settings, jobs=options.jobs, shelf=shelf))
    report_stories(report, [story])
    return {
        "wrong": fmean(t.wrong_finalised / max(1, t.finalised) for t in story.tallies),
        "wrong_at_most": bound_wrong(story.tallies),
        "overhead": find_overhead(story.tallies),
        "honest_banned": float(sum(t.honest_bugged for t in story.tallies)),
        "attacker_profit": find_profit(story),
    }


def draw(folder: Path, stories: Sequence[Story]) -> None:
    """In the environment of the benchmarks' peers: there is matplotlib, which this project does not need.

    Where it cannot be had, figures are told all the same.
    """
    try:
        _draw(folder, stories)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"hostile: nothing was drawn: {error}", file=sys.stderr, flush=True)


def _draw(folder: Path, stories: Sequence[Story]) -> None:
    from benchmarks.peers import environment
    from sims.traces import list_traces

    environment.ensure_venv()
    told = [
        {
            "strategy": story.strategy,
            "hostile": story.hostile,
            "wrong": bound_wrong(story.tallies),
            "overhead": find_overhead(story.tallies),
        }
        for story in stories
    ]
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "hostile.json"
        path.write_text(json.dumps({"stories": told, "traces": list_traces()}))
        plot = str(Path(__file__).with_name("hostile_plot.py"))
        subprocess.run([str(environment.PYTHON), plot, str(path), str(folder)], check=True, timeout=300)


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="sims.hostile", description="A fleet that may lie.")
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--hostile", type=int, default=NODES // 10)
    parser.add_argument("--strategy", choices=[*STRATEGIES, *(name for name in FORGE if name not in STRATEGIES)])
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--results", type=int, default=RESULTS, help="of each node")
    parser.add_argument("--jobs", type=int, default=2, help="histories at a time")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="keeps what was told, and goes on from there")
    parser.add_argument("--plots", type=Path, default=IMAGES, metavar="FOLDER")
    parser.add_argument("--no-plots", action="store_true")
    options = parser.parse_args(arguments)
    if options.seeds < 2:
        parser.error("a bound needs two seeds at least")
    if options.jobs < 1:
        parser.error("--jobs is 1 at least")
    if not 0 < options.hostile < options.nodes - 10:
        parser.error("some must be hostile, and at least ten honest")
    report = Report("hostile")
    run = run_strategy if options.strategy else run_all
    figures = run(options, report, Shelf(options.out) if options.out else None)
    # Shares of one in ten thousand need more digits than a report keeps.
    report.line(" ".join(f"{name}={value:.3g}" for name, value in figures.items()))
    print(f"\n{json.dumps({name: float(f'{value:.4g}') for name, value in figures.items()})}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
