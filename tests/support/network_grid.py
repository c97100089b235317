"""A hub with its gRPC process, and agents that host networks: all of them processes, killed and started at will."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
import grpc
import httpx

from computepool.core.networks.spec import NetworkSpec
from computepool.core.networks.spec_json import to_json
from computepool.hub.store import ledger
from computepool.hub.store.connect import create_pool
from computepool.node.vnodes.data import Dataset
from computepool.wire.pb.computepool.v1 import networks_pb2 as pb
from computepool.wire.pb.computepool.v1 import networks_pb2_grpc as stubs
from tests.support.agent_process import AgentProcess
from tests.support.hub_process import HubProcess, free_port
from tests.support.people import Person, sign_up
from tests.support.rpc_client import wait_for_rpc
from tests.support.tcp_proxy import SlowProxy, Stalls

CALL_SECONDS = 60.0
# Much more than anything takes, also on a machine that is busy with other things.
WAIT_SECONDS = 100.0
# One credit a second: what was paid can be read off without a calculator.
FLOOR_CREDITS_PER_HOUR = 3_600
CEILING = 7_200 * 1_000_000
# A home's line: what it sends, and how long the first byte takes to another home.
UPLINK_MBIT = 20
LATENCY_MS = 50
# As by a neighbour's radio: about every five seconds nothing passes for 150 to 450 ms. Nobody declares that.
HOME_STALLS = Stalls(every_seconds=5.0, seconds=0.3)


def list_children(parent_pid: int, module: str) -> list[int]:
    """Processes that were started by another to run this module."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and module in (entry / "cmdline").read_text():
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                if int(parent) == parent_pid:
                    found.append(int(entry.name))
        except OSError:
            continue
    return found


