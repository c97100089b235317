"""Networks at real hubs with real agents: the relay against direct streams, a PNode that falls silent, a hub that is
killed, and what the plan says of a room's and of homes' lines. Part of `benchmarks.networks`; alone:

    python -m benchmarks.networks_hubs [--rounds N] [--only relay|silence|takeover|room|uplink]
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from math import inf
from pathlib import Path
from typing import Any

import torch

from benchmarks import grid as stage
from benchmarks.peers.processes import fresh_database
from benchmarks.tables import Report, median
from computepool.core.networks.spec import NetworkSpec
from computepool.networks import Dataset, Network
from computepool.wire.pb.computepool.v1 import networks_pb2 as pb
from examples.networks.models import MAKERS, make_chars, make_mlp
from tests.support.network_grid import (
    HOME_STALLS,
    LATENCY_MS,
    UPLINK_MBIT,
    NetworkGrid,
    open_grid,
    open_home_grid,
    send_rpc,
)

WARM_STEPS = 3
# Steps without slow lines are so much shorter that more of them are needed to tell a speed.
ROOM_STEPS = 4
STEPS_MANY = 1_000_000
# Before anything happens to a run it has made so many steps.
GOING_STEPS = 15
WAIT_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Foretold:
    """Samples per second."""

    planned: float
    measured: float

    @property
    def ratio(self) -> float:
        return self.planned / self.measured


@dataclass
class Found:
    """Samples per second by way; seconds to the next new step, one per trial."""

    rates: dict[str, list[float]] = field(default_factory=dict)
    silences: list[float] = field(default_factory=list)
    takeovers: list[float] = field(default_factory=list)
    # By network, round by round: samples per second as planned and as measured over homes' uplinks.
    uplink: dict[str, list[Foretold]] = field(default_factory=dict)
    # The same by network and way, where nothing but processors is slow.
    room: dict[str, list[Foretold]] = field(default_factory=dict)
    # By network: whether the curve through the relay is that of one process, and that over homes' uplinks.
    relayed_bits: dict[str, bool] = field(default_factory=dict)
    uplink_bits: dict[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sizes:
    rounds: int = 3
    steps: int = 24
    trials: int = 2
    bit_steps: int = 30
    networks: tuple[str, ...] = tuple(MAKERS)


QUICK = Sizes(rounds=1, steps=6, trials=1, bit_steps=4, networks=("mlp",))


@asynccontextmanager
async def open_place(dsn: str, folder: Path) -> AsyncIterator[tuple[str, Path]]:
    """A database and a folder that nobody has used."""
    async with fresh_database(dsn) as own:
        yield own, Path(tempfile.mkdtemp(prefix="files-", dir=folder))


@asynccontextmanager
async def open_hubs(dsn: str, folder: Path, **options: Any) -> AsyncIterator[NetworkGrid]:
    async with open_place(dsn, folder) as (own, root), open_grid(dsn=own, root=root, **options) as grid:
        yield grid


# Speed


async def measure_rate(
    grid: NetworkGrid, spec: NetworkSpec, data: Dataset, *, steps: int, node_ids: list[str]
) -> float:
    run_id = await grid.train(spec, data, steps=steps + WARM_STEPS, seats=2, node_ids=node_ids)
    return await read_rate(grid, spec, run_id)


async def read_rate(grid: NetworkGrid, spec: NetworkSpec, run_id: str) -> float:
    """Samples per second between the steps after the first few and the last, by the hub's clock."""
    await grid.wait_for_state(run_id, "succeeded", seconds=WAIT_SECONDS)
    rows = await grid.fetch("SELECT at FROM run_metrics WHERE run_id = $1::text::uuid ORDER BY step", run_id)
    at = [row["at"].timestamp() for row in rows][WARM_STEPS - 1 :]
    return spec.batch_size * (len(at) - 1) / (at[-1] - at[0])


async def measure_relay(dsn: str, folder: Path, sizes: Sizes, found: Found) -> None:
    """The same network in turns on two PNodes that can be dialled, and on two that cannot."""
    network, data = make_chars(128, 4, micro_batches=8, split=2)
    spec = replace(network.spec, checkpoint_every=10_000)
    async with open_hubs(dsn, folder) as grid:
        await grid.start_agents(2)
        await grid.start_agents(2, networks_listen="none")
        nodes = {
            "direct": await grid.list_node_ids(grid.agents[:2]),
            "relay": await grid.list_node_ids(grid.agents[2:]),
        }
        for _ in range(sizes.rounds):
            for way, node_ids in nodes.items():
                rate = await measure_rate(grid, spec, data, steps=sizes.steps, node_ids=node_ids)
                found.rates.setdefault(way, []).append(rate)
        for name in sizes.networks:
            found.relayed_bits[name] = await is_bit_equal(grid, name, sizes.bit_steps, nodes["relay"])


