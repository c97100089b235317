"""A small network that trains on machines of its own at the stage's hub, for pages that show runs.

Everything is called as people call it, one after the other: playwright has the loop of the test's thread.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc

from computepool.core.networks.spec_json import to_json
from computepool.wire.pb.computepool.v1 import networks_pb2 as pb
from computepool.wire.pb.computepool.v1 import networks_pb2_grpc as stubs
from tests.support.network_data import make_dataset
from tests.support.network_grid import CEILING, HostingAgent
from tests.support.networks import make_mlp
from tests.support.people import sign_up
from tests.support.web_stage import SUBMITTER, WebStage

CALL_SECONDS = 60.0
WAIT_SECONDS = 120.0
OVER = ("stopped", "succeeded", "failed")
COUNTRIES = ("CA", "FR", "AU", "KE")


@dataclass(frozen=True)
class StagedRun:
    stage: WebStage
    id: str
    network_name: str
    agents: list[HostingAgent]

    def get(self) -> dict[str, Any]:
        detail: dict[str, Any] = self.stage.call(self.stage.people[SUBMITTER], "GET", f"/v1/runs/{self.id}")
        return detail

    def await_step(self, step: int, *, epoch: int = 1) -> int:
        """The step that was reached, at work in this epoch or a later one."""

        def is_there(detail: dict[str, Any]) -> bool:
            run = detail["run"]
            return bool(run["step"] >= step and run["epoch"] >= epoch and run["state"] == "running")

        return int(self.stage.wait_for(self.get, is_there, seconds=WAIT_SECONDS)["run"]["step"])

    def find_host(self, seat: str) -> HostingAgent:
        """Whose machine fills the seat."""
        [node_id] = [each["node_id"] for each in self.get()["seats"] if each["seat"] == seat]
        node = self.stage.call(self.stage.operator, "GET", f"/v1/nodes/{node_id}")
        return next(agent for agent in self.agents if agent.name == node["name"])

    def stop(self) -> None:
        if self.get()["run"]["state"] not in OVER:
            self.stage.call(self.stage.people[SUBMITTER], "POST", f"/v1/runs/{self.id}/stop")
        self.stage.wait_for(self.get, lambda found: found["run"]["state"] in OVER, seconds=WAIT_SECONDS)


@contextmanager
def open_run(
    stage: WebStage, root: Path, *, name: str = "digits", agents: int = 3, seats: int = 2, steps: int = 1_000_000
) -> Iterator[StagedRun]:
    """So many steps that only a stop ends it: however fast the machine is, nobody comes too late."""
    hosts = [
        HostingAgent(
            hub_url=stage.url,
            owner=sign_up(stage.url, f"host{number}"),
            root=root,
            name=f"pnode-{number}",
            region=COUNTRIES[number % len(COUNTRIES)],
        )
        for number in range(agents)
    ]
    try:
        for host in hosts:
            host.start()
        run = StagedRun(stage, _start(stage, name=name, seats=seats, steps=steps), name, hosts)
        try:
            yield run
        finally:
            # What is left of it must not be in the way of others.
            with contextlib.suppress(AssertionError):
                run.stop()
    finally:
        for host in hosts:
            host.end()


def _start(stage: WebStage, *, name: str, seats: int, steps: int) -> str:
    spec = replace(make_mlp(checkpoint_every=20), name=name)
    content = make_dataset(spec).to_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    submitter = stage.people[SUBMITTER]
    stage.call(submitter, "PUT", f"/v1/artifacts/{sha256}", content=content)
    options = pb.TrainOptions(
        steps=steps,
        data=[pb.DataRef(sha256=sha256, size_bytes=len(content))],
        ceiling_microcredits_per_hour=CEILING,
        hours_max=1,
        seats=seats,
    )
    address = stage.call(submitter, "GET", "/v1/hub")["rpc_address"]
    waits: dict[str, Any] = {
        "metadata": (("authorization", submitter.headers["Authorization"]),),
        "timeout": CALL_SECONDS,
        "wait_for_ready": True,
    }
    with grpc.insecure_channel(address) as channel:
        stub = stubs.NetworkServiceStub(channel)
        network = stub.CreateNetwork(pb.CreateNetworkRequest(spec_json=to_json(spec)), **waits)
        run = stub.StartTrain(pb.StartTrainRequest(network_id=network.id, options=options), **waits)
    return str(run.id)