def send_all(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def send_rpc(hub: HubProcess, number: int) -> None:
    """A signal to the hub's process that serves gRPC."""
    assert hub.process is not None
    send_all(list_children(hub.process.pid, "computepool.hub.rpc"), number)


class HostingAgent(AgentProcess):
    """An agent that hosts networks; its hosts are its children."""

    def __init__(self, *, hub_url: str, owner: Person, root: Path, name: str, **settings: Any) -> None:
        options: dict[str, Any] = {
            "profile": "cpu-only",
            "log_level": "info",
            "networks": "true",
            "networks_listen": "127.0.0.1:0",
            "floor_credits_per_hour": FLOOR_CREDITS_PER_HOUR,
            **settings,
        }
        super().__init__(hub_url=hub_url, owner=owner, root=root, name=name, **options)
        self.owner = owner
        self._said_before = 0

    def start(self) -> HostingAgent:
        self._said_before = len(self.log_path.read_text()) if self.log_path.exists() else 0
        super().start()
        return self

    def list_hosts(self) -> list[int]:
        """Processes that the agent has started to fill seats."""
        return list_children(self.pid, "computepool.node.vnodes")

    @property
    def boot_id(self) -> str:
        """Of its last start; empty before it has said so."""
        said = self.log_path.read_text()[self._said_before :]
        found = re.findall(r"agent_started .*boot_id=(\S+)", said)
        return found[-1] if found else ""

    def freeze(self) -> None:
        """The machine goes to sleep, with all that runs on it."""
        send_all([*self.list_hosts(), self.pid], signal.SIGSTOP)

    def wake(self) -> None:
        send_all([*self.list_hosts(), self.pid], signal.SIGCONT)

    def cut_power(self) -> None:
        """kill -9 of the agent and of all that it started."""
        hosts = self.list_hosts()
        self.kill(with_runners=True)
        send_all(hosts, signal.SIGKILL)

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.cut_power()
        super().end()


def start_hubs(
    ports: Sequence[int], *, dsn: str, root: Path, lease_seconds: float = 20.0, **settings: Any
) -> list[HubProcess]:
    """A slow machine loses no lease so soon: hosts are found dead by their streams."""
    hubs = [
        HubProcess(dsn=dsn, data_dir=root, rpc_port=port, lease_seconds=lease_seconds, beat_seconds=2, **settings)
        for port in ports
    ]
    for hub in hubs:
        hub.start(wait=False)
        hub.wait_ready(WAIT_SECONDS)
    return hubs


@asynccontextmanager
async def open_grid(
    *, dsn: str, root: Path, hubs: int = 1, ports: Sequence[int] = (), **options: Any
) -> AsyncIterator[NetworkGrid]:
    """Hubs with gRPC; nothing of them or of their agents is left afterwards."""
    ports = list(ports) or [free_port() for _ in range(hubs)]
    started = await asyncio.to_thread(lambda: start_hubs(ports, dsn=dsn, root=root, **options))
    try:
        addresses = [f"127.0.0.1:{port}" for port in ports]
        for address in addresses:
            await wait_for_rpc(address, seconds=WAIT_SECONDS)
        submitter = await asyncio.to_thread(sign_up, started[0].url, "submitter")
        grid = NetworkGrid(started, addresses, dsn, root, submitter)
        try:
            yield grid
        finally:
            await asyncio.to_thread(grid.close)
    finally:
        for hub in started:
            hub.kill()


@asynccontextmanager
async def open_home_grid(
    *, dsn: str, root: Path, agents: int = 2, stalls: Stalls | None = HOME_STALLS
) -> AsyncIterator[tuple[NetworkGrid, SlowProxy]]:
    """PNodes that nobody can dial, each behind a home's slow line to the hub; their owners say how slow."""
    port = free_port()
    # Half of the way from one home to the other.
    proxy = SlowProxy(
        f"127.0.0.1:{port}",
        bytes_per_second=UPLINK_MBIT * 1e6 / 8,
        delay_seconds=LATENCY_MS / 2e3,
        stalls=stalls,
    )
    address = await proxy.start()
    try:
        async with open_grid(dsn=dsn, root=root, ports=[port], rpc_advertised_address=address) as grid:
            await grid.start_agents(
                agents, networks_listen="none", networks_uplink_mbit=UPLINK_MBIT, networks_latency_ms=LATENCY_MS
            )
            yield grid, proxy
    finally:
        await proxy.close()


@dataclass
class NetworkGrid:
    hubs: list[HubProcess]
    # gRPC of each hub.
    addresses: list[str]
    dsn: str
    root: Path
    submitter: Person
    agents: list[HostingAgent] = field(default_factory=list)
    _preferred: HubProcess | None = None

    @property
    def address(self) -> str:
        """Of the hub that people call: one that is alive, if possible the one that they prefer."""
        alive = [hub for hub in self.hubs if hub.process is not None and hub.process.poll() is None]
        chosen = self._preferred if self._preferred in alive else alive[0]
        return self.addresses[self.hubs.index(chosen)]

    def prefer(self, hub: HubProcess) -> None:
        self._preferred = hub

    async def find_owner(self, run_id: str) -> HubProcess | None:
        """The hub that gives the run's orders, as it stands in the books."""
        [row] = await self.fetch("SELECT owner_address FROM runs WHERE id = $1::text::uuid", run_id)
        known = dict(zip(self.addresses, self.hubs, strict=True))
        return known.get(row["owner_address"])

    async def wait_for_owner(self, run_id: str, hub: HubProcess) -> None:
        async def has_come() -> bool:
            return await self.find_owner(run_id) is hub

        await self.wait_until(has_come, "the owner of the run")

    def cut_power(self, hub: HubProcess) -> None:
        """kill -9 of a hub and of its gRPC process: that one first, or it would hand its runs over."""
        assert hub.process is not None
        send_all(list_children(hub.process.pid, "computepool.hub.rpc"), signal.SIGKILL)
        hub.kill()

    async def start_agents(
        self, count: int, *, hub_url: str = "", beside_a_run: bool = False, **settings: Any
    ) -> None:
        """With an owner each. Returns when the hub knows them all as PNodes."""
        url = hub_url or self.hubs[0].url
        for _ in range(count):
            name = f"pnode{len(self.agents)}"
            owner = await asyncio.to_thread(sign_up, url, name)
            agent = HostingAgent(hub_url=url, owner=owner, root=self.root, name=name, **settings)
            self.agents.append(agent)
            agent.start()
        await self.wait_until(self._is_known if beside_a_run else self._is_idle, "agents that are online")

    async def mend(self) -> None:
        """After what earlier tests did, also those that failed: every agent runs and is idle."""
        left = "SELECT id::text FROM runs WHERE state NOT IN ('succeeded', 'failed', 'stopped')"
        for row in await self.fetch(left):
            with contextlib.suppress(grpc.aio.AioRpcError):
                await self.call("StopTrain", pb.StopTrainRequest(run_id=row["id"]))
        for agent in self.agents:
            if agent.process is None or agent.process.poll() is not None:
                agent.start()
        await self.wait_until(self._is_idle, "agents that are online and idle")

    async def _is_idle(self) -> bool:
        """The hub has heard of every agent's last start, and nobody holds a lease."""
        live = await self.fetch("SELECT count(*) FROM attempts WHERE state IN ('leased', 'running')")
        return live[0]["count"] == 0 and await self._is_known()

    async def _is_known(self) -> bool:
        boots = {row["name"]: str(row["boot_id"]) for row in await self.fetch("SELECT name, boot_id FROM nodes")}
        return all(agent.boot_id == boots.get(agent.name) for agent in self.agents)

    def close(self) -> None:
        for agent in self.agents:
            agent.end()

    # People

    async def call(self, name: str, request: Any) -> Any:
        async with grpc.aio.insecure_channel(self.address) as channel:
            invoke = getattr(stubs.NetworkServiceStub(channel), name)
            return await invoke(request, metadata=self._metadata, timeout=CALL_SECONDS, wait_for_ready=True)

    @property
    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.submitter.key}"),)

    async def train(
        self, spec: NetworkSpec, data: Dataset, *, steps: int, seats: int, node_ids: Sequence[str] = ()
    ) -> str:
        """Creates the network and starts a run. Returns the run's id."""
        network_id, options = await self.prepare(spec, data, steps=steps, seats=seats, node_ids=node_ids)
        run = await self.call("StartTrain", pb.StartTrainRequest(network_id=network_id, options=options))
        return str(run.id)

    async def prepare(
        self, spec: NetworkSpec, data: Dataset, *, steps: int, seats: int, node_ids: Sequence[str] = ()
    ) -> tuple[str, pb.TrainOptions]:
        """Network and data are stored; what is left is to plan or to start."""
        content = data.to_bytes()
        sha256 = hashlib.sha256(content).hexdigest()
        url = f"{self.hubs[0].url}/v1/artifacts/{sha256}"
        async with httpx.AsyncClient(timeout=CALL_SECONDS) as http:
            (await http.put(url, content=content, headers=self.submitter.headers)).raise_for_status()
        network = await self.call("CreateNetwork", pb.CreateNetworkRequest(spec_json=to_json(spec)))
        options = pb.TrainOptions(
            steps=steps,
            data=[pb.DataRef(sha256=sha256, size_bytes=len(content))],
            ceiling_microcredits_per_hour=CEILING,
            hours_max=1,
            seats=seats,
            node_ids=node_ids,
        )
        return str(network.id), options

    async def get_run(self, run_id: str) -> pb.Run:
        return await self.call("GetRun", pb.GetRunRequest(run_id=run_id))

    async def wait_for_step(self, run_id: str, step: int, seconds: float = WAIT_SECONDS) -> None:
        """Looks often: what a test does next must happen while the run goes on."""

        async def has_come() -> bool:
            row = (await self.fetch("SELECT state, step FROM runs WHERE id = $1::text::uuid", run_id))[0]
            assert row["state"] not in ("succeeded", "failed", "stopped"), f"the run is {row['state']} already"
            return bool(row["step"] >= step)

        await self.wait_until(has_come, f"step {step}", seconds, pause_seconds=0.02)

    async def wait_for_epoch(self, run_id: str, epoch: int, seconds: float = WAIT_SECONDS) -> None:
        """Until everybody is at work in it."""

        async def has_come() -> bool:
            row = (await self.fetch("SELECT state, epoch FROM runs WHERE id = $1::text::uuid", run_id))[0]
            return bool(row["epoch"] >= epoch and row["state"] == "running")

        await self.wait_until(has_come, f"epoch {epoch}", seconds, pause_seconds=0.02)

    async def wait_for_state(self, run_id: str, *states: str, seconds: float = WAIT_SECONDS) -> pb.Run:
        return await self._wait_for(run_id, lambda run: run.state in states, " or ".join(states), seconds)

    async def _wait_for(self, run_id: str, holds: Any, what: str, seconds: float) -> pb.Run:
        deadline = time.monotonic() + seconds
        while True:
            run = await self.get_run(run_id)
            if holds(run):
                return run
            over = run.state in ("failed", "stopped", "succeeded")
            if over or time.monotonic() > deadline:
                raise AssertionError(f"waited for {what}; the run is {run}\n{await self.tell_story(run_id)}")
            await asyncio.sleep(0.1)

    async def watch(self, run_id: str) -> list[pb.TrainEvent]:
        """All that is told of a run that is over."""
        async with grpc.aio.insecure_channel(self.address) as channel:
            stub = stubs.NetworkServiceStub(channel)
            call = stub.WatchTrain(pb.WatchTrainRequest(run_id=run_id), metadata=self._metadata, timeout=CALL_SECONDS)
            return [event async for event in call]

    async def list_losses(self, run_id: str) -> list[float]:
        """One per step, the last word on each."""
        losses = {event.step: event.loss for event in await self.watch(run_id) if event.kind == "step"}
        assert sorted(losses) == list(range(1, len(losses) + 1)), f"steps are missing: {sorted(losses)}"
        return [losses[step] for step in sorted(losses)]

    # What is in the books

    async def fetch(self, query: str, *values: Any) -> Sequence[Any]:
        conn = await asyncpg.connect(self.dsn)
        try:
            return await conn.fetch(query, *values)
        finally:
            await conn.close()

    async def list_earned(self) -> dict[str, int]:
        """Microcredits by agent, paid out or held back."""
        rows = await self.fetch("SELECT account_id, balance FROM ledger_accounts WHERE kind::text LIKE 'owner%'")
        earned: dict[str, int] = {}
        for row in rows:
            earned[str(row["account_id"])] = earned.get(str(row["account_id"]), 0) + row["balance"]
        return {agent.name: earned.get(agent.owner.account_id, 0) for agent in self.agents}

    async def list_faults_of_books(self) -> list[str]:
        """Accounts that are not the sum of their transfers, and jobs that are over and still hold credits."""
        pool = await create_pool(self.dsn, size_max=1)
        try:
            async with pool.acquire() as conn:
                drifts = [str(each) for each in await ledger.list_drifts(conn)]
        finally:
            await pool.close()
        held = await self.fetch("SELECT id FROM jobs WHERE finished_at IS NOT NULL AND held_remaining <> 0")
        return [*drifts, *(f"job {row['id']} still holds credits" for row in held)]

    async def list_node_ids(self, agents: Sequence[HostingAgent]) -> list[str]:
        names = [agent.name for agent in agents]
        return [str(row["id"]) for row in await self.fetch("SELECT id FROM nodes WHERE name = ANY($1)", names)]

    async def list_agents(self, run: pb.Run) -> list[HostingAgent]:
        """Whose hosts compute it."""
        rows = await self.fetch("SELECT id, name FROM nodes")
        names = {row["name"] for row in rows if str(row["id"]) in {each.node_id for each in run.placement}}
        return [agent for agent in self.agents if agent.name in names]

    async def find_agent(self, run_id: str, seat: str) -> HostingAgent:
        """Whose host fills the seat."""
        rows = await self.fetch(
            "SELECT n.name FROM run_seats s JOIN nodes n ON n.id = s.node_id WHERE s.run_id = $1::text::uuid "
            "AND s.seat = $2",
            run_id,
            seat,
        )
        return next(agent for agent in self.agents if agent.name == rows[0]["name"])

    async def wait_until(
        self, holds: Any, what: str, seconds: float = WAIT_SECONDS, pause_seconds: float = 0.1
    ) -> None:
        deadline = time.monotonic() + seconds
        while not await holds():
            if time.monotonic() > deadline:
                logs = "\n".join(f"== {agent.name}\n{agent.log_text()[-2_000:]}" for agent in self.agents)
                raise AssertionError(f"waited for {what}\n{logs}\n{self.hubs[0].log_text()}")
            await asyncio.sleep(pause_seconds)

    async def tell_story(self, run_id: str) -> str:
        """For a test that fails: what the run's feed, the hub and the agents say."""
        lines = await self.fetch("SELECT * FROM run_events WHERE run_id = $1::text::uuid ORDER BY id", run_id)
        told = "\n".join(str(dict(line)) for line in lines)[-6_000:]
        logs = "\n".join(f"== {agent.name}\n{agent.log_text()[-3_000:]}" for agent in self.agents)
        hubs = "\n".join(f"== hub {hub.port}\n{hub.log_text()[-3_000:]}" for hub in self.hubs)
        return f"{told}\n{logs}\n{hubs}"
