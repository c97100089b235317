"""The client's own rules: a worn-out token is renewed, errors keep their meaning, clocks are compared."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from computepool.core.errors import HubUnavailable, InvalidRequest, RateLimited, StaleLease, Unauthenticated
from computepool.core.jobs.isolation import IsolationLevel
from computepool.node import patience
from computepool.node.hub_client import HubClient, to_error
from computepool.node.identity import Identity
from computepool.node.state_dir import StateDir
from computepool.wire.attempts import HeartbeatRequest, NextRequest
from computepool.wire.nodes import EnrolledNode, EnrolNode, Hardware

BEAT = {"beat_seconds": 30.0, "lease_seconds": 60.0}


def make_client(folder: Path, answer: Callable[[httpx.Request], httpx.Response]) -> HubClient:
    identity = Identity(StateDir(folder))
    request = EnrolNode(
        name="x",
        public_key=identity.public_key_text,
        hardware=Hardware(cores=1, ram_bytes=1, disk_bytes=1),
        isolation=IsolationLevel.SANDBOXED,
    )
    enrolled = EnrolledNode(node_id=uuid4(), hub_id=uuid4(), token="", token_seconds=900, hub_keys=[])
    identity.record_enrolment("http://hub", request, enrolled)
    client = HubClient("http://hub/", agent_version="1", transport=httpx.MockTransport(answer))
    client.sign_in_as(identity)
    return client


def refuse(status: int, code: str, **headers: str) -> httpx.Response:
    return httpx.Response(status, json={"code": code, "message": "no"}, headers=headers)


async def beat(client: HubClient) -> None:
    try:
        await client.heartbeat(HeartbeatRequest(boot_id=uuid4()), seconds=1)
    finally:
        await client.close()


async def test_a_refused_token_is_renewed_and_the_call_repeated(tmp_path: Path) -> None:
    issued: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/nodes/token":
            assert "Authorization" not in request.headers
            issued.append(f"token-{len(issued)}")
            return httpx.Response(200, json={"token": issued[-1], "token_seconds": 900, "hub_keys_signed": []})
        if request.headers["Authorization"] == "Bearer token-0":
            return refuse(401, "unauthenticated")
        return httpx.Response(200, json=BEAT)

    await beat(make_client(tmp_path, answer))
    assert issued == ["token-0", "token-1"]


async def test_what_the_owner_allows_is_told_with_every_token(tmp_path: Path) -> None:
    told: list[object] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/nodes/token":
            told.append(json.loads(request.content)["allows"])
            return httpx.Response(200, json={"token": "t", "token_seconds": 0, "hub_keys_signed": []})
        return httpx.Response(200, json=BEAT)

    client = make_client(tmp_path, answer)
    await client.get_ready()
    client.sign_in_as(client._identity, allows=("packages",))
    await beat(client)
    assert told == [None, ["packages"]]


@pytest.mark.parametrize(
    ("arrived", "sent"),
    [(0, 9_000_000), (5_000_001, 3_999_999), (9_000_000, 0), (10**9, 9_000_000), (None, 9_000_000)],
)
async def test_only_what_has_not_arrived_of_a_large_file_is_sent(
    tmp_path: Path, arrived: int | None, sent: int
) -> None:
    """None: the hub is older than that call."""
    content = bytes(range(250)) * 36_000
    puts: list[tuple[bytes, str | None]] = []

    async def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/nodes/token":
            return httpx.Response(200, json={"token": "t", "token_seconds": 900, "hub_keys_signed": []})
        if request.method == "GET":
            return (
                refuse(404, "not_found") if arrived is None else httpx.Response(200, json={"arrived_bytes": arrived})
            )
        puts.append((await request.aread(), request.headers.get("Upload-Offset")))
        assert int(request.headers["Content-Length"]) == len(puts[-1][0])
        return httpx.Response(200, json={"sha256": "x", "size_bytes": len(content)})

    async def read() -> AsyncIterator[bytes]:
        for start in range(0, len(content), 1_000_000):
            yield content[start : start + 1_000_000]

    client = make_client(tmp_path, answer)
    await client.put_output(uuid4(), "s", sha256="x", size_bytes=len(content), body=read)
    await client.close()
    [(body, offset)] = puts
    assert body == content[len(content) - sent :]
    assert int(offset or 0) == len(content) - sent


async def test_a_token_that_is_refused_twice_is_told(tmp_path: Path) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/nodes/token":
            return httpx.Response(200, json={"token": "t", "token_seconds": 900, "hub_keys_signed": []})
        return refuse(401, "unauthenticated")

    with pytest.raises(Unauthenticated):
        await beat(make_client(tmp_path, answer))


async def test_one_token_serves_until_three_quarters_of_its_life(tmp_path: Path) -> None:
    renewals = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/nodes/token":
            renewals.append(1)
            return httpx.Response(200, json={"token": "t", "token_seconds": 900, "hub_keys_signed": []})
        return httpx.Response(200, json=BEAT)

    client = make_client(tmp_path, answer)
    for _ in range(3):
        await client.heartbeat(HeartbeatRequest(boot_id=uuid4()), seconds=1)
    client._token_renew_at = 0.0
    await beat(client)
    assert len(renewals) == 2


async def test_no_content_is_an_empty_answer_and_the_hubs_pace_is_read(tmp_path: Path) -> None:
    client = make_client(tmp_path, lambda _: httpx.Response(204, headers={"Poll-Seconds": "41.37"}))
    client._keep_token("t", 900)
    reply = await client.next(NextRequest(boot_id=uuid4()))
    await client.close()
    assert reply.poll_seconds == 41.37
    assert reply.answer.assignments == []
    assert not reply.answer.controls.pause


async def test_a_clock_that_is_wrong_is_noticed(tmp_path: Path) -> None:
    hours_ahead = format_datetime(datetime.now(UTC) + timedelta(hours=5), usegmt=True)
    client = make_client(tmp_path, lambda _: httpx.Response(200, json=BEAT, headers={"Date": hours_ahead}))
    client._keep_token("t", 900)
    assert client.has_trusted_clock
    await beat(client)
    assert not client.has_trusted_clock
    assert client.clock_skew_seconds == pytest.approx(5 * 3600, abs=5)


async def test_a_hub_out_of_reach_is_unavailable(tmp_path: Path) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    client = make_client(tmp_path, answer)
    client._keep_token("t", 900)
    with pytest.raises(HubUnavailable):
        await beat(client)


async def test_a_page_that_is_not_the_hubs_is_unavailable(tmp_path: Path) -> None:
    client = make_client(tmp_path, lambda _: httpx.Response(200, text="<html>Please sign in to the Wi-Fi"))
    client._keep_token("t", 900)
    with pytest.raises(HubUnavailable):
        await beat(client)


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (409, {"code": "stale_lease", "message": "m"}, StaleLease),
        (429, {"code": "rate_limited", "message": "m", "retryable": True}, RateLimited),
        (400, {"code": "something_new", "message": "m"}, InvalidRequest),
        (503, {"code": "something_new", "message": "m"}, HubUnavailable),
        (409, {"code": "something_new", "message": "m", "retryable": True}, HubUnavailable),
        (502, "Bad Gateway", HubUnavailable),
    ],
)
def test_errors_keep_their_meaning(status: int, body: object, expected: type[Exception]) -> None:
    assert type(to_error(status, json.dumps(body).encode(), {})) is expected


async def test_it_is_said_why_no_token_could_be_believed(tmp_path: Path) -> None:
    client = make_client(tmp_path, lambda _: httpx.Response(204))
    assert client.doubt is None
    client.has_trusted_keys = False
    assert "keys" in str(client.doubt)
    client.clock_skew_seconds = 3_600.0
    assert "3600 s" in str(client.doubt)
    await client.close()


def test_the_hubs_word_on_waiting_is_kept() -> None:
    error = to_error(429, b'{"code": "rate_limited", "message": "m"}', {"Retry-After": "7"})
    assert error.details["retry_after_seconds"] == 7
    assert patience.wait_seconds(error, 1) >= 7
    nonsense = to_error(429, b'{"code": "rate_limited", "message": "m"}', {"Retry-After": "inf"})
    assert patience.wait_seconds(nonsense, 1) <= 1.5
