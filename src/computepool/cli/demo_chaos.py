"""`computepool demo --chaos`: pulls the plugs of busy machines while jobs run and a network trains, and shows that
nothing is lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from computepool import clock, entropy
from computepool.cli.demo_network import STEPS, DemoNetwork, describe_outcome, list_network_faults
from computepool.core.errors import ComputePoolError, HubUnavailable
from computepool.core.jobs.state import JobState
from computepool.wire.jobs import JobSpec

if TYPE_CHECKING:
    from types import TracebackType

    from computepool.cli.demo_grid import Grid
    from computepool.sdk import JobHandle
    from computepool.wire.live import MeshEdge, MeshNode

# The demo's leases run out within this time, so that work has moved before the machine is back.
OUT_SECONDS = 20.0
EVERY_SECONDS = 15.0
JOBS_AT_ONCE = 2
_LOOK_SECONDS = 0.5
_SCRIPT = "import time\nfor step in range(40):\n    print('step', step, flush=True)\n    time.sleep(0.25)\n"


@dataclass(slots=True)
class Chaos:
    """Called again and again; does something when it is time. Leaves no network behind that would go on training."""

    grid: Grid
    say: Callable[[str], None]
    # Whether the grid trains networks, and how many steps of each.
    networks: bool = True
    network_steps: int = STEPS
    pulled: int = 0
    finished: int = 0
    lost: list[str] = field(default_factory=list)
    # Networks that are over, and what was promised of them and not kept.
    trained: int = 0
    faults: list[str] = field(default_factory=list)
    _jobs: list[JobHandle] = field(default_factory=list)
    _network: DemoNetwork | None = None
    _next_seconds: float = 0.0
    _hosts_turn: bool = False

    def __enter__(self) -> Chaos:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._network is not None:
            self._network.stop()

    def look(self) -> None:
        self._keep_busy()
        self._keep_training()
        if self._network is not None and not self._network.is_at_work:
            # Nobody knows yet who holds its parts: what it has lost is to be seen to come back first.
            return
        is_due = clock.seconds() >= self._next_seconds
        can_lose_a_host = self._network is not None and self._network.can_lose_a_host
        # However fast the machine is, no network comes to its end unharmed.
        is_unharmed = can_lose_a_host and self._network is not None and not self._network.pulled
        if is_due or is_unharmed:
            self._pull(under_network=is_unharmed or (self._hosts_turn and can_lose_a_host), is_due=is_due)

    def _pull(self, *, under_network: bool, is_due: bool) -> None:
        mesh = self.grid.submitter.live.mesh()
        hosts = list_hosts(mesh.edges)
        if not hosts and not is_due:
            # The map does not show the network yet.
            return
        victim = choose_victim(mesh.nodes, hosts, under_network=under_network, chance=entropy.jitter())
        if victim is None:
            return
        self._next_seconds = clock.seconds() + EVERY_SECONDS
        self.grid.submitter.live.unplug(victim.id, seconds=OUT_SECONDS)
        self.pulled += 1
        is_host = victim.id in hosts
        if is_host and self._network is not None:
            self._network.pulled += 1
        # In turn one of the network's machines and one that has jobs alone.
        self._hosts_turn = not under_network
        self.say(self._describe_pull(victim, is_host=is_host))

    def _describe_pull(self, victim: MeshNode, *, is_host: bool) -> str:
        part = "a part of the network and " if is_host else ""
        network = f"; {self.describe_network()}" if self.networks else ""
        proof = self.grid.submitter.books.proof()
        return (
            f"pulled the plug of a {victim.tier} with {part}{victim.busy_slots} busy slots for {OUT_SECONDS:.0f} s   "
            f"({self.pulled} so far; {self.finished} jobs done, {len(self.lost)} lost{network}; all accounts come to "
            f"{proof.balance_sum_microcredits})"
        )

    def describe_network(self) -> str:
        return "no network" if self._network is None else self._network.describe()

    def _keep_busy(self) -> None:
        """There is always something to be moved."""
        for job in list(self._jobs):
            job.refresh()
            if not job.is_finished:
                continue
            self._jobs.remove(job)
            self.finished += 1
            if job.state is not JobState.SUCCEEDED:
                self.lost.append(str(job.id))
        while len(self._jobs) < JOBS_AT_ONCE:
            # Where a network trains, slots are left for whoever steps in.
            slices = 3 if self.networks else 6
            spec = JobSpec(name="chaos", script=_SCRIPT, slice_count=slices, wall_seconds=120, retries=5)
            self._jobs.append(self.grid.submitter.submit_spec(spec))

    def _keep_training(self) -> None:
        """There is always a curve that goes on."""
        if not self.networks:
            return
        self._network = self._network or self._start_network()
        if self._network is None:
            return
        self._network.look()
        if self._network.is_over:
            ended, self._network = self._network, None
            outcome = ended.conclude()
            ended.stop()
            self.say(describe_outcome(outcome))
            self.faults += list_network_faults(outcome, steps=self.network_steps)
            self.trained += 1

    def _start_network(self) -> DemoNetwork | None:
        try:
            network = DemoNetwork.start(self.grid.submitter, self.grid.submitter_key, steps=self.network_steps)
        except HubUnavailable:
            return None
        except ComputePoolError as error:
            # When Dana's credits are used up, for one. Jobs go on.
            self.networks = False
            self.faults.append(f"no network was trained: {error.message}")
            self.say(self.faults[-1])
            return None
        self.say(f"a network begins to train; its curve, and what happens to it: {network.page}")
        return network


def weather(storm: Chaos, *, seconds: float) -> list[str]:
    """Until one network is over. What was promised and not kept; empty if all is well."""
    deadline = clock.seconds() + seconds
    while not storm.trained and storm.networks:
        if storm.grid.hub.exit_code is not None:
            return ["the hub ended by itself"]
        if clock.seconds() > deadline:
            return [*storm.faults, f"the network was not trained after {seconds:.0f} s: {storm.describe_network()}"]
        storm.look()
        time.sleep(_LOOK_SECONDS)
    money = storm.grid.submitter.books.proof().balance_sum_microcredits
    return [
        *storm.faults,
        *(f"job {job} was lost" for job in storm.lost),
        *([f"all accounts come to {money}, not to 0"] if money else []),
    ]


def list_hosts(edges: Sequence[MeshEdge]) -> frozenset[str]:
    """Who holds a part of a network that trains now."""
    return frozenset(id for edge in edges for id in (edge.source, edge.target))


def choose_victim(
    nodes: Sequence[MeshNode], hosts: Collection[str] = (), *, under_network: bool = False, chance: float
) -> MeshNode | None:
    """A busy one, if any, and one that is under the network if it is to be; never the last one that is left."""
    online = [node for node in nodes if node.online and node.synthetic]
    if len(online) < 2:
        return None
    # All of a network may have come to one machine, which then is no neighbour of any.
    wanted = [node for node in online if (node.id in hosts) is under_network] or online
    busy = [node for node in wanted if node.busy] or wanted
    return busy[int(chance * len(busy))]