async def is_bit_equal(grid: NetworkGrid, name: str, steps: int, node_ids: list[str]) -> bool:
    network, data = MAKERS[name]()
    run_id = await grid.train(network.spec, data, steps=steps, seats=2, node_ids=node_ids)
    await grid.wait_for_state(run_id, "succeeded", seconds=WAIT_SECONDS)
    return await grid.list_losses(run_id) == network.reference(data, steps).losses


# Recovery


async def time_recovery(grid: NetworkGrid, run_id: str, strike: Callable[[], Awaitable[None]]) -> float:
    """Seconds from the blow to the first step that was not made before it."""
    await grid.wait_for_step(run_id, GOING_STEPS)
    [before] = await grid.fetch("SELECT epoch, step FROM runs WHERE id = $1::text::uuid", run_id)
    struck_at = time.time()
    await strike()
    query = (
        "SELECT min(at) AS at FROM run_metrics WHERE run_id = $1::text::uuid AND epoch > $2 AND step > $3 "
        "HAVING count(*) > 0"
    )
    deadline = time.monotonic() + WAIT_SECONDS
    while not (rows := await grid.fetch(query, run_id, before["epoch"], before["step"])):
        if time.monotonic() > deadline:
            raise RuntimeError(f"no new step\n{await grid.tell_story(run_id)}")
        await asyncio.sleep(0.05)
    await grid.call("StopTrain", pb.StopTrainRequest(run_id=run_id))
    await grid.wait_for_state(run_id, "stopped")
    return float(rows[0]["at"].timestamp() - struck_at)


def make_small() -> tuple[NetworkSpec, Dataset]:
    network, data = make_mlp()
    return replace(network.spec, checkpoint_every=10), data


async def measure_silence(dsn: str, folder: Path, sizes: Sizes, found: Found) -> None:
    """A machine goes to sleep: its streams stay open, it says nothing. Another takes its seat."""
    spec, data = make_small()
    async with open_hubs(dsn, folder) as grid:
        await grid.start_agents(3)
        for _ in range(sizes.trials):
            run_id = await grid.train(spec, data, steps=STEPS_MANY, seats=2)
            await grid.wait_for_step(run_id, GOING_STEPS)
            sleeper = await grid.find_agent(run_id, "seat-1")

            async def strike(sleeper: Any = sleeper) -> None:
                sleeper.freeze()

            try:
                found.silences.append(await time_recovery(grid, run_id, strike))
            finally:
                sleeper.wake()
            await grid.mend()


async def measure_takeover(dsn: str, folder: Path, sizes: Sizes, found: Found) -> None:
    """kill -9 of the hub that owns the run; the agents are parked at the other one."""
    spec, data = make_small()
    for _ in range(sizes.trials):
        async with open_hubs(dsn, folder, hubs=2) as grid:
            await grid.start_agents(2)
            staying, going = grid.hubs
            send_rpc(staying, signal.SIGSTOP)
            grid.prefer(going)
            run_id = await grid.train(spec, data, steps=STEPS_MANY, seats=2)
            await grid.wait_for_owner(run_id, going)
            send_rpc(staying, signal.SIGCONT)

            async def strike(grid: NetworkGrid = grid, run_id: str = run_id, going: Any = going) -> None:
                # On a busy machine the other may have taken it over by now; then this measures nothing.
                if await grid.find_owner(run_id) is not going:
                    raise RuntimeError(
                        "the hub that was to be killed does not own the run: measure on a quiet machine"
                    )
                grid.cut_power(going)

            found.takeovers.append(await time_recovery(grid, run_id, strike))


# What the plan says


def make_home_networks() -> dict[str, tuple[Network, Dataset]]:
    """One where the way there and back counts, one where bytes do too, one that also clips by the norm of all."""
    mlp, digits = make_mlp()
    chars, text = make_chars(48, 2)
    wide, _ = make_chars(128, 2)
    free = replace(wide.spec, optimizer=replace(wide.spec.optimizer, clip_norm=None))
    return {
        "digits": (Network(replace(mlp.spec, checkpoint_every=1_000)), digits),
        "chars, clipped": (Network(replace(chars.spec, checkpoint_every=1_000)), text),
        "chars, wide": (Network(replace(free, checkpoint_every=1_000)), text),
    }


async def plan_and_train(
    grid: NetworkGrid, spec: NetworkSpec, data: Dataset, *, steps: int, node_ids: Sequence[str] = ()
) -> tuple[Foretold, str]:
    """Also the run's id. The plan is asked first, as people do."""
    steps += WARM_STEPS
    network_id, options = await grid.prepare(spec, data, steps=steps, seats=2, node_ids=node_ids)
    plan = await grid.call("PlanNetwork", pb.PlanNetworkRequest(network_id=network_id, options=options))
    run = await grid.call("StartTrain", pb.StartTrainRequest(network_id=network_id, options=options))
    return Foretold(plan.samples_per_second, await read_rate(grid, spec, run.id)), str(run.id)


