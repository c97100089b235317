"""The calls that are made all day, over bare sockets: cut, joined and broken in every way that HTTP allows."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support.people import sign_up
from tests.support.postgres import wait_for
from tests.support.protocol_node import ProtocolNode, wait_for_parked

SPEC = {"command": ["true"]}


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> dict:
        return json.loads(self.body)


@dataclass
class Socket:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, raw: bytes) -> None:
        self.writer.write(raw)

    async def read(self) -> Answer:
        head = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 30)).decode()
        status, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        body = await self.reader.readexactly(int(headers["content-length"]))
        return Answer(int(status.split()[1]), headers, body)

    async def call(self, raw: bytes) -> Answer:
        self.send(raw)
        return await self.read()

    async def is_closed(self) -> bool:
        with contextlib.suppress(ConnectionResetError):
            return await asyncio.wait_for(self.reader.read(1), 20) == b""
        return True


@contextlib.asynccontextmanager
async def connect(url: str) -> AsyncIterator[Socket]:
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        yield Socket(reader, writer)
    finally:
        writer.close()


def make(path: str, body: object, headers: dict[str, str], *, version: str = "1.1", method: str = "POST") -> bytes:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/{version}", "Host: hub", *(f"{name}: {value}" for name, value in headers.items())]
    if "Transfer-Encoding" not in headers and "Content-Length" not in headers:
        lines.append(f"Content-Length: {len(raw)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + raw


@pytest.fixture
def hub(shared_hub):
    return shared_hub


@pytest.fixture
async def socket(hub):
    async with connect(hub.url) as socket:
        yield socket


@pytest.fixture
async def node(hub, owner):
    node = ProtocolNode([hub.url], owner, cpu_slots=1)
    await node.enrol()
    yield node
    await node.close()


@pytest.fixture
def beat(node):
    return make("/v1/nodes/heartbeat", {"boot_id": node.boot_id}, node.headers)


def count_calls(hub_url: str) -> dict[tuple[str, str], float]:
    text = httpx.get(f"{hub_url}/metrics", timeout=20).text
    found = re.findall(r'computepool_calls_total\{route="([^"]+)",status="(\d+)"\} (\S+)', text)
    return {(route, status): float(count) for route, status, count in found}


async def test_answers_are_json_and_say_what_uvicorn_says(socket, beat):
    answer = await socket.call(beat)
    assert answer.status == 200
    assert set(answer.json()) == {"beat_seconds", "lease_seconds", "controls"}
    assert set(answer.headers) == {"date", "server", "content-length", "content-type"}
    assert answer.headers["content-type"] == "application/json"


async def test_calls_behind_each_other_are_answered_in_their_order(socket, node, submitter, beat):
    """The first takes a commit, the others none; the last but one is not a hot call at all."""
    submit = make("/v1/jobs", SPEC, {**submitter.headers, "Idempotency-Key": "pipelined"})
    look = make("/v1/jobs", b"", submitter.headers, method="GET")
    socket.send(submit + beat + submit + look + beat)
    answers = [await socket.read() for _ in range(5)]
    assert [answer.status for answer in answers] == [201, 200, 201, 200, 200]
    first, _, again, page, _ = [answer.json() for answer in answers]
    assert first["id"] == again["id"]
    assert [job["id"] for job in page["jobs"]] == [first["id"]]


async def test_a_thousand_calls_in_one_piece_are_answered(socket, beat):
    socket.send(beat * 1_000)
    assert {(await socket.read()).status for _ in range(1_000)} == {200}


async def test_a_caller_that_does_not_read_is_not_read_either(socket, beat):
    """Until it does: then everything is answered. Its answers would be more than any buffer between us holds."""
    count = 30_000
    socket.send(beat * count)
    await asyncio.sleep(1)
    # So many that some are beyond the limit of calls per minute; those have an answer too.
    assert {(await socket.read()).status for _ in range(count)} <= {200, 429}


async def test_a_call_may_come_byte_by_byte(socket, submitter):
    raw = make("/v1/jobs", SPEC, {**submitter.headers, "Idempotency-Key": "slow"})
    for byte in raw[:-1]:
        socket.send(bytes([byte]))
        await socket.writer.drain()
        await asyncio.sleep(0)
    await asyncio.sleep(0.05)
    socket.send(raw[-1:])
    assert (await socket.read()).status == 201


async def test_a_connection_may_change_between_the_two_ways(socket, submitter, beat):
    look = make("/v1/jobs", b"", submitter.headers, method="GET")
    for _ in range(3):
        assert (await socket.call(look)).status == 200
        assert (await socket.call(beat)).status == 200


async def test_a_chunked_call_is_answered(socket, submitter):
    raw = json.dumps(SPEC).encode()
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(raw), raw)
    headers = {**submitter.headers, "Transfer-Encoding": "chunked"}
    assert (await socket.call(make("/v1/jobs", chunks, headers))).status == 201
    assert (await socket.call(make("/v1/jobs", SPEC, submitter.headers))).status == 201


async def test_a_caller_that_asks_before_it_sends_is_told_to_go_on(socket, submitter):
    raw = make("/v1/jobs", SPEC, {**submitter.headers, "Expect": "100-continue"})
    head, _, body = raw.partition(b"\r\n\r\n")
    socket.send(head + b"\r\n\r\n")
    assert await socket.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert (await socket.call(body)).status == 201


@pytest.mark.parametrize(("version", "headers"), [("1.0", {}), ("1.1", {"Connection": "close"})])
async def test_a_connection_is_closed_when_its_caller_wants_it(socket, submitter, version, headers):
    answer = await socket.call(make("/v1/jobs", SPEC, {**submitter.headers, **headers}, version=version))
    assert (answer.status, answer.headers["connection"]) == (201, "close")
    assert await socket.is_closed()


async def test_a_long_body_is_taken_and_a_too_long_one_is_refused_unread(socket, submitter):
    long = {**SPEC, "script": "x" * 500_000}
    del long["command"]
    assert (await socket.call(make("/v1/jobs", long, submitter.headers))).status == 201
    refused = await socket.call(make("/v1/jobs", b"", {**submitter.headers, "Content-Length": "9000000"}))
    assert (refused.status, refused.json()["code"]) == (413, "payload_too_large")


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff", b"null", b'{"command": 5}', b"[" * 50_000])
async def test_a_body_that_is_no_job_is_refused_and_the_connection_goes_on(socket, submitter, body):
    refused = await socket.call(make("/v1/jobs", body, submitter.headers))
    assert (refused.status, refused.json()["code"]) == (400, "invalid_request")
    assert (await socket.call(make("/v1/jobs", SPEC, submitter.headers))).status == 201


async def test_other_methods_are_not_taken_for_the_hot_call(socket, node):
    answer = await socket.call(make("/v1/jobs/next", {}, node.headers, method="PUT"))
    assert (answer.status, answer.json()["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    "headers",
    [{}, {"Authorization": "Basic abc"}, {"Authorization": "Bearer nonsense"}, {"Cookie": "computepool_key=x"}],
)
async def test_whoever_gives_no_good_credential_is_refused(socket, headers):
    for path in ("/v1/jobs", "/v1/nodes/heartbeat"):
        answer = await socket.call(make(path, {}, headers))
        # A cookie without a word of where it comes from is refused for that.
        expected = 403 if "Cookie" in headers else 401
        assert answer.status == expected
        assert ("www-authenticate" in answer.headers) == (expected == 401)


async def test_a_key_is_no_token_and_a_token_is_no_key(socket, submitter, node):
    assert (await socket.call(make("/v1/nodes/heartbeat", {}, submitter.headers))).status == 401
    assert (await socket.call(make("/v1/jobs", SPEC, node.headers))).status == 401


async def test_too_many_calls_are_told_when_to_come_again(start_hub):
    hub = start_hub(calls_per_minute_max=6)
    person = sign_up(hub.url)
    async with connect(hub.url) as socket:
        answers = [await socket.call(make("/v1/jobs", SPEC, person.headers)) for _ in range(3)]
    assert answers[-1].status == 429
    assert int(answers[-1].headers["retry-after"]) >= 1


async def test_a_call_without_patience_is_told_when_to_come_again(socket, node):
    body = {"boot_id": node.boot_id, "free_slots": ["cpu:0"], "wait_seconds": 0}
    answer = await socket.call(make("/v1/jobs/next", body, node.headers))
    if answer.status == 204:
        assert float(answer.headers["poll-seconds"]) > 0


async def test_every_answer_is_counted(start_hub):
    hub = start_hub()
    node = ProtocolNode([hub.url], sign_up(hub.url, "owner"))
    await node.enrol()
    async with connect(hub.url) as socket:
        for _ in range(2):
            assert (
                await socket.call(make("/v1/nodes/heartbeat", {"boot_id": node.boot_id}, node.headers))
            ).status == 200
        assert (await socket.call(make("/v1/nodes/heartbeat", {}, node.headers))).status == 400
    counted = count_calls(hub.url)
    assert counted["POST /v1/nodes/heartbeat", "200"] == 2
    assert counted["POST /v1/nodes/heartbeat", "400"] == 1
    await node.close()


async def test_a_node_that_hangs_up_while_it_is_parked_is_offered_nothing(start_hub):
    """What is submitted afterwards goes to the node that waits, though the other came first."""
    hub = start_hub(beat_seconds=60, lease_seconds=180)
    owner = sign_up(hub.url, "owner")
    gone, there = ProtocolNode([hub.url], owner, cpu_slots=1), ProtocolNode([hub.url], owner, cpu_slots=1)
    for node in (gone, there):
        await node.enrol()
    body = {"boot_id": gone.boot_id, "free_slots": ["cpu:0"], "wait_seconds": 60}
    async with connect(hub.url) as socket:
        socket.send(make("/v1/jobs/next", body, gone.headers))
        await wait_for_parked(hub.url, 1)
    await wait_for_parked(hub.url, 0)
    waiting = asyncio.create_task(there.next(wait_seconds=30))
    await wait_for_parked(hub.url, 1)
    person = sign_up(hub.url, "submitter")
    async with connect(hub.url) as socket:
        assert (await socket.call(make("/v1/jobs", SPEC, person.headers))).status == 201
    answer = await asyncio.wait_for(waiting, 25)
    assert len(answer.json()["assignments"]) == 1
    counted = count_calls(hub.url)
    assert counted["POST /v1/jobs/next", "499"] == 1
    for node in (gone, there):
        await node.close()


async def test_a_call_behind_a_parked_one_waits_for_it(start_hub):
    hub = start_hub(beat_seconds=60, lease_seconds=180)
    node = ProtocolNode([hub.url], sign_up(hub.url, "owner"), cpu_slots=1)
    await node.enrol()
    body = {"boot_id": node.boot_id, "free_slots": ["cpu:0"], "wait_seconds": 60}
    async with connect(hub.url) as socket:
        socket.send(make("/v1/jobs/next", body, node.headers))
        socket.send(make("/v1/nodes/heartbeat", {"boot_id": node.boot_id}, node.headers))
        await wait_for_parked(hub.url, 1)
        httpx.post(f"{hub.url}/v1/jobs", json=SPEC, headers=sign_up(hub.url).headers, timeout=20)
        assert len((await socket.read()).json()["assignments"]) == 1
        assert "beat_seconds" in (await socket.read()).json()
    await node.close()


async def test_parked_calls_are_answered_and_their_connections_closed_when_the_hub_ends(start_hub):
    hub = start_hub(beat_seconds=60, lease_seconds=180)
    node = ProtocolNode([hub.url], sign_up(hub.url, "owner"), cpu_slots=1)
    await node.enrol()
    body = {"boot_id": node.boot_id, "free_slots": ["cpu:0"], "wait_seconds": 60}
    async with connect(hub.url) as socket, connect(hub.url) as idle:
        beat = make("/v1/nodes/heartbeat", {"boot_id": node.boot_id}, node.headers)
        assert (await idle.call(beat)).status == 200
        socket.send(make("/v1/jobs/next", body, node.headers))
        await wait_for_parked(hub.url, 1)
        hub.process.terminate()
        answer = await socket.read()
        assert (answer.status, answer.headers["connection"]) == (204, "close")
        assert await socket.is_closed()
        assert await idle.is_closed()
    await wait_for(lambda: hub.process.poll() is not None, seconds=20)
    await node.close()


async def test_a_parked_call_that_came_in_chunks_is_held_and_let_go_too(start_hub):
    """By uvicorn's way, which such a call takes."""
    hub = start_hub(beat_seconds=60, lease_seconds=180)
    node = ProtocolNode([hub.url], sign_up(hub.url, "owner"), cpu_slots=1)
    await node.enrol()
    raw = json.dumps({"boot_id": node.boot_id, "free_slots": ["cpu:0"], "wait_seconds": 60}).encode()
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(raw), raw)
    parking = make("/v1/jobs/next", chunks, {**node.headers, "Transfer-Encoding": "chunked"})
    async with connect(hub.url) as socket:
        socket.send(parking)
        await wait_for_parked(hub.url, 1)
    await wait_for_parked(hub.url, 0)
    async with connect(hub.url) as socket:
        socket.send(parking)
        await wait_for_parked(hub.url, 1)
        httpx.post(f"{hub.url}/v1/jobs", json=SPEC, headers=sign_up(hub.url).headers, timeout=20)
        assert len((await socket.read()).json()["assignments"]) == 1
    await node.close()


