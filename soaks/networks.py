"""Networks that train while their machines die: the curve must be that of one process, bit for bit.

Kills: real agents at a real hub, one after the other killed with -9 at random steps and started again; half-way the
hub's gRPC process is killed too. Churn: many small PNodes, every one of which is killed and replaced once.

    python -m soaks.networks [--steps N] [--kills N] [--seed N] [--churn PNODES] [--churn-steps N]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from computepool.core.networks.spec import NetworkSpec, VNodeSpec
from computepool.hub.store.embedded import EmbeddedPostgres
from computepool.networks import Network, local, reference
from computepool.networks.local_run import LocalRun
from tests.support.network_data import make_dataset
from tests.support.network_grid import HostingAgent, NetworkGrid, open_grid, send_rpc
from tests.support.networks import ADAM, chain, make_mlp

SEATS = 3
# Agents beyond the seats: a machine that was killed is back only after a while.
SPARES = 2
WAIT_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is to be seen afterwards, in figures."""

    bit_equal: bool
    kills: int
    epochs: int
    faults_of_books: int = 0


# Kills of agents


def choose_steps(rng: random.Random, *, steps: int, kills: int) -> list[int]:
    """At random, and not so late that the run is over before the blow falls."""
    return sorted(rng.sample(range(5, max(6 + kills, steps * 3 // 4)), kills))


async def kill_agents(
    grid: NetworkGrid, spec: NetworkSpec, *, steps: int, kills: int, seed: int, kills_rpc: bool = False
) -> Outcome:
    """Whoever is on a random seat; it is started again at once, as somebody's machine after a power cut."""
    rng, data = random.Random(seed), make_dataset(spec)
    run_id = await grid.train(spec, data, steps=steps, seats=SEATS)
    struck = 0
    for number, step in enumerate(choose_steps(rng, steps=steps, kills=kills)):
        await grid.wait_for_step(run_id, step, WAIT_SECONDS)
        await _wait_for_rest(grid, run_id)
        victim = await _find_victim(grid, run_id, rng)
        if kills_rpc and number == kills // 2:
            send_rpc(grid.hubs[0], signal.SIGKILL)
        victim.cut_power()
        victim.start()
        struck += 1
    run = await grid.wait_for_state(run_id, "succeeded", seconds=WAIT_SECONDS)
    equal = await grid.list_losses(run_id) == reference(spec, data, steps).losses
    return Outcome(equal, struck, run.epoch, len(await grid.list_faults_of_books()))


async def _wait_for_rest(grid: NetworkGrid, run_id: str) -> None:
    """A second blow before the run is at work again would fall on somebody who has not begun."""

    async def is_at_work() -> bool:
        [row] = await grid.fetch("SELECT state FROM runs WHERE id = $1::text::uuid", run_id)
        return bool(row["state"] == "running")

    await grid.wait_until(is_at_work, "the run to be at work", WAIT_SECONDS, pause_seconds=0.02)


async def _find_victim(grid: NetworkGrid, run_id: str, rng: random.Random) -> HostingAgent:
    seats = await grid.fetch(
        "SELECT DISTINCT s.seat FROM run_seats s JOIN placements p USING (run_id, seat) "
        "WHERE s.run_id = $1::text::uuid AND s.node_id IS NOT NULL ORDER BY s.seat",
        run_id,
    )
    return await grid.find_agent(run_id, rng.choice([row["seat"] for row in seats]))


# Churn


def make_long_chain(vnodes: int) -> NetworkSpec:
    """So many small VNodes, the loss among them."""
    inner = [VNodeSpec(f"v{number}", "linear", {"features": 16}) for number in range(vnodes - 2)]
    head = VNodeSpec("head", "linear", {"features": 10})
    return chain(*inner, head, optimizer=ADAM, checkpoint_every=5, micro_batches=2)


def churn(*, pnodes: int, steps: int) -> Outcome:
    """Every PNode of the beginning is killed with -9 once, and another takes its place."""
    spec = make_long_chain(pnodes)
    data = make_dataset(spec)
    # As many spares from the start: steps of so small a network are over before a process has begun.
    with local(pnodes=2 * pnodes) as grid:
        run = grid.start(Network(spec), data, steps, seats=pnodes)
        killed, every = set[int](), max(1, steps // (pnodes + 1))
        for event in run.watch():
            if event.kind == "step" and event.step >= every * (len(killed) + 1) and len(killed) < pnodes:
                # The next one, as soon as the run has noticed the one before.
                left = [number for number in _list_hosts(run) if number < pnodes and number not in killed]
                killed.add(left[0])
                grid.kill(left[0])
        equal = run.losses == reference(spec, data, steps).losses and run.contradictions == []
        return Outcome(equal, len(killed), run.epoch)


def _list_hosts(run: LocalRun) -> list[int]:
    """The first PNodes, by number, are those of the beginning."""
    return sorted(number for seat in run.seats if (number := run.find_pnode(seat)) is not None)


# Both


async def run_kills(*, steps: int, kills: int, seed: int) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="cp-soak-") as name:
        root = Path(name)
        root.chmod(0o755)
        server = EmbeddedPostgres(root / "database")
        dsn = await server.start()
        files = root / "files"
        files.mkdir()
        try:
            async with open_grid(dsn=dsn, root=files) as grid:
                await grid.start_agents(SEATS + SPARES)
                spec = make_mlp(checkpoint_every=10)
                return await kill_agents(grid, spec, steps=steps, kills=kills, seed=seed, kills_rpc=True)
        finally:
            await server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--churn", type=int, default=20, help="PNodes of which every one is replaced; 0: none")
    parser.add_argument("--churn-steps", type=int, default=300)
    options = parser.parse_args()
    torch.set_num_threads(1)
    told: dict[str, object] = {}
    began = time.monotonic()
    if options.kills:
        outcome = asyncio.run(run_kills(steps=options.steps, kills=options.kills, seed=options.seed))
        told["kills"] = _to_figures(outcome, began)
    began = time.monotonic()
    if options.churn:
        told["churn"] = _to_figures(churn(pnodes=options.churn, steps=options.churn_steps), began)
    print(json.dumps(told))


def _to_figures(outcome: Outcome, began: float) -> dict[str, object]:
    return {
        "bit_equal": outcome.bit_equal,
        "kills": outcome.kills,
        "epochs": outcome.epochs,
        "faults_of_books": outcome.faults_of_books,
        "seconds": round(time.monotonic() - began, 1),
    }


if __name__ == "__main__":
    main()
