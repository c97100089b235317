"""Node identity: tokens that are forged, foreign or expired are refused; keys rotate without a failed call."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from computepool.core.jobs.state import JobState
from tests.support.postgres import wait_for
from tests.support.protocol_node import ProtocolNode, base64url


@pytest.fixture
def hub(shared_hub):
    return shared_hub


@pytest.fixture
async def node(hub, owner):
    node = ProtocolNode([hub.url], owner, cpu_slots=1)
    await node.enrol()
    yield node
    await node.close()


def forge(node: ProtocolNode, how: str) -> str:
    real = node.headers["Authorization"].split()[1]
    claims = jwt.decode(real, options={"verify_signature": False})
    header = jwt.get_unverified_header(real)
    mine = Ed25519PrivateKey.generate()
    if how == "alg_none":
        return jwt.encode(claims, None, algorithm="none", headers={"kid": header["kid"], "typ": header["typ"]})
    if how == "hs256_with_the_public_key":
        return jwt.encode(claims, "x" * 32, algorithm="HS256", headers={"kid": header["kid"], "typ": header["typ"]})
    if how == "own_key_known_kid":
        return jwt.encode(claims, mine, algorithm="EdDSA", headers={"kid": header["kid"], "typ": header["typ"]})
    if how == "own_key_own_kid":
        return jwt.encode(claims, mine, algorithm="EdDSA", headers={"kid": "mine", "typ": header["typ"]})
    if how == "changed_subject":
        head, _, signature = real.split(".")
        body = jwt.encode({**claims, "sub": str(uuid.uuid4())}, mine, algorithm="EdDSA").split(".")[1]
        return f"{head}.{body}.{signature}"
    if how == "assertion_as_token":
        return node.assertion()
    return "not.a.token"


@pytest.mark.parametrize(
    "how",
    [
        "alg_none",
        "hs256_with_the_public_key",
        "own_key_known_kid",
        "own_key_own_kid",
        "changed_subject",
        "assertion_as_token",
        "nonsense",
    ],
)
async def test_a_forged_node_token_is_refused(node, how):
    node.headers = {"Authorization": f"Bearer {forge(node, how)}"}
    answer = await node.heartbeat()
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")


async def test_a_job_token_is_no_node_token(hub, submitter, node):
    httpx.post(f"{hub.url}/v1/jobs", json={"command": ["true"]}, headers=submitter.headers, timeout=60)
    held = await node.claim_one()
    node.headers = {"Authorization": f"Bearer {held.token}"}
    assert (await node.heartbeat()).status_code == 401


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"aud": str(uuid.uuid4())}, "another hub's"),
        ({"exp": int(time.time()) - 60}, "expired"),
        ({"iss": str(uuid.uuid4())}, "not issued by the node"),
        ({"exp": int(time.time()) + 86_400}, "too long-lived"),
    ],
)
async def test_an_assertion_that_does_not_hold_gets_no_token(hub, node, change, why):
    answer = httpx.post(f"{hub.url}/v1/nodes/token", json={"assertion": node.assertion(**change)}, timeout=60)
    assert answer.status_code == 401, why


async def test_an_assertion_signed_by_another_key_gets_no_token(hub, node):
    node.private = Ed25519PrivateKey.generate()
    answer = httpx.post(f"{hub.url}/v1/nodes/token", json={"assertion": node.assertion()}, timeout=60)
    assert answer.status_code == 401


async def test_a_token_expires_and_is_renewed(start_hub):
    from tests.support.people import sign_up

    hub = start_hub(node_token_seconds=1)
    node = ProtocolNode([hub.url], sign_up(hub.url), cpu_slots=1)
    await node.enrol()
    # Five seconds of leeway for clocks, and four for which a verified token is remembered.
    await wait_for(lambda: _refused(node), every=0.5, what="the token to expire")
    await node.renew()
    assert (await node.heartbeat()).status_code == 200
    await node.close()


async def _refused(node) -> bool:
    return (await node.heartbeat()).status_code == 401


async def test_the_same_key_pair_is_the_same_node_and_another_owner_cannot_take_it(hub, node, submitter):
    before = node.node_id
    await node.enrol()
    assert node.node_id == before
    node.owner = submitter
    with pytest.raises(AssertionError, match="another"):
        await node.enrol()


async def test_a_synthetic_node_is_refused_by_a_hub_that_is_no_demo(start_hub):
    from tests.support.people import sign_in_operator

    hub = start_hub(demo="false")
    operator = sign_in_operator(hub.url, hub.log_path.read_text())
    key = base64url(Ed25519PrivateKey.generate().public_key().public_bytes_raw())
    hardware = {"cores": 4, "ram_bytes": 10**10, "disk_bytes": 10**11}
    body = {"name": "x", "public_key": key, "hardware": hardware, "isolation": "sandboxed", "synthetic": True}
    answer = httpx.post(f"{hub.url}/v1/nodes", json=body, headers=operator.headers, timeout=60)
    assert (answer.status_code, answer.json()["code"]) == (403, "synthetic_refused")


async def test_keys_rotate_with_two_live_and_no_failed_call(start_hub):
    from tests.support.people import sign_in_operator

    # Longer than it takes until a hub looks at its keys again.
    hub = start_hub(key_announce_seconds=7)
    operator = sign_in_operator(hub.url, hub.log_path.read_text())
    node = ProtocolNode([hub.url], operator, cpu_slots=1)
    await node.enrol()
    pinned = {k["kid"]: k["public_key"] for k in httpx.get(f"{hub.url}/v1/hub", timeout=60).json()["hub_keys"]}
    rotated = httpx.post(f"{hub.url}/v1/hub/keys/rotate", headers=operator.headers, timeout=60).json()
    assert len(rotated["hub_keys"]) == 2
    # The old token still holds, and the new key is vouched for by the pinned one.
    assert (await node.heartbeat()).status_code == 200
    answer = httpx.post(f"{hub.url}/v1/nodes/token", json={"assertion": node.assertion()}, timeout=60).json()
    vouched = [t for t in answer["hub_keys_signed"] if jwt.get_unverified_header(t)["kid"] in pinned]
    public = Ed25519PublicKey.from_public_bytes(_from_base64(next(iter(pinned.values()))))
    claims = jwt.decode(vouched[0], public, algorithms=["EdDSA"], audience=node.node_id)
    assert {k["kid"] for k in claims["hub_keys"]} == {k["kid"] for k in rotated["hub_keys"]}
    new_kid = next(iter({k["kid"] for k in rotated["hub_keys"]} - set(pinned)))

    async def signs_with_new() -> bool:
        await node.renew()
        assert (await node.heartbeat()).status_code == 200
        token = node.headers["Authorization"].split()[1]
        return jwt.get_unverified_header(token)["kid"] == new_kid

    await wait_for(signs_with_new, every=0.5, what="the new key to sign")
    await wait_for(
        lambda: len(httpx.get(f"{hub.url}/v1/hub", timeout=60).json()["hub_keys"]) == 1, what="the old key to go"
    )
    assert (await node.heartbeat()).status_code == 200
    await node.close()


async def test_a_key_is_revoked_at_once_and_nodes_go_on_with_the_next(start_hub):
    from tests.support.people import sign_in_operator

    hub = start_hub(key_announce_seconds=3_600)
    operator = sign_in_operator(hub.url, hub.log_path.read_text())
    node = ProtocolNode([hub.url], operator, cpu_slots=1)
    await node.enrol()
    [old] = httpx.get(f"{hub.url}/v1/hub", timeout=60).json()["hub_keys"]

    def revoke(kid: str) -> httpx.Response:
        return httpx.post(f"{hub.url}/v1/hub/keys/{kid}/revoke", headers=operator.headers, timeout=60)

    # Nodes know no other: it cannot go.
    assert (revoke(old["kid"]).status_code, revoke("unknown").status_code) == (409, 404)
    assert (await node.heartbeat()).status_code == 200
    httpx.post(f"{hub.url}/v1/hub/keys/rotate", headers=operator.headers, timeout=60)
    stolen = node.headers["Authorization"]
    await node.renew()
    assert (await node.heartbeat()).status_code == 200
    assert _kid_of(node.headers["Authorization"].split()[1]) == old["kid"]

    [left] = revoke(old["kid"]).json()["hub_keys"]
    assert left["kid"] != old["kid"]
    # Also those that were used before.
    assert await _refused(node)
    await node.renew()
    assert (await node.heartbeat()).status_code == 200
    httpx.post(f"{hub.url}/v1/jobs", json={"command": ["true"]}, headers=operator.headers, timeout=60)
    held = await node.claim_one()
    assert _kid_of(held.token) == _kid_of(node.headers["Authorization"].split()[1]) == left["kid"]
    node.headers = {"Authorization": stolen}
    assert await _refused(node)
    await node.close()


async def test_an_agent_works_through_a_rotation_and_a_revocation(start_hub, tmp_path):
    """No job is refused on the way: every slice is done by its first attempt."""
    from computepool.sdk import Client
    from tests.support.agent_process import AgentProcess
    from tests.support.people import sign_in_operator

    # The agent renews its token every three seconds, and so hears of keys in time.
    hub = start_hub(key_announce_seconds=8, node_token_seconds=4)
    operator = sign_in_operator(hub.url, hub.log_path.read_text())
    agent = AgentProcess(hub_url=hub.url, owner=operator, root=tmp_path, profile="cpu-only", cpu_slots=1).start()
    client = Client(hub_url=hub.url, key=operator.key)

    def call_keys(path: str) -> list[str]:
        answer = httpx.post(f"{hub.url}/v1/hub/keys/{path}", headers=operator.headers, timeout=60)
        return [key["kid"] for key in answer.json()["hub_keys"]]

    def list_kids() -> list[str]:
        return [key["kid"] for key in httpx.get(f"{hub.url}/v1/hub", timeout=60).json()["hub_keys"]]

    def run_jobs(until: Callable[[], bool]) -> None:
        while not until():
            job = client.submit(command=["true"], retries=0)
            assert job.wait(timeout=90).state is JobState.SUCCEEDED
            assert job.get_slice(0).attempt_count == 1, list(job.events())

    try:
        [first] = list_kids()
        await asyncio.to_thread(run_jobs, iter([False, True]).__next__)
        call_keys("rotate")
        await asyncio.to_thread(run_jobs, lambda: first not in list_kids())
        [second] = list_kids()
        pinned, third = agent.state_dir / "enrolment.json", call_keys("rotate")[-1]
        await wait_for(lambda: third in pinned.read_text(), what="the agent to hear of the third key")
        assert call_keys(f"{second}/revoke") == [third]
        await asyncio.to_thread(run_jobs, lambda: third in pinned.read_text() and second not in pinned.read_text())
        await asyncio.to_thread(run_jobs, iter([False, True]).__next__)
    finally:
        client.close()
        agent.end()


def _kid_of(token: str) -> str:
    return jwt.get_unverified_header(token)["kid"]


def _from_base64(text: str) -> bytes:
    import base64

    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