# Calls that are answered after a commit: a Later, by both ways


def chunk(path: str, body: object, headers: dict[str, str]) -> bytes:
    """The same call as `make` would make, for uvicorn's way."""
    raw = json.dumps(body).encode()
    pieces = b"%x\r\n%b\r\n0\r\n\r\n" % (len(raw), raw)
    return make(path, pieces, {**headers, "Transfer-Encoding": "chunked"})


async def test_a_submit_is_answered_alike_by_both_ways(socket, submitter):
    """With the same key it is the same job, by whichever way it is asked for."""
    headers = {**submitter.headers, "Idempotency-Key": "alike"}
    answers = [await socket.call(form("/v1/jobs", SPEC, headers)) for form in (make, chunk, make, chunk)]
    assert [answer.status for answer in answers] == [201] * 4
    first, *others = [answer.json() for answer in answers]
    assert {each["id"] for each in others} == {first["id"]}
    assert {frozenset(each) for each in others} == {frozenset(first)}
    assert {frozenset(answer.headers) for answer in answers} == {
        frozenset({"date", "server", "content-length", "content-type"})
    }


@pytest.mark.parametrize("form", [make, chunk])
async def test_a_submit_that_is_refused_before_or_by_its_commit_is_told_so_and_the_connection_goes_on(
    socket, submitter, form
):
    headers = {**submitter.headers, "Idempotency-Key": f"refused {form.__name__}"}
    invalid = await socket.call(form("/v1/jobs", {**SPEC, "slice_count": 0}, headers))
    assert (invalid.status, invalid.json()["code"]) == (400, "invalid_spec")
    assert (await socket.call(form("/v1/jobs", SPEC, headers))).status == 201
    other = await socket.call(form("/v1/jobs", {"command": ["false"]}, headers))
    assert (other.status, other.json()["code"]) == (409, "idempotency_mismatch")
    assert (await socket.call(form("/v1/jobs", SPEC, headers))).status == 201