async def measure_uplink(dsn: str, folder: Path, sizes: Sizes, found: Found) -> None:
    """Lines that stall while the speed and the bits are taken. The first plan knows nothing of that; later ones know
    what the runs before came to, as on any grid."""
    async with open_place(dsn, folder) as (own, root), open_home_grid(dsn=own, root=root) as (grid, _):
        for name, (network, data) in make_home_networks().items():
            alone = network.reference(data, sizes.steps + WARM_STEPS)
            for _round in range(sizes.rounds):
                foretold, run_id = await plan_and_train(grid, network.spec, data, steps=sizes.steps)
                found.uplink.setdefault(name, []).append(foretold)
                equal = await grid.list_losses(run_id) == alone.losses
                found.uplink_bits[name] = found.uplink_bits.get(name, True) and equal


async def measure_room(dsn: str, folder: Path, sizes: Sizes, found: Found) -> None:
    """The same networks where lines cost nothing: processors and what handles the frames decide."""
    async with open_hubs(dsn, folder) as grid:
        await grid.start_agents(2)
        await grid.start_agents(2, networks_listen="none")
        nodes = {
            "direct": await grid.list_node_ids(grid.agents[:2]),
            "relay": await grid.list_node_ids(grid.agents[2:]),
        }
        for (name, (network, data)), (way, node_ids) in product(make_home_networks().items(), nodes.items()):
            for _round in range(sizes.rounds):
                foretold, _ = await plan_and_train(
                    grid, network.spec, data, steps=ROOM_STEPS * sizes.steps, node_ids=node_ids
                )
                found.room.setdefault(f"{name}, {way}", []).append(foretold)


PARTS = {
    "relay": measure_relay,
    "silence": measure_silence,
    "takeover": measure_takeover,
    "room": measure_room,
    "uplink": measure_uplink,
}


async def measure(sizes: Sizes, parts: Iterable[str] = tuple(PARTS)) -> Found:
    found = Found()
    async with stage.running_postgres() as (dsn, folder):
        for name in parts:
            await PARTS[name](dsn, folder, sizes, found)
    return found


def show(report: Report, found: Found) -> None:
    report.table(
        "Samples per second at a hub, character model over two PNodes",
        ["", "median", "lowest", "highest"],
        [[way, median(rates), min(rates), max(rates)] for way, rates in found.rates.items()],
    )
    blows = {"a PNode falls silent": found.silences, "the run's hub is killed with -9": found.takeovers}
    report.table(
        "Seconds to the next new step",
        ["", "trials", "worst", "median"],
        [[name, len(seconds), max(seconds), median(seconds)] for name, seconds in blows.items() if seconds],
    )
    bits = {"relayed": found.relayed_bits, "homes' uplinks": found.uplink_bits}
    report.table(
        "Losses at a hub against one process",
        ["network", "way", "bit for bit"],
        [[name, way, "equal" if equal else "NOT EQUAL"] for way, of in bits.items() for name, equal in of.items()],
    )
    for title, foretold in {
        "In one room": found.room,
        f"Over homes' uplinks ({say_home()})": found.uplink,
    }.items():
        report.table(
            f"{title}, samples per second",
            ["network", "planned", "measured", "planned / measured", "lowest", "highest", "first"],
            [show_foretold(name, each) for name, each in foretold.items()],
        )


def show_foretold(name: str, rounds: Sequence[Foretold]) -> list[Any]:
    ratios = [each.ratio for each in rounds]
    planned, measured = ([getattr(each, of) for each in rounds] for of in ("planned", "measured"))
    return [name, median(planned), median(measured), median(ratios), min(ratios), max(ratios), ratios[0]]


def say_home() -> str:
    stalls = f"each stalls {HOME_STALLS.time_share:.0%} of the time, {1_000 * HOME_STALLS.seconds:.0f} ms at once"
    return f"{UPLINK_MBIT} Mbit/s, {LATENCY_MS} ms; {stalls}"


def find_worst(foretold: Mapping[str, Sequence[Foretold]]) -> float | None:
    """How far the plan is off where it is off most, whether too high or too low: 1 is right."""
    ratios = [median([each.ratio for each in rounds]) or inf for rounds in foretold.values()]
    return max((max(ratio, 1 / ratio) for ratio in ratios), default=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=Sizes().rounds)
    parser.add_argument("--only", choices=tuple(PARTS), action="append")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = asyncio.run(measure(Sizes(rounds=options.rounds), options.only or tuple(PARTS)))
    show(Report("networks_hubs", complete=False), found)


if __name__ == "__main__":
    main()
