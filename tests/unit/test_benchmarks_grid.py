"""The benchmarks' nodes and submitters speak the protocol: what they send is read here by the hub's own types."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import jwt
import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from benchmarks import closed_load, grid, open_load
from benchmarks.closed_load import Tally
from benchmarks.http_load import Connection
from computepool.wire.attempts import (
    Assignment,
    CompleteAnswer,
    CompleteBatch,
    CompleteBatchAnswer,
    CompleteOutcome,
    CompleteRequest,
    NextAnswer,
    NextRequest,
)
from computepool.wire.errors import ErrorBody
from computepool.wire.jobs import JobSpec, SubmitAnswer, SubmitBatch, SubmitBatchAnswer

HUB_ID, NODE_ID = str(uuid.uuid4()), str(uuid.uuid4())


class Scripted(Connection):
    """Stands where the socket would: gives the prepared answers in turn and keeps what was sent."""

    def __init__(self, *answers: tuple[int, Any]) -> None:
        super().__init__()
        self._answers = list(answers)
        self.sent: list[bytes] = []

    def send(self, head: bytes, body: bytes = b"") -> asyncio.Future[tuple[int, bytes]]:
        self.sent.append(body)
        status, answer = self._answers.pop(0)
        future = asyncio.get_running_loop().create_future()
        future.set_result((status, msgspec.json.encode(answer) if answer is not None else b""))
        return future


@pytest.fixture
def node() -> grid.Node:
    found = grid.Node(grid.make_offer(slots=3))
    found.accept(node_id=NODE_ID, hub_id=HUB_ID, token="t")
    return found


def make_given() -> grid.Given:
    return grid.Given(attempt_id=str(uuid.uuid4()), lease_secret="secret")


def make_assignment(sent_ns: int = 0) -> Assignment:
    order = msgspec.json.encode({"env": {"PAYLOAD": closed_load.make_payload(sent_ns)}}).decode()
    return Assignment(attempt_id=uuid.uuid4(), slot="cpu:0", lease_secret="s", lease_seconds=60.0, order=order)


def read_receipt(node: grid.Node, token: str) -> dict[str, Any]:
    assert jwt.get_unverified_header(token)["typ"] == "computepool-receipt+jwt"
    public: Ed25519PublicKey = node._private.public_key()
    claims: dict[str, Any] = jwt.decode(token, public, algorithms=["EdDSA"], audience=HUB_ID)
    return claims


def test_a_question_names_every_slot_and_nothing_that_runs(node: grid.Node) -> None:
    asked = msgspec.json.decode(node.to_question(12.5), type=NextRequest)
    assert asked.free_slots == ("cpu:0", "cpu:1", "cpu:2")
    assert (asked.wait_seconds, asked.running) == (12.5, ())


def test_one_completion_carries_a_receipt_and_a_claim(node: grid.Node) -> None:
    given = make_given()
    told = msgspec.json.decode(node.to_completion(given), type=CompleteRequest)
    assert (str(told.attempt_id), told.lease_secret, told.exit_code) == (given.attempt_id, "secret", 0)
    assert told.claim is not None
    assert told.claim.free_slots == ("cpu:0", "cpu:1", "cpu:2")
    claims = read_receipt(node, told.receipt)
    assert claims["iss"] == NODE_ID
    assert claims["results"] == {
        given.attempt_id: {"result_sha256": grid.EMPTY_SHA256, "run_seconds": 0.0, "exit_code": 0}
    }


def test_many_completions_share_one_receipt(node: grid.Node) -> None:
    given = [make_given() for _ in range(3)]
    told = msgspec.json.decode(node.to_completions(given), type=CompleteBatch)
    assert [str(each.attempt_id) for each in told.completions] == [each.attempt_id for each in given]
    assert set(read_receipt(node, told.receipt)["results"]) == {each.attempt_id for each in given}


async def test_what_a_completion_brings_is_completed_without_parking_again(node: grid.Node) -> None:
    tally, brought = Tally(), NextAnswer(assignments=[make_assignment(), make_assignment()])
    node.connection = Scripted(
        (200, NextAnswer(assignments=[make_assignment()])),
        (200, CompleteAnswer(accepted=True, next=brought)),
        (200, CompleteBatchAnswer(answers=[CompleteOutcome(accepted=True), CompleteOutcome()])),
    )
    # Its next call finds no answer any more, which ends it.
    with pytest.raises(IndexError):
        await closed_load.serve_for_ever(node, tally)
    assert tally.done == 2
    assert b"completions" in node.connection.sent[2]
    assert b"wait_seconds" in node.connection.sent[3]


async def test_a_completion_that_is_refused_for_now_is_sent_again(node: grid.Node) -> None:
    node.connection = Scripted((503, {}), (200, CompleteAnswer(accepted=True)))
    accepted: list[int] = []
    assert await node.complete([make_given()], accepted.append) == []
    assert accepted == [1]
    assert node.connection.sent[0] == node.connection.sent[1]


async def test_a_completion_that_is_refused_for_good_ends_the_run(node: grid.Node) -> None:
    node.connection = Scripted((409, {"code": "stale_lease"}))
    with pytest.raises(RuntimeError, match="stale_lease"):
        await node.complete([make_given()], lambda count: None)


async def test_a_spread_call_is_spread_once(node: grid.Node) -> None:
    node.connection = Scripted((204, None), (204, None))
    node.wait_seconds_once = 3.0
    await node.next()
    await node.next()
    waits = [msgspec.json.decode(body, type=NextRequest).wait_seconds for body in node.connection.sent]
    assert waits == [3.0, grid.WAIT_SECONDS]


async def test_the_age_of_a_slice_is_read_from_the_order_it_came_with(node: grid.Node) -> None:
    node.connection = Scripted((200, NextAnswer(assignments=[make_assignment(sent_ns=12345)])))
    (given,) = await node.next()
    assert open_load.read_sent_ns(given) == 12345


def test_every_job_of_a_batch_has_its_own_payload() -> None:
    body = msgspec.json.encode({"jobs": [closed_load.make_spec(i) for i in range(64)]})
    jobs = msgspec.json.decode(body, type=SubmitBatch).jobs
    assert len({job.env["PAYLOAD"] for job in jobs}) == 64
    assert {len(job.env["PAYLOAD"]) for job in jobs} == {256}
    assert msgspec.json.decode(msgspec.json.encode(closed_load.make_spec()), type=JobSpec).slice_count == 1


async def test_jobs_that_a_batch_refuses_are_not_counted_as_submitted() -> None:
    refused = SubmitAnswer(error=ErrorBody(code="limit_exceeded", message="", retryable=True))
    connection, tally = Scripted((200, SubmitBatchAnswer(answers=[SubmitAnswer(), refused, SubmitAnswer()]))), Tally()
    with pytest.raises(IndexError):
        await closed_load.submit_for_ever(connection, [b"head"], b"{}", tally, batch=3)
    assert (tally.submitted, tally.refused) == (2, 1)


async def test_submitters_wait_while_too_much_is_unfinished() -> None:
    connection, tally = Scripted((201, {}), (201, {})), Tally(backlog_max=4)
    tally.note(submitted=4)
    submitting = asyncio.create_task(closed_load.submit_for_ever(connection, [b"head"], b"{}", tally))
    await asyncio.sleep(0.01)
    assert connection.sent == []
    tally.note_done(1)
    await asyncio.sleep(0.01)
    assert len(connection.sent) == 1
    tally.close()
    await asyncio.wait_for(submitting, 1)
    assert len(connection.sent) == 1


async def test_an_answer_in_pieces_is_put_together() -> None:
    connection = Connection()
    loop = asyncio.get_running_loop()
    body = b"x" * 5_000
    raw = b"HTTP/1.1 201 Created\r\nContent-Length: 5000\r\n\r\n" + body
    for size in (1, 7, 4_000):
        connection._answer = answer = loop.create_future()
        for start in range(0, len(raw), size):
            connection.data_received(raw[start : start + size])
        assert answer.result() == (201, body)