@pytest.mark.parametrize("form", [make, chunk])
@pytest.mark.parametrize("claims", [True, False])
async def test_a_completion_is_answered_alike_by_both_ways(socket, node, submitter, form, claims):
    """It counts once, the same again is recognised by either way, and another end of it is refused."""
    assert (await socket.call(make("/v1/jobs", SPEC, submitter.headers))).status == 201
    held = await node.claim_one()
    path, claim = "/v1/jobs/complete", node.claim(held) if claims else None
    body = {"boot_id": node.boot_id, "receipt": node.receipt(held), "claim": claim, **node.completion(held)}
    first = await socket.call(form(path, body, node.headers))
    assert (first.status, set(first.json())) == (200, {"accepted", "repeated", "next"})
    assert (first.json()["accepted"], first.json()["repeated"]) == (True, False)
    again = [await socket.call(each(path, {**body, "claim": None}, node.headers)) for each in (make, chunk)]
    assert [answer.json() for answer in again] == [{"accepted": True, "repeated": True, "next": None}] * 2
    wrong = {**body, "claim": None, "exit_code": 3, "cause": "exit_code", "receipt": ""}
    refused = await socket.call(form(path, wrong, node.headers))
    assert (refused.status, refused.json()["code"]) == (409, "stale_lease")
    forged = await socket.call(form(path, {**body, "lease_secret": "guessed"}, node.headers))
    assert forged.status == 409
    assert (await socket.call(make("/v1/nodes/heartbeat", {"boot_id": node.boot_id}, node.headers))).status == 200


@pytest.mark.parametrize("form", [make, chunk])
async def test_callers_that_hang_up_before_their_answer_do_no_harm(hub, submitter, form):
    """They may ask again: what was begun for them is done once. What is read here is begun; uvicorn may drop it."""
    calls = [
        form("/v1/jobs", SPEC, {**submitter.headers, "Idempotency-Key": f"gone {form.__name__} {number}"})
        for number in range(40)
    ]
    for call in calls:
        async with connect(hub.url) as socket:
            socket.send(call)
            await socket.writer.drain()
    async with connect(hub.url) as socket:
        look = make("/v1/jobs?limit=100", b"", submitter.headers, method="GET")

        async def are_done() -> bool:
            return len((await socket.call(look)).json()["jobs"]) == len(calls)

        if form is make:
            await wait_for(are_done, what="the jobs of those who hung up")
        again = [await socket.call(call) for call in calls]
        assert {answer.status for answer in again} == {201}
        assert len({answer.json()["id"] for answer in again}) == len(calls)
        assert await are_done(), "and no job more"
