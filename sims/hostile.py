"""A fleet that may lie: how many wrong results get through, what that costs, and whether forging pays.

always       forges every result                   trickle      forges one in fifty
sleeper      is honest for 300, then forges all    hit_and_run  is honest for 300, forges four, is honest again
collude      honest until trusted, then one in fifty; forgers back each other as auditors
reenter      comes back under new names, as often as identities are given
tier_fraud   claims a card 1.3 times as fast as its own

    python -m sims.hostile [--nodes N] [--hostile N] [--strategy NAME] [--seeds N] [--results N] [--plots FOLDER]

Without a strategy: all of them at 5, 10 and 20 % of the fleet, and the control without validation. Prints tables and,
as its last line, one JSON object. What each figure means stands beside the function that takes it.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev

from benchmarks.tables import Report
from computepool.core.trust.challenge import Claim, ProofState, Round, judge, needs_more, plan_work
from sims.forgers import FORGE, Fleet, Tally
from sims.purse import COST, FEE_PPM, PRICE

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"

JUDGED = ("always", "trickle", "sleeper", "hit_and_run", "collude")
STRATEGIES = (*JUDGED, "reenter", "tier_fraud")
NODES, RESULTS, SEEDS = 100, 1_500, 20
SHARES = (5, 10, 20)
# Student's t for an upper bound of 95 %, by degrees of freedom; beyond the last it hardly changes.
_T95 = {1: 6.31, 2: 2.92, 3: 2.35, 4: 2.13, 5: 2.02, 7: 1.89, 9: 1.83, 14: 1.76, 19: 1.73, 29: 1.70}


@dataclass(frozen=True, slots=True)
class Story:
    """One strategy at one share of the fleet, over all seeds."""

    strategy: str
    hostile: int
    tallies: tuple[Tally, ...]
    # By seed: what a forger's machine earned on average, less its cost; in microcredits.
    nets: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Setting:
    nodes: int
    hostile: int
    strategy: str
    results: int
    seed: str
    validates: bool = True


def run_one(setting: Setting) -> tuple[Tally, float]:
    fleet = Fleet(
        nodes=setting.nodes,
        hostile=setting.hostile,
        strategy=setting.strategy,
        seed=f"{setting.strategy} {setting.hostile} {setting.seed}",
        validates=setting.validates,
    )
    tally = fleet.run(setting.results)
    return tally, fmean(fleet.purse.net(number) for number in range(setting.hostile))


def tell(settings: Sequence[Setting], pool: ProcessPoolExecutor | None = None) -> Story:
    found = list(pool.map(run_one, settings) if pool else map(run_one, settings))
    first = settings[0]
    return Story(first.strategy, first.hostile, tuple(each[0] for each in found), tuple(each[1] for each in found))


def list_settings(
    strategy: str, hostile: int, options: argparse.Namespace, *, validates: bool = True
) -> list[Setting]:
    return [
        Setting(options.nodes, hostile, strategy, options.results, f"seed {number}", validates)
        for number in range(options.seeds)
    ]


# Figures


def bound_wrong(tallies: Sequence[Tally]) -> float:
    """Finalised wrong results over finalised ones: the upper 95 % bound of the mean over seeds.

    Wrong results come in bursts, so seeds are the sample. When none was seen, three over all results (rule of three).
    """
    ratios = [tally.wrong_finalised / max(1, tally.finalised) for tally in tallies]
    spread = stdev(ratios) / sqrt(len(ratios)) if len(ratios) > 1 else 0.0
    t = next((value for degrees, value in _T95.items() if degrees >= len(ratios) - 1), 1.65)
    return max(fmean(ratios) + t * spread, 3.0 / max(1, sum(tally.finalised for tally in tallies)))


def find_overhead(tallies: Sequence[Tally]) -> float:
    """Runs beyond the first, over all results that were delivered."""
    return sum(tally.extra_runs for tally in tallies) / sum(tally.results for tally in tallies)


def honest_net(results: int) -> float:
    """What the same machine would have earned by honest work."""
    return results * (PRICE - PRICE * FEE_PPM / 1e6 - COST)


def find_profit(story: Story, results: int) -> float:
    """In credits per machine: what forging brought beyond honest work, at best of the seeds."""
    return (max(story.nets) - honest_net(results)) / 1e6


# Proof of hardware

TIERS = ("rtx-5090", "rtx-4090", "rtx-3090", "rtx-4070", "rtx-3080", "rtx-3060", "rtx-2070", "gtx-1080", "gtx-1660")
# Of the maker's figure, by a usual library; and how much a round is slowed by what else the machine does.
EFFICIENCY = 0.65
SLOWED_MAX = 0.15
FRAUD_FACTOR = 1.3


def sit(tier: str, factor: float, rng: random.Random) -> ProofState:
    """One sitting of a card that is slower than it claims by this factor."""
    claim = Claim(tier, None, 8)
    work = plan_work(claim, seed=b"", seconds=2.0)
    flops = 2.0 * work.size**3 * work.products
    rounds: list[Round] = []
    while needs_more(claim, rounds):
        speed = claim.expected_tflops * EFFICIENCY / factor
        seconds = flops / (speed * 1e12) / (1.0 - rng.uniform(0.0, SLOWED_MAX)) + rng.uniform(0.05, 0.35)
        rounds.append(Round(flops, seconds, right=True))
    return judge(claim, rounds).state


def measure_tiers(sittings: int, seed: str = "tiers") -> tuple[float, float]:
    """Shares of frauds that do not keep the tier, and of honest cards that lose theirs."""
    rng = random.Random(seed)
    caught = rejected = 0
    for number in range(sittings):
        tier = TIERS[number % len(TIERS)]
        caught += sit(tier, FRAUD_FACTOR, rng) is not ProofState.PROVEN
        rejected += sit(tier, 1.0, rng) is not ProofState.PROVEN
    return caught / sittings, rejected / sittings


# The run


def report_stories(report: Report, stories: Sequence[Story], results: int) -> None:
    rows = [
        [
            f"{story.strategy}, {story.hostile}",
            f"{fmean(t.wrong_finalised / max(1, t.finalised) for t in story.tallies):.1e}",
            f"{bound_wrong(story.tallies):.1e}",
            f"{find_overhead(story.tallies):.3f}",
            sum(t.honest_bugged for t in story.tallies),
            sum(t.honest_suspected for t in story.tallies),
            f"{sum(t.forgers_bugged for t in story.tallies) / len(story.tallies):.1f}",
            f"{find_profit(story, results):+.0f}",
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


def run_all(options: argparse.Namespace, report: Report, pool: ProcessPoolExecutor | None) -> dict[str, float]:
    figures: dict[str, float] = {}
    stories: list[Story] = []
    for share in SHARES:
        hostile = options.nodes * share // 100
        told = [tell(list_settings(name, hostile, options), pool) for name in JUDGED]
        report_stories(report, told, options.results)
        figures[f"wrong_accepted_at_{share}"] = max(bound_wrong(story.tallies) for story in told)
        figures[f"overhead_at_{share}"] = max(find_overhead(story.tallies) for story in told)
        stories += told
    tenth = options.nodes // 10
    again = tell(list_settings("reenter", tenth, options), pool)
    patient = tell(list_settings("patient_trickle", tenth, options), pool)
    control = tell(list_settings("always", tenth, options, validates=False)[:2], pool)
    report_stories(report, [again, patient], options.results)
    stories += [again, patient]
    caught, rejected = measure_tiers(2_000)
    report.line(f"tier fraud: {caught:.1%} caught, {rejected:.1%} of honest cards rejected")
    if not options.no_plots:
        draw(options.plots, stories, options)
    return figures | {
        "reenter_wrong": bound_wrong(again.tallies),
        "reenter_overhead": find_overhead(again.tallies),
        "patient_trickle_wrong": bound_wrong(patient.tallies),
        "honest_banned": float(sum(tally.honest_bugged for story in stories for tally in story.tallies)),
        "attacker_profit_max": max(find_profit(story, options.results) for story in stories),
        "tier_fraud_caught": caught,
        "tier_honest_rejected": rejected,
        "control_wrong_without_validation": min(t.wrong_finalised / t.finalised for t in control.tallies),
    }


def run_strategy(options: argparse.Namespace, report: Report, pool: ProcessPoolExecutor | None) -> dict[str, float]:
    if options.strategy == "tier_fraud":
        caught, rejected = measure_tiers(100 * options.seeds)
        report.line(f"tier fraud: {caught:.1%} caught, {rejected:.1%} of honest cards rejected")
        return {"tier_fraud_caught": caught, "tier_honest_rejected": rejected}
    story = tell(list_settings(options.strategy, options.hostile, options), pool)
    report_stories(report, [story], options.results)
    return {
        "wrong": fmean(t.wrong_finalised / max(1, t.finalised) for t in story.tallies),
        "wrong_at_most": bound_wrong(story.tallies),
        "overhead": find_overhead(story.tallies),
        "honest_banned": float(sum(t.honest_bugged for t in story.tallies)),
        "attacker_profit": find_profit(story, options.results),
    }


def draw(folder: Path, stories: Sequence[Story], options: argparse.Namespace) -> None:
    """In the environment of the benchmarks' peers: there is matplotlib, which this project does not need."""
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
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--plots", type=Path, default=IMAGES, metavar="FOLDER")
    parser.add_argument("--no-plots", action="store_true")
    options = parser.parse_args(arguments)
    if options.seeds < 2:
        parser.error("a bound needs two seeds at least")
    if not 0 < options.hostile < options.nodes - 10:
        parser.error("some must be hostile, and at least ten honest")
    report = Report("hostile")
    with ProcessPoolExecutor(options.processes) as pool:
        run = run_strategy if options.strategy else run_all
        figures = run(options, report, pool)
    # Shares of one in ten thousand need more digits than a report keeps.
    report.line(" ".join(f"{name}={value:.3g}" for name, value in figures.items()))
    print(f"\n{json.dumps({name: float(f'{value:.4g}') for name, value in figures.items()})}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
