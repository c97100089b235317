"""gRPC beside a real hub: its process, its calls for nodes, TLS, health, reflection, and the relay behind tokens."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from computepool.core.errors import HubUnavailable, InvalidRequest, StaleLease, Unauthenticated, VersionMismatch
from computepool.core.networks.placement import SeatId
from computepool.hub.services.keyring import Keyring
from computepool.hub.services.seat_tokens import issue_seat_token
from computepool.hub.store.connect import create_pool
from computepool.node.vnodes.edges import Edges, Tls
from computepool.wire.nodes import HubKey
from computepool.wire.pb.computepool.v1 import jobs_pb2 as pb
from tests.support.edge_hosts import RUN, make_head, until
from tests.support.hub_process import SHORT_LEASE_SECONDS, HubProcess, free_port
from tests.support.living import is_alive
from tests.support.people import Person, sign_up
from tests.support.protocol_node import ProtocolNode
from tests.support.rpc_client import RpcNode, wait_for_rpc

SERVING = health_pb2.HealthCheckResponse.SERVING


@pytest.fixture
def start_rpc_hub(start_hub) -> Callable[..., HubProcess]:
    def start(**settings: Any) -> HubProcess:
        port = free_port()
        hub = start_hub(rpc_port=port, **settings)
        hub.rpc_address = f"127.0.0.1:{port}"
        return hub

    return start


@pytest.fixture
async def own_hub(start_rpc_hub) -> HubProcess:
    """For tests that kill it."""
    hub = start_rpc_hub()
    await wait_for_rpc(hub.rpc_address)
    return hub


@pytest.fixture(scope="module")
def hub(postgres, tmp_path_factory) -> Iterator[HubProcess]:
    """For tests that do not mind what others do with it."""
    port = free_port()
    dsn = asyncio.run(postgres.create_database())
    folder = tmp_path_factory.mktemp("rpc")
    hub = HubProcess(dsn=dsn, data_dir=folder, rpc_port=port, lease_seconds=SHORT_LEASE_SECONDS).start()
    hub.rpc_address = f"127.0.0.1:{port}"
    asyncio.run(wait_for_rpc(hub.rpc_address))
    yield hub
    hub.kill()


@pytest.fixture
async def make_node(hub) -> AsyncIterator[Callable[..., Any]]:
    made: list[RpcNode] = []

    async def make(**options: Any) -> RpcNode:
        node = ProtocolNode([hub.url], sign_up(hub.url, "owner"), **options)
        await node.enrol()
        made.append(RpcNode(node, hub.rpc_address))
        return made[-1]

    yield make
    for each in made:
        await each.close()
        await each.node.close()


def submit(hub: HubProcess, person: Person, **changes: Any) -> str:
    body = {"command": ["true"], "retries": 0, **changes}
    answer = httpx.post(f"{hub.url}/v1/jobs", json=body, headers=person.headers, timeout=20)
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


def get_job(hub: HubProcess, person: Person, job_id: str) -> dict[str, Any]:
    return httpx.get(f"{hub.url}/v1/jobs/{job_id}", headers=person.headers, timeout=20).json()


def get_slice(hub: HubProcess, person: Person, job_id: str) -> dict[str, Any]:
    """Of a job that has one."""
    return httpx.get(f"{hub.url}/v1/jobs/{job_id}/slices/0", headers=person.headers, timeout=20).json()


def find_rpc_pids(hub: HubProcess) -> list[int]:
    return [int(pid) for pid in re.findall(r"rpc_process_started pid=(\d+)", hub.log_path.read_text())]


async def check_health(address: str, service: str = "") -> Any:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=20, wait_for_ready=True)
        return answer.status


# The process


async def test_a_process_that_was_killed_is_started_again_and_the_hub_never_notices(own_hub):
    hub = own_hub
    [pid] = find_rpc_pids(hub)
    os.kill(pid, signal.SIGKILL)
    await until(lambda: len(find_rpc_pids(hub)) == 2, "a new process")
    assert await check_health(hub.rpc_address) == SERVING
    assert httpx.get(f"{hub.url}/readyz", timeout=5).status_code == 200
    assert "rpc_process_died exit_code=-9" in hub.log_path.read_text()


async def test_the_process_ends_with_a_hub_that_was_killed_and_another_hub_may_have_its_port(own_hub, start_hub):
    hub = own_hub
    [pid] = find_rpc_pids(hub)
    hub.kill()
    heir = start_hub(rpc_port=int(hub.rpc_address.rpartition(":")[2]))
    await until(lambda: not is_alive(pid), "the orphan to end")
    assert await check_health(hub.rpc_address) == SERVING
    assert heir.stop() == 0


async def test_it_ends_within_seconds_of_sigterm_though_streams_are_open(own_hub):
    hub = own_hub
    async with grpc.aio.insecure_channel(hub.rpc_address) as channel:
        watching = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watching.read()).status == SERVING
        # Gently, as its last word shows, and long before the stream would have ended by itself.
        assert await asyncio.to_thread(hub.stop, 30) == 0
    assert not is_alive(find_rpc_pids(hub)[0])
    assert " rpc computepool.rpc rpc_stopped" in hub.log_path.read_text()


async def test_several_hub_processes_have_one_process_for_grpc(start_rpc_hub):
    hub = start_rpc_hub(workers=2)
    assert await check_health(hub.rpc_address) == SERVING
    assert len(find_rpc_pids(hub)) == 1
    assert hub.stop() == 0
    assert not is_alive(find_rpc_pids(hub)[0])


def test_without_a_port_there_is_no_grpc(start_hub):
    hub = start_hub()
    found = httpx.get(f"{hub.url}/v1/hub", timeout=5).json()
    assert (found["rpc_address"], find_rpc_pids(hub)) == ("", [])


async def test_the_hub_tells_where_grpc_is(start_rpc_hub):
    hub = start_rpc_hub(rpc_advertised_address="grid.example.org:8001")
    assert httpx.get(f"{hub.url}/v1/hub", timeout=5).json()["rpc_address"] == "grid.example.org:8001"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rpc_port": 8001, "rpc_tls_certificate_file": "/x.pem"}, "needs both files"),
        ({"rpc_port": 8001, "port": 8001}, "cannot share port"),
    ],
)
def test_settings_with_which_grpc_could_never_be_served_are_refused_at_start(dsn, tmp_path, settings, words):
    hub = HubProcess(dsn=dsn, data_dir=tmp_path, **settings).start(wait=False)
    assert hub.process.wait(30) == 2
    assert words in hub.log_text()


async def test_a_certificate_that_cannot_be_read_costs_grpc_and_not_the_hub(start_hub, tmp_path):
    files = {"rpc_tls_certificate_file": tmp_path / "no.pem", "rpc_tls_key_file": tmp_path / "no.key"}
    hub = start_hub(rpc_port=free_port(), **files)
    await until(lambda: "rpc_process_refused" in hub.log_path.read_text(), "the refusal")
    assert "cannot be read" in hub.log_text()
    assert httpx.get(f"{hub.url}/readyz", timeout=5).status_code == 200


# What every gRPC server should offer


async def test_health_names_every_service_and_reflection_lists_them(hub):
    assert await check_health(hub.rpc_address) == SERVING
    assert await check_health(hub.rpc_address, "computepool.v1.JobService") == SERVING
    async with grpc.aio.insecure_channel(hub.rpc_address) as channel:
        ask = reflection_pb2.ServerReflectionRequest(list_services="")
        call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([ask]), timeout=20)
        listed = [each.name async for answer in call for each in answer.list_services_response.service]
    assert {"computepool.v1.JobService", "computepool.v1.EdgeService", "grpc.health.v1.Health"} <= set(listed)


async def test_another_major_version_is_refused_with_a_reason_and_a_newer_minor_one_is_not(make_node):
    node = await make_node()
    bearer = ("authorization", node.node.headers["Authorization"])
    beat = pb.HeartbeatRequest(boot_id=node.node.boot_id)
    with pytest.raises(VersionMismatch, match="Upgrade the called"):
        await node.call("Heartbeat", beat, metadata=(bearer, ("computepool-api-version", "2.0")))
    with pytest.raises(InvalidRequest, match="not a version"):
        await node.call("Heartbeat", beat, metadata=(bearer, ("computepool-api-version", "one")))
    await node.call("Heartbeat", beat, metadata=(bearer, ("computepool-api-version", "1.9")))


async def test_a_message_beyond_the_cap_is_refused(make_node):
    node = await make_node()
    with pytest.raises(HubUnavailable, match="larger than max"):
        await node.call("Heartbeat", pb.HeartbeatRequest(running=["x" * 9_000_000]))


# The node protocol


async def test_a_node_runs_a_job_through_grpc_alone(hub, make_node):
    submitter = sign_up(hub.url, "submitter")
    job_id = submit(hub, submitter, slice_count=3)
    node = await make_node(cpu_slots=1)
    held = await node.claim_one()
    assert held.order["job_id"] == job_id
    first = await node.complete(held, claims=True)
    assert first.accepted
    node.node.forget(held.attempt_id)
    [second] = node.take(first.next)
    repeated = await node.complete(held)
    assert (repeated.accepted, repeated.repeated) == (True, True)
    await node.complete(second)
    node.node.forget(second.attempt_id)
    third = await node.claim_one()
    batch = pb.CompleteBatchRequest(
        boot_id=node.node.boot_id,
        completions=[node.completion(third), node.completion(third, lease_secret="forged")],
        receipt=node.node.receipt(third),
    )
    outcomes = (await node.call("CompleteBatch", batch)).outcomes
    assert (outcomes[0].accepted, outcomes[1].refusal.code) == (True, "stale_lease")
    job = get_job(hub, submitter, job_id)
    assert (job["state"], job["counts"]["succeeded"]) == ("succeeded", 3)


async def test_the_same_failure_is_told_in_the_same_words_as_over_rest(hub, make_node):
    submitter = sign_up(hub.url, "submitter")
    job_id = submit(hub, submitter)
    node = await make_node()
    held = await node.claim_one()
    answer = await node.complete(held, cause="exit_code", exit_code=3, message="it broke")
    assert not answer.accepted
    job = get_job(hub, submitter, job_id)
    assert job["state"] == "failed"


async def test_refusals_are_those_of_rest_with_their_codes(make_node):
    node = await make_node()
    with pytest.raises(Unauthenticated, match="authorization"):
        await node.call("Heartbeat", pb.HeartbeatRequest(boot_id=node.node.boot_id), metadata=())
    with pytest.raises(Unauthenticated, match="not a token"):
        await node.call("Heartbeat", pb.HeartbeatRequest(), metadata=(("authorization", "Bearer nonsense"),))
    with pytest.raises(InvalidRequest, match="boot_id"):
        await node.call("Heartbeat", pb.HeartbeatRequest(boot_id="no UUID"))
    with pytest.raises(InvalidRequest, match="attempt_id"):
        await node.call("Complete", pb.CompleteRequest(boot_id=node.node.boot_id))
    forged = pb.Completion(attempt_id=node.node.boot_id, lease_secret="forged", cause="timed_out")
    with pytest.raises(StaleLease):
        await node.call("Complete", pb.CompleteRequest(boot_id=node.node.boot_id, completion=forged))


async def test_an_agent_that_does_not_wait_is_told_when_to_come_again(make_node):
    node = await make_node()
    request = pb.NextRequest(boot_id=node.node.boot_id, free_slots=["cpu:0"])
    assert (await node.call("Next", request)).poll_seconds > 0


async def test_a_call_that_its_caller_gave_up_is_given_up_behind_it_too(hub, make_node):
    node = await make_node()
    request = pb.NextRequest(boot_id=node.node.boot_id, free_slots=["cpu:0"], wait_seconds=30)

    def count_parked() -> float:
        text = httpx.get(f"{hub.url}/metrics", timeout=5).text
        return float(re.search(r"^computepool_parked_calls (\S+)", text, re.MULTILINE)[1])

    calling = asyncio.create_task(node.call("Next", request))
    await until(lambda: count_parked() == 1 or calling.done(), "the call to be parked")
    calling.cancel()
    await until(lambda: count_parked() == 0, "the call to be gone")


@pytest.mark.parametrize("over", ["grpc", "rest"])
async def test_a_node_that_beats_over_one_protocol_loses_no_lease_while_the_other_is_cut(hub, make_node, over):
    """Leases last 3 s here and are taken away 1 s later; the node is heard over one protocol alone for twice that."""
    submitter = sign_up(hub.url, "submitter")
    job_id = submit(hub, submitter)
    node = await make_node()
    # It came over the one that is cut afterwards.
    held = await (node.node.claim_one() if over == "grpc" else node.claim_one())
    until_at = time.monotonic() + 8
    while time.monotonic() < until_at:
        await (node.beat() if over == "grpc" else node.node.heartbeat())
        await asyncio.sleep(0.5)
    assert get_slice(hub, submitter, job_id)["state"] in ("leased", "running")
    if over == "grpc":
        assert (await node.complete(held)).accepted
    else:
        assert (await node.node.complete(held)).json()["accepted"]
    assert get_job(hub, submitter, job_id)["state"] == "succeeded"


async def test_control_a_node_that_beats_over_neither_loses_its_lease(hub, make_node):
    submitter = sign_up(hub.url, "submitter")
    job_id = submit(hub, submitter)
    node = await make_node()
    await node.claim_one()
    await until(lambda: get_slice(hub, submitter, job_id)["state"] == "queued", "the lease to be taken away")


async def test_a_hub_that_does_not_answer_is_told_as_unavailable(own_hub):
    """The process beside it lives; its calls have nowhere to go."""
    hub = own_hub
    node = ProtocolNode([hub.url], sign_up(hub.url, "owner"))
    await node.enrol()
    os.kill(hub.process.pid, signal.SIGSTOP)
    caller = RpcNode(node, hub.rpc_address)
    try:
        began = time.monotonic()
        with pytest.raises(HubUnavailable):
            await caller.call("Heartbeat", pb.HeartbeatRequest(boot_id=node.boot_id), timeout=2)
        assert time.monotonic() - began < 30
    finally:
        os.kill(hub.process.pid, signal.SIGCONT)
        await caller.close()
        await node.close()


# TLS, tokens and the relay


def make_certificate(folder: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "grid.example.org")])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "rpc.pem", folder / "rpc.key"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return paths


async def make_tokens(hub: HubProcess, dsn: str) -> tuple[list[HubKey], Callable[[str], str]]:
    """As the hub that owns a run makes them."""
    found = httpx.get(f"{hub.url}/v1/hub", timeout=5).json()
    pool = await create_pool(dsn, size_max=1)
    try:
        keyring = Keyring(found["hub_id"])
        await keyring.refresh(pool)
    finally:
        pool.terminate()
    keys = [HubKey(**key) for key in found["hub_keys"]]
    return keys, lambda seat: issue_seat_token(keyring, run_id=RUN, seat=seat, epoch=1, seconds=60)


async def test_hosts_meet_at_the_hubs_relay_over_tls_by_tokens_that_the_hub_signed(start_rpc_hub, dsn, tmp_path):
    certificate, key = make_certificate(tmp_path)
    hub = start_rpc_hub(rpc_tls_certificate_file=certificate, rpc_tls_key_file=key)
    roots = certificate.read_bytes()
    await wait_for_rpc(hub.rpc_address, grpc.ssl_channel_credentials(roots))
    assert httpx.get(f"{hub.url}/v1/hub", timeout=5).json()["rpc_tls"] is True
    keys, token = await make_tokens(hub, dsn)
    heard: list[bytes] = []
    routes = {SeatId("a"): "", SeatId("b"): ""}
    hosts = [
        Edges(
            run_id=RUN,
            seat=seat,
            hub_keys=keys,
            on_frame=lambda seat, head, content: heard.append(bytes(content)),
            on_peer_lost=lambda seat, reason: None,
            relay_tls=Tls(roots),
        )
        for seat in routes
    ]
    try:
        for host, seat in zip(hosts, routes, strict=True):
            host.connect(1, token(seat), routes, relay_address=hub.rpc_address)
        hosts[0].post(SeatId("b"), make_head(size=300_000), bytes(300_000))
        await until(lambda: heard, "the tensor")
        assert heard == [bytes(300_000)]
    finally:
        for host in hosts:
            await host.close()
    async with grpc.aio.insecure_channel(hub.rpc_address) as plain:
        with pytest.raises(grpc.aio.AioRpcError):
            await health_pb2_grpc.HealthStub(plain).Check(health_pb2.HealthCheckRequest(), timeout=3)
    stranger = grpc.ssl_channel_credentials(make_certificate(tmp_path)[0].read_bytes())
    async with grpc.aio.secure_channel(hub.rpc_address, stranger) as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=3)
