"""Every RPC, every kind of caller, own and other tenants' resources. An RPC without a row fails.

As for REST: each row says who may call and what the request names; from that follows every expected status.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import grpc
import httpx
import pytest
from google.protobuf import message_factory

from computepool.core.networks.spec_json import to_json
from computepool.hub.rpc.main import all_rpcs
from computepool.hub.rpc.routing import CODES, list_declared
from computepool.wire.pb.computepool.v1 import jobs_pb2 as jobs
from computepool.wire.pb.computepool.v1 import networks_pb2 as pb
from tests.support.hub_process import HubProcess, free_port
from tests.support.networks import make_mlp
from tests.support.people import sign_in_operator, sign_up
from tests.support.protocol_node import Held, ProtocolNode
from tests.support.rpc_client import wait_for_rpc

ACCOUNT, SUBMITTER, OWNER, OPERATOR, NODE, LEASE, SEAT = (
    "account",
    "submitter",
    "owner",
    "operator",
    "node",
    "lease",
    "seat",
)
SHA = hashlib.sha256(b"bytes").hexdigest()


@dataclass(frozen=True)
class Row:
    access: str
    # The request, given the world; it names something of Alice's if `resource` is set.
    request: Callable[[World], Any]
    resource: bool = False
    # An operator may reach into every tenant.
    operator_sees_all: bool = True


MATRIX: dict[str, Row] = {
    "JobService/Next": Row(NODE, lambda w: jobs.NextRequest(boot_id=w.boot_id, running=w.running)),
    "JobService/Heartbeat": Row(NODE, lambda w: jobs.HeartbeatRequest(boot_id=w.boot_id, running=w.running)),
    "JobService/Complete": Row(NODE, lambda w: jobs.CompleteRequest(boot_id=w.boot_id)),
    "JobService/CompleteBatch": Row(NODE, lambda w: jobs.CompleteBatchRequest(boot_id=w.boot_id)),
    "NetworkService/CreateNetwork": Row(SUBMITTER, lambda w: pb.CreateNetworkRequest(spec_json="{}")),
    "NetworkService/GetNetwork": Row(ACCOUNT, lambda w: pb.GetNetworkRequest(id=w.network_id), True),
    "NetworkService/ListNetworks": Row(ACCOUNT, lambda w: pb.ListNetworksRequest()),
    "NetworkService/DeleteNetwork": Row(SUBMITTER, lambda w: pb.DeleteNetworkRequest(id=w.network_id), True),
    "NetworkService/PlanNetwork": Row(
        SUBMITTER,
        lambda w: pb.PlanNetworkRequest(network_id=w.network_id, options=w.options),
        True,
    ),
    "NetworkService/StartTrain": Row(
        SUBMITTER,
        lambda w: pb.StartTrainRequest(network_id=w.network_id, options=w.options),
        True,
        # Who pays is who starts.
        operator_sees_all=False,
    ),
    "NetworkService/StopTrain": Row(SUBMITTER, lambda w: pb.StopTrainRequest(run_id=w.run_id), True),
    "NetworkService/ResumeTrain": Row(
        SUBMITTER, lambda w: pb.ResumeTrainRequest(run_id=w.run_id), True, operator_sees_all=False
    ),
    "NetworkService/GetRun": Row(ACCOUNT, lambda w: pb.GetRunRequest(run_id=w.run_id), True),
    "NetworkService/ListRuns": Row(ACCOUNT, lambda w: pb.ListRunsRequest()),
    "NetworkService/WatchTrain": Row(ACCOUNT, lambda w: pb.WatchTrainRequest(run_id=w.run_id), True),
    # Who pays for the seats asks them.
    "NetworkService/Infer": Row(
        SUBMITTER, lambda w: pb.InferRequest(network_id=w.network_id), True, operator_sees_all=False
    ),
    "NetworkService/InferStream": Row(
        SUBMITTER, lambda w: pb.InferRequest(run_id=w.run_id), True, operator_sees_all=False
    ),
    "NetworkService/ListCheckpoints": Row(ACCOUNT, lambda w: pb.ListCheckpointsRequest(run_id=w.run_id), True),
    "NetworkService/ExportState": Row(ACCOUNT, lambda w: pb.ExportStateRequest(run_id=w.run_id), True),
    "MembershipService/Register": Row(LEASE, lambda w: pb.RegisterRequest(version=pb.ApiVersion(major=1))),
    "MembershipService/Session": Row(LEASE, lambda w: pb.HostMessage(hello=pb.Hello())),
    "MembershipService/Leave": Row(LEASE, lambda w: pb.LeaveRequest()),
    "ResolveService/Resolve": Row(LEASE, lambda w: pb.ResolveRequest(run_id=w.run_id)),
    "ResolveService/ReportPeer": Row(LEASE, lambda w: pb.ReportPeerRequest(run_id=w.run_id)),
    "BlobService/Put": Row(LEASE, lambda w: pb.BlobPiece(sha256=SHA, content=b"bytes")),
    "BlobService/Get": Row(LEASE, lambda w: pb.GetBlobRequest(sha256=SHA)),
    "EdgeService/Open": Row(
        SEAT, lambda w: pb.Frame(kind=pb.FRAME_KIND_HELLO, version=pb.ApiVersion(major=1), run_id="r")
    ),
}
ROLES = {
    "alice_submitter": {SUBMITTER},
    "alice_owner": {OWNER},
    "mallory": {SUBMITTER, OWNER},
    "operator": {SUBMITTER, OWNER, OPERATOR},
}
NOBODY = ("anonymous", "nonsense", "revoked", "expired", "suspended")
NODES = ("alice_node", "mallory_node")
LEASES = ("alice_host", "mallory_host", "forger", "ended_host")
CALLERS = (*NOBODY, *ROLES, *NODES, *LEASES)


def test_every_rpc_has_a_row_and_every_row_an_rpc():
    assert set(list_declared()) == set(MATRIX)


def test_every_rpc_of_the_protocol_is_served():
    assert set(list_declared()) == {f"{rpc.service}/{rpc.name}" for rpc in all_rpcs()}


def test_every_rpc_declares_the_access_that_its_row_expects():
    declared = {f"{rpc.service}/{rpc.name}": rpc.access.value for rpc in all_rpcs()}
    assert declared == {name: row.access for name, row in MATRIX.items()}


def test_every_status_of_rest_has_one_in_grpc():
    from computepool.hub.http.errors import STATUS

    assert set(STATUS.values()) <= set(CODES)


@dataclass
class World:
    """One hub with gRPC, Alice with a network and a run of it, and all kinds of callers."""

    hub: HubProcess
    dsn: str
    address: str
    metadata: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    nodes: list[ProtocolNode] = field(default_factory=list)
    network_id: str = ""
    run_id: str = ""

    async def set_up(self, operator: Any) -> None:
        url = self.hub.url
        self.alice, mallory, suspended = (sign_up(url, name) for name in ("alice", "mallory", "suspended"))
        self.metadata = {"anonymous": [], "nonsense": bearer("cpk_nonsense"), "mallory": bearer(mallory.key)}
        self.metadata |= {"operator": bearer(operator.key), "suspended": bearer(suspended.key)}
        for role in (SUBMITTER, OWNER):
            key = self.post("/v1/keys", self.alice.headers, json={"roles": [role]})
            self.metadata[f"alice_{role}"] = bearer(key["secret"])
        self.post(f"/v1/accounts/{suspended.account_id}/suspend", operator.headers)
        revoked = self.post("/v1/keys", self.alice.headers, json={})
        httpx.delete(f"{url}/v1/keys/{revoked['key']['id']}", headers=self.alice.headers, timeout=60)
        self.metadata["revoked"] = bearer(revoked["secret"])
        expired = self.post("/v1/keys", self.alice.headers, json={"expires_seconds": 60})
        await self.execute("UPDATE api_keys SET expires_at = now() WHERE id = $1", expired["key"]["id"])
        self.metadata["expired"] = bearer(expired["secret"])
        await self.hold_leases(mallory)
        answer = httpx.put(f"{url}/v1/artifacts/{SHA}", content=b"bytes", headers=self.alice.headers, timeout=60)
        assert answer.status_code == 200, answer.text

    async def hold_leases(self, mallory: Any) -> None:
        for name, person in (("alice", self.alice), ("mallory", mallory)):
            node = ProtocolNode([self.hub.url], person, name=name, cpu_slots=2)
            await node.enrol()
            self.nodes.append(node)
            self.metadata[f"{name}_node"] = [("authorization", node.headers["Authorization"])]
        self.node = self.nodes[0]
        job = {"command": ["true"], "slice_count": 3, "retries": 0}
        self.post("/v1/jobs", self.alice.headers, json=job)
        while len(self.node.held) < 2:
            await self.node.claim_one()
        held, ended = self.node.held.values()
        await self.node.complete(ended)
        self.node.forget(ended.attempt_id)
        other = await self.nodes[1].claim_one()
        self.metadata["alice_host"] = lease(held)
        self.metadata["mallory_host"] = lease(other)
        self.metadata["ended_host"] = lease(ended)
        self.metadata["forger"] = [("attempt-id", held.attempt_id), ("lease-secret", other.secret)]

    async def make_network(self) -> None:
        """Anew for each call, so that calls do not disturb each other."""
        alice = bearer(self.alice.key)
        made = await self.call(
            "NetworkService/CreateNetwork", pb.CreateNetworkRequest(spec_json=to_json(make_mlp())), alice
        )
        assert isinstance(made, pb.Network), made
        self.network_id = made.id
        request = pb.StartTrainRequest(network_id=made.id, options=self.options)
        run = await self.call("NetworkService/StartTrain", request, alice)
        assert isinstance(run, pb.Run), run
        self.run_id = run.id

    @property
    def options(self) -> pb.TrainOptions:
        return pb.TrainOptions(steps=1, seats=1, hours_max=1, data=[pb.DataRef(sha256=SHA, size_bytes=5)])

    @property
    def boot_id(self) -> str:
        return self.node.boot_id

    @property
    def running(self) -> list[str]:
        return list(self.node.held)

    def post(self, path: str, headers: dict[str, str], **options: Any) -> dict[str, Any]:
        answer = httpx.post(self.hub.url + path, headers=headers, timeout=20, **options)
        assert answer.status_code in (200, 201), answer.text
        return answer.json()

    async def execute(self, statement: str, *values: Any) -> None:
        conn = await asyncpg.connect(self.dsn)
        try:
            await conn.execute(statement, *values)
        finally:
            await conn.close()

    async def call(self, name: str, request: Any, metadata: list[tuple[str, str]]) -> Any:
        """The first answer, or the error."""
        for patience_seconds in (0.0, 0.5, 1.0, 2.0, 4.0):
            found = await self._call_once(name, request, metadata, patience_seconds)
            # A call that is refused while its first message leaves: the library then tells of its own trouble, not
            # of the hub's refusal. A message that waits for the refusal does not get in its way.
            if not (isinstance(found, grpc.aio.AioRpcError) and found.details() == "Internal error from Core"):
                break
        return found

    async def _call_once(
        self, name: str, request: Any, metadata: list[tuple[str, str]], patience_seconds: float
    ) -> Any:
        service, _, method = name.partition("/")
        file = jobs.DESCRIPTOR if service == "JobService" else pb.DESCRIPTOR
        found = file.services_by_name[service].methods_by_name[method]
        kind = f"{'stream' if found.client_streaming else 'unary'}_{'stream' if found.server_streaming else 'unary'}"
        invoke = getattr(self.channel, kind)(
            f"/computepool.v1.{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=message_factory.GetMessageClass(found.output_type).FromString,
        )
        given = send_after(patience_seconds, request) if found.client_streaming else request
        try:
            call = invoke(given, metadata=metadata, timeout=60)
            if not found.server_streaming:
                return await call
            first = await call.read()
            if first is grpc.aio.EOF:
                code = await call.code()
                return None if code is grpc.StatusCode.OK else _Ended(code, await call.details())
            call.cancel()
            return first
        except grpc.aio.AioRpcError as error:
            return error


@dataclass(frozen=True)
class _Ended:
    status: grpc.StatusCode
    words: str

    def code(self) -> grpc.StatusCode:
        return self.status

    def details(self) -> str:
        return self.words


async def send_after(seconds: float, request: Any) -> AsyncIterator[Any]:
    await asyncio.sleep(seconds)
    yield request


def bearer(secret: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {secret}")]


def lease(held: Held) -> list[tuple[str, str]]:
    return [("attempt-id", held.attempt_id), ("lease-secret", held.secret)]


def expected(row: Row, caller: str) -> set[str] | str:
    """The statuses that are right; "in" means anything but a refusal for who the caller is."""
    if row.access == SEAT:
        # Neither keys nor leases open a stream: a token in its first frame does.
        return {"UNAUTHENTICATED"}
    if row.access == LEASE:
        known = {"alice_host": "in", "mallory_host": "in", "ended_host": {"FAILED_PRECONDITION"}}
        return known.get(caller, {"UNAUTHENTICATED"})
    if caller in NOBODY:
        return {"PERMISSION_DENIED"} if caller == "suspended" and row.access != NODE else {"UNAUTHENTICATED"}
    if caller in LEASES or (caller in NODES) != (row.access == NODE):
        return {"UNAUTHENTICATED"}
    if caller in NODES:
        return "in"
    if row.access != ACCOUNT and row.access not in ROLES[caller]:
        return {"PERMISSION_DENIED"}
    if not row.resource or caller.startswith("alice") or (caller == "operator" and row.operator_sees_all):
        return "in"
    return {"NOT_FOUND"}


def is_right(found: Any, want: set[str] | str, row: Row) -> bool:
    code = found.code().name if hasattr(found, "code") and callable(found.code) else "OK"
    if want != "in":
        return code in want
    refused = {"UNAUTHENTICATED", "PERMISSION_DENIED", "INTERNAL", "UNKNOWN", "UNIMPLEMENTED"}
    # A lease that is no seat's may see nothing of a run; a checkpoint may not be there yet.
    return code not in refused


async def list_wrong(
    hub: HubProcess, dsn: str, address: str, operator: Any, rows: Mapping[str, Row]
) -> list[tuple[Any, ...]]:
    """Every call of these rows that was answered otherwise than they say."""
    world = World(hub, dsn, address)
    wrong, calls = [], 0
    async with grpc.aio.insecure_channel(address) as world.channel:
        await world.set_up(operator)
        for name, row in rows.items():
            for caller in CALLERS:
                await world.node.heartbeat()
                await world.nodes[1].heartbeat()
                if row.resource or not world.run_id:
                    await world.make_network()
                found = await world.call(name, row.request(world), world.metadata[caller])
                calls += 1
                want = expected(row, caller)
                if not is_right(found, want, row):
                    wrong.append((name, caller, want, str(found)[:200]))
    assert calls == len(rows) * len(CALLERS)
    await asyncio.gather(*(node.close() for node in world.nodes))
    return wrong


@pytest.fixture
def start_rpc_hub(start_hub) -> Callable[..., Any]:
    async def start(**options: Any) -> tuple[HubProcess, str, Any]:
        port = free_port()
        # No lease may run out on the way, however slow the machine is.
        hub = start_hub(rpc_port=port, lease_seconds=60, **options)
        await wait_for_rpc(f"127.0.0.1:{port}")
        return hub, f"127.0.0.1:{port}", sign_in_operator(hub.url, hub.log_path.read_text())

    return start


@pytest.mark.timeout(280)
async def test_every_rpc_answers_every_caller_as_its_row_says(start_rpc_hub, dsn):
    hub, address, operator = await start_rpc_hub()
    wrong = await list_wrong(hub, dsn, address, operator, MATRIX)
    assert wrong == [], "\n".join(map(str, wrong))


@pytest.mark.timeout(280)
@pytest.mark.parametrize(
    ("bug", "caught"),
    [
        ("rpc_no_tenant_check", ("NetworkService/GetNetwork", "mallory")),
        ("rpc_no_lease_check", ("ResolveService/Resolve", "forger")),
    ],
)
async def test_control_a_hub_without_the_guard_is_caught(start_rpc_hub, dsn, bug, caught):
    hub, address, operator = await start_rpc_hub(program=("-m", "tests.support.planted_hub", bug))
    wrong = await list_wrong(hub, dsn, address, operator, {caught[0]: MATRIX[caught[0]]})
    assert caught in {row[:2] for row in wrong}
