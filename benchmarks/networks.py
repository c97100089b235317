"""Networks over processes of this machine: whether curves keep their bits, through kills too, and what a cut costs.

    python -m benchmarks.networks [--rounds N] [--quick] [--out FILE]

PNodes are processes with real engines and real gRPC streams, under the rules by which hubs decide. Speeds are of a
character model, in turns with the same training in one process, without their first steps; what is compared was
measured in the same turn. Hubs, agents and the relay take part where it is about them: `networks_hubs.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import networks_audit, networks_hubs
from benchmarks.networks_hubs import Found
from benchmarks.tables import Report, median
from computepool.core.networks.partition import Host, Link, Load, arrange, measure
from computepool.core.networks.run import Part
from computepool.networks import Dataset, LocalGrid, Network, local, reference
from computepool.networks.local_run import LocalRun
from examples.networks.models import MAKERS, make_chars, make_mlp

SEATS = (2, 3)
WARM_STEPS = 3
ALONE = "one process, one thread"
KILLS = 5
KILL_STEPS = 200


@dataclass(frozen=True, slots=True)
class Model:
    """A character model. Per micro-batch, `batch_size / micro_batches` windows of 32 characters cross an edge."""

    features: int
    layers: int
    batch_size: int
    micro_batches: int

    def make(self, **options: Any) -> tuple[Network, Dataset]:
        given = {"batch_size": self.batch_size, "micro_batches": self.micro_batches, **options}
        return make_chars(self.features, self.layers, **given)

    def __str__(self) -> str:
        return f"{self.features} features, {self.layers} layers, {self.micro_batches} micro-batches"


# What targets speak of: 512 KiB cross between PNodes per micro-batch, with tens of milliseconds of work on each side.
# The small one has a sixteenth of the work for an eighth of the bytes, and shows what a cut costs there.
MODEL = Model(256, 4, batch_size=64, micro_batches=4)
SMALL = Model(128, 4, batch_size=32, micro_batches=8)


@dataclass(frozen=True, slots=True)
class Sizes:
    rounds: int
    bit_steps: int
    kill_trials: int
    kills: int
    speed_steps: int
    networks: tuple[str, ...]
    audit_trials: int = 4
    model: Model = MODEL
    hubs: networks_hubs.Sizes = networks_hubs.QUICK


FULL = Sizes(
    rounds=5,
    bit_steps=30,
    kill_trials=3,
    kills=KILLS,
    speed_steps=10,
    networks=tuple(MAKERS),
    audit_trials=networks_audit.TRIALS,
    hubs=networks_hubs.Sizes(),
)
QUICK = Sizes(
    rounds=1,
    bit_steps=4,
    kill_trials=1,
    kills=1,
    speed_steps=6,
    networks=("mlp", "residual"),
    audit_trials=4,
    model=SMALL,
)


# Bits


def is_bit_equal(grid: LocalGrid, network: Network, data: Dataset, *, steps: int, seats: int) -> bool:
    run = grid.train(network, data, steps, seats=seats)
    alone = network.reference(data, steps)
    weights = run.state_dict()
    return (
        run.losses == alone.losses
        and weights.keys() == alone.state_dict.keys()
        and all(weights[name].equal(tensor) for name, tensor in alone.state_dict.items())
    )


def measure_bits(grid: LocalGrid, sizes: Sizes) -> dict[tuple[str, int], bool]:
    return {
        (name, seats): is_bit_equal(grid, *MAKERS[name](), steps=sizes.bit_steps, seats=seats)
        for name, seats in itertools.product(sizes.networks, SEATS)
    }


# Kills


@dataclass(frozen=True, slots=True)
class Survival:
    equal: bool
    # From each kill to the first step after it.
    recovery_seconds: list[float]


def survive(grid: LocalGrid, network: Network, data: Dataset, *, steps: int, kills: int, seed: int) -> Survival:
    """Kills whoever is on a random seat at random steps; each time another PNode is started meanwhile."""
    rng = random.Random(seed)
    waiting = sorted(rng.sample(range(2, steps - 1), kills))
    killed_at, recoveries, again = 0.0, [], False
    run = grid.start(network, data, steps, seats=3)
    for event in run.watch():
        if event.kind == "recovery":
            again = True
        if event.kind != "step":
            continue
        if killed_at and again:
            recoveries.append(event.at - killed_at)
            killed_at, again = 0.0, False
        if waiting and event.step >= waiting[0] and not killed_at:
            waiting.pop(0)
            number = run.find_pnode(rng.choice(run.seats))
            if number is not None:
                again, killed_at = False, time.time()
                grid.kill(number)
                grid.add(wait=False)
    alone = network.reference(data, steps)
    return Survival(run.losses == alone.losses and len(recoveries) == kills, recoveries)


def measure_kills(grid: LocalGrid, sizes: Sizes) -> list[Survival]:
    network, data = make_mlp()
    spec = replace(network.spec, checkpoint_every=10)
    return [
        survive(grid, Network(spec), data, steps=KILL_STEPS, kills=sizes.kills, seed=seed)
        for seed in range(sizes.kill_trials)
    ]


# Speed


def to_rate(run: LocalRun, batch_size: int) -> float:
    """Samples per second between the steps after the first few and the last."""
    at = [event.at for event in run.list_events() if event.kind == "step"][WARM_STEPS - 1 :]
    return batch_size * (len(at) - 1) / (at[-1] - at[0])


def rate_alone(network: Network, data: Dataset, *, steps: int, threads: int) -> float:
    """One process. Building the network is no part of it."""
    warm = reference(network.spec, data, WARM_STEPS, threads=threads)
    began = time.perf_counter()
    reference(network.spec, data, 0, threads=threads)
    built = time.perf_counter()
    reference(network.spec, data, steps, state=warm.state_dict, optimizer_state=warm.optimizer_state, threads=threads)
    return network.spec.batch_size * steps / (time.perf_counter() - built - (built - began))


def rate_cut(grid: LocalGrid, network: Network, data: Dataset, *, steps: int, places: dict[Part, int]) -> float:
    return to_rate(grid.train(network, data, steps + WARM_STEPS, places=places), network.spec.batch_size)


def measure_in_turns(ways: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            found[name].append(way())
    return found


def measure_speed(grid: LocalGrid, sizes: Sizes) -> dict[str, list[float]]:
    steps = sizes.speed_steps
    halves, data = sizes.model.make(split=2)
    small, _ = SMALL.make(split=2)
    seldom = Network(replace(halves.spec, checkpoint_every=10_000))
    often = Network(replace(halves.spec, checkpoint_every=20))
    here = {(vnode.id, 0): 0 for vnode in halves.spec.vnodes}
    long = max(steps, 2 * 20 + 1 - WARM_STEPS)

    def over_two(model: Model) -> float:
        pieces, data = model.make(split=model.layers + 2, checkpoint_every=10_000)
        return to_rate(grid.train(pieces, data, steps + WARM_STEPS, seats=2), pieces.spec.batch_size)

    return measure_in_turns(
        {
            ALONE: functools.partial(rate_alone, halves, data, steps=steps, threads=1),
            "one process, two threads": functools.partial(rate_alone, halves, data, steps=steps, threads=2),
            "two VNodes on one PNode": functools.partial(rate_cut, grid, seldom, data, steps=steps, places=here),
            "two PNodes, one thread each": functools.partial(over_two, sizes.model),
            "one PNode, no checkpoints": functools.partial(rate_cut, grid, seldom, data, steps=long, places=here),
            "one PNode, every 20 steps": functools.partial(rate_cut, grid, often, data, steps=long, places=here),
            "the small model, one process": functools.partial(rate_alone, small, data, steps=steps, threads=1),
            "the small model, two PNodes": functools.partial(over_two, SMALL),
        },
        sizes.rounds,
    )


# Placement


def make_big_network(seed: int = 1) -> tuple[list[Load], list[Link], list[Host]]:
    """250 VNodes with branches, 50 PNodes that differ in memory, speed and uplink."""
    rng = random.Random(seed)
    loads = [Load(rng.randint(10, 60), rng.uniform(0.5, 2.0)) for _ in range(250)]
    links = [Link(number, number + 1, rng.randint(50, 200)) for number in range(249)]
    links += [Link(number, number + rng.randint(2, 6), rng.randint(10, 50)) for number in range(0, 240, 5)]
    hosts = [
        Host(rng.randint(250, 800), rng.choice((1.0, 2.0, 4.0)), rng.choice((200.0, 1_000.0))) for _ in range(50)
    ]
    return loads, links, hosts


def measure_placement(rounds: int) -> tuple[float, float]:
    """Seconds, and bytes between hosts against VNodes that are dealt out one by one."""
    loads, links, hosts = make_big_network()
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        found = arrange(loads, links, hosts)
        seconds.append(time.perf_counter() - began)
    if found is None:
        raise RuntimeError("the big network was not placed")
    dealt = measure(loads, links, hosts, [number % len(hosts) for number in range(len(loads))])
    return statistics.median(seconds), found[1].cut_bytes / dealt.cut_bytes


def run(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    sizes = QUICK if options.quick else replace(FULL, rounds=options.rounds)
    report = Report("networks", complete=not options.quick, out=options.out)
    place_seconds, cut_share = measure_placement(3)
    with local(pnodes=4) as grid:
        bits = measure_bits(grid, sizes)
        speeds = measure_speed(grid, sizes)
        survivals = measure_kills(grid, sizes)
    found = asyncio.run(networks_hubs.measure(sizes.hubs))
    bits |= {(f"{name}, relayed", 2): equal for name, equal in found.relayed_bits.items()}
    bits |= {(f"{name}, homes' uplinks", 2): equal for name, equal in found.uplink_bits.items()}
    show(report, sizes.model, bits, survivals, speeds, found)
    report.finish(
        to_figures(
            bits, survivals, speeds, found, place_seconds, cut_share, networks_audit.measure(sizes.audit_trials)
        )
    )


def show(
    report: Report,
    model: Model,
    bits: dict[tuple[str, int], bool],
    survivals: Iterable[Survival],
    speeds: dict[str, list[float]],
    found: Found,
) -> None:
    report.table(
        "Losses and weights against one process",
        ["network", "PNodes", "bit for bit"],
        [[name, seats, "equal" if equal else "NOT EQUAL"] for (name, seats), equal in bits.items()],
    )
    report.table(
        f"Kills with -9 during {KILL_STEPS} steps, seconds to the next step",
        ["trial", "curve", "kills", "worst", "median"],
        [
            [
                f"{number}",
                "equal" if each.equal else "NOT EQUAL",
                len(each.recovery_seconds),
                max(each.recovery_seconds),
                median(each.recovery_seconds),
            ]
            for number, each in enumerate(survivals)
        ],
    )
    report.table(
        f"Samples per second, character model ({model}); the small one: {SMALL}",
        ["", "median", "lowest", "highest"],
        [[name, median(values), min(values), max(values)] for name, values in speeds.items()],
    )
    networks_hubs.show(report, found)


def to_figures(
    bits: dict[tuple[str, int], bool],
    survivals: list[Survival],
    speeds: dict[str, list[float]],
    found: Found,
    place_seconds: float,
    cut_share: float,
    audits: dict[str, float | None],
) -> dict[str, float | None]:
    recoveries = [seconds for each in survivals for seconds in each.recovery_seconds]
    with_checkpoints = compare(speeds, "one PNode, no checkpoints", "one PNode, every 20 steps")
    return {
        "bit_equal_configurations": sum(bits.values()),
        "bit_unequal_configurations": len(bits) - sum(bits.values()),
        "kills_bit_equal_share": sum(each.equal for each in survivals) / len(survivals),
        "recovery_seconds_by_stream": max(recoveries, default=None),
        "recovery_seconds_by_heartbeat": max(found.silences, default=None),
        "takeover_seconds": max(found.takeovers, default=None),
        "two_vnodes_one_pnode_vs_single": compare(speeds, "two VNodes on one PNode", ALONE),
        "two_pnodes_vs_single_two_cores": compare(speeds, "two PNodes, one thread each", "one process, two threads"),
        "two_pnodes_vs_single_one_core": compare(speeds, "two PNodes, one thread each", ALONE),
        "relay_vs_direct": compare(found.rates, "relay", "direct"),
        "uplink_plan_off_by": networks_hubs.find_worst(found.uplink),
        "checkpoint_cost_ratio": None if with_checkpoints is None else with_checkpoints - 1,
        "place_250_on_50_seconds": place_seconds,
        "cut_bytes_vs_round_robin": cut_share,
        "corrupter_caught_share": audits.get("corrupter_caught_share"),
        "honest_flagged": audits.get("honest_flagged"),
    }


def compare(speeds: Mapping[str, Sequence[float]], one: str, other: str) -> float | None:
    """Turn by turn: what slows the whole machine down for a while slows both."""
    return median([a / b for a, b in zip(speeds.get(one, ()), speeds.get(other, ()), strict=True)])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=FULL.rounds, help="of speeds, in which all take turns")
    parser.add_argument("--quick", action="store_true", help="one short round; proves that it runs, not how fast")
    parser.add_argument("--out", type=Path, help="store the whole report in this file, as JSON")
    run(parser.parse_args())


if __name__ == "__main__":
    main()
