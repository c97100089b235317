"""Completions that ask for the next work, and many in one call, against a real hub process."""

from __future__ import annotations

import asyncio
import hashlib
import time
import uuid

import httpx
import jwt
import pytest

from tests.support.people import Person, sign_up
from tests.support.protocol_node import Held, ProtocolNode


def submit(hub_url: str, person: Person, **spec: object) -> dict:
    answer = httpx.post(f"{hub_url}/v1/jobs", json={"command": ["true"], **spec}, headers=person.headers, timeout=20)
    assert answer.status_code == 201, answer.text
    return answer.json()


def get_job(hub_url: str, person: Person, job_id: str) -> dict:
    return httpx.get(f"{hub_url}/v1/jobs/{job_id}", headers=person.headers, timeout=20).json()


@pytest.fixture
async def node(hub, owner):
    node = ProtocolNode([hub.url], owner, cpu_slots=4, cores=64)
    await node.enrol()
    yield node
    await node.close()


async def hold(node: ProtocolNode, count: int) -> list[Held]:
    """Asks until it holds so many."""
    while len(node.held) < count:
        await node.claim_some()
    assert len(node.held) == count
    return list(node.held.values())


async def hear(node: ProtocolNode) -> dict:
    """The first answer that brings something, as it came."""
    while (answer := await node.next()).status_code != 200:
        assert answer.status_code == 204, answer.text
    return answer.json()


async def test_one_token_names_every_order_of_an_answer(hub, submitter, node):
    submit(hub.url, submitter, slice_count=4)
    answer = await hear(node)
    claims = jwt.decode(answer["token"], options={"verify_signature": False})
    assert jwt.get_unverified_header(answer["token"])["typ"] == "computepool-job+jwt"
    assert (claims["aud"], claims["iss"]) == (node.node_id, node.hub_id)
    assert time.time() < claims["exp"] < time.time() + 3_600
    assert answer["assignments"]
    assert claims["orders"] == {
        each["attempt_id"]: hashlib.sha256(each["order"].encode()).hexdigest() for each in answer["assignments"]
    }
    assert all("token" not in each for each in answer["assignments"])


async def test_a_completion_brings_the_next_work_without_another_call(hub, submitter, node):
    job = submit(hub.url, submitter, slice_count=12)
    held = await hold(node, 4)
    by_claim = 0
    while held:
        fresh = await node.complete_and_claim(held.pop(0))
        by_claim += len(fresh)
        held += fresh
    assert by_claim == 8
    assert node.double_slots == 0
    assert get_job(hub.url, submitter, job["id"])["state"] == "succeeded"


async def test_a_claim_never_waits(start_hub):
    """Where a call that does wait is held for a minute."""
    hub = start_hub(beat_seconds=60, lease_seconds=180)
    node = ProtocolNode([hub.url], sign_up(hub.url, "owner"), cpu_slots=1)
    await node.enrol()
    submit(hub.url, sign_up(hub.url, "submitter"))
    (held,) = await hold(node, 1)
    async with asyncio.timeout(30):
        assert await node.complete_and_claim(held) == []
    await node.close()


async def test_what_a_claim_brought_comes_again_when_the_answer_was_lost(hub, submitter, node):
    submit(hub.url, submitter, slice_count=5)
    held = await hold(node, 4)
    first = await node.complete(held[0], claim=node.claim(held[0]))
    (lost,) = first.json()["next"]["assignments"]
    # That answer never arrived: the completion is repeated, and the next call does not list the assignment.
    fresh = await node.complete_and_claim(held[0])
    again = fresh[0] if fresh else await node.claim_one()
    assert again.attempt_id == lost["attempt_id"]
    assert (again.secret, again.slot) == (lost["lease_secret"], held[0].slot)
    assert node.double_slots == 0


async def test_a_claim_of_a_paused_node_brings_no_work(hub, submitter, owner, node):
    submit(hub.url, submitter, slice_count=6)
    held = await hold(node, 4)
    httpx.post(f"{hub.url}/v1/nodes/{node.node_id}/pause", headers=owner.headers, timeout=20)
    assert await node.complete_and_claim(*held) == []


async def test_a_claim_of_a_new_boot_does_not_lose_what_it_completes(hub, submitter, node):
    """The claim does not list the attempt; a hub that took it for all that is held would give the slice away."""
    job = submit(hub.url, submitter)
    (held,) = await hold(node, 1)
    node.boot_id = str(uuid.uuid4())
    answer = await node.complete(held, claim=node.claim(held))
    assert answer.json()["accepted"] is True
    path = f"{hub.url}/v1/jobs/{job['id']}/slices/0"
    found = httpx.get(path, headers=submitter.headers, timeout=20).json()
    assert (found["state"], found["attempt_count"]) == ("succeeded", 1)


async def test_a_claim_of_an_older_boot_is_refused(hub, submitter, node):
    submit(hub.url, submitter, slice_count=2)
    held = (await hold(node, 2))[0]
    first, node.boot_id = node.boot_id, str(uuid.uuid4())
    await node.heartbeat()
    node.boot_id = first
    refused = await node.complete(held, claim=node.claim(held))
    assert (refused.status_code, refused.json()["code"]) == (409, "stale_boot")


async def test_many_ends_in_one_call_each_count_or_are_refused_on_their_own(hub, submitter, node):
    job = submit(hub.url, submitter, slice_count=4, retries=0)
    good, failed, forged, malformed = await hold(node, 4)
    each = {
        failed.attempt_id: {"exit_code": 3, "cause": "exit_code"},
        forged.attempt_id: {"lease_secret": "guess"},
        malformed.attempt_id: {"result_sha256": "0" * 64},
    }
    answer = await node.complete_batch([good, failed, forged, malformed], each=each)
    assert answer.status_code == 200, answer.text
    outcomes = answer.json()["answers"]
    assert [outcome["accepted"] for outcome in outcomes] == [True, False, False, False]
    assert [(outcome["error"] or {}).get("code") for outcome in outcomes] == [
        None,
        None,
        "stale_lease",
        "invalid_request",
    ]
    repeated = (await node.complete_batch([good, failed], each=each)).json()["answers"]
    assert [outcome["repeated"] for outcome in repeated] == [True, True]
    counts = get_job(hub.url, submitter, job["id"])["counts"]
    assert (counts["succeeded"], counts["failed"]) == (1, 1)
    # The two that were refused are still held, and can be told rightly.
    (await node.complete_batch([forged, malformed])).raise_for_status()
    assert get_job(hub.url, submitter, job["id"])["counts"]["succeeded"] == 3


async def test_one_receipt_covers_results_that_are_judged_in_different_ways(hub, submitter, node):
    """What is told twice in one call is judged apart from the rest, in a transaction of its own."""
    job = submit(hub.url, submitter, slice_count=2)
    one, two = await hold(node, 2)
    answer = await node.complete_batch([one, one, two])
    assert answer.status_code == 200, answer.text
    outcomes = answer.json()["answers"]
    assert [(outcome["accepted"], outcome["repeated"]) for outcome in outcomes] == [
        (True, False),
        (True, True),
        (True, False),
    ]
    assert get_job(hub.url, submitter, job["id"])["state"] == "succeeded"


async def test_a_batch_may_claim_too(hub, submitter, node):
    job = submit(hub.url, submitter, slice_count=8)
    fresh = await node.complete_and_claim(*await hold(node, 4))
    assert len(fresh) == 4
    assert {each.slot for each in fresh} == set(node.slots)
    assert await node.complete_and_claim(*fresh) == []
    assert get_job(hub.url, submitter, job["id"])["state"] == "succeeded"


async def test_a_batch_has_limits(hub, submitter, node):
    submit(hub.url, submitter)
    (held,) = await hold(node, 1)
    assert (await node.complete_batch([held] * 257)).json()["code"] == "invalid_request"
    assert (await node.complete_batch([])).json()["code"] == "invalid_request"
    # Twice in one call is once, and a repetition.
    answers = (await node.complete_batch([held, held])).json()["answers"]
    assert [(each["accepted"], each["repeated"]) for each in answers] == [(True, False), (True, True)]


async def test_a_success_without_a_receipt_is_refused_and_a_failure_needs_none(hub, submitter, node):
    submit(hub.url, submitter, slice_count=2)
    first, second = await hold(node, 2)
    assert (await node.complete(first, receipt="")).json()["code"] == "invalid_request"
    assert (await node.complete_batch([first], receipt="")).json()["code"] == "invalid_request"
    answer = await node.complete(second, exit_code=1, cause="exit_code", receipt="")
    assert answer.status_code == 200, answer.text


async def test_a_fleet_that_lives_by_claims_never_holds_a_slot_twice(hub, start_hub, submitter, owner):
    hubs = [hub.url, start_hub().url]
    fleet = [ProtocolNode(hubs, owner, name=f"n{i}", seed=i, cpu_slots=4, cores=64) for i in range(4)]
    await asyncio.gather(*(node.enrol() for node in fleet))
    job = submit(hub.url, submitter, slice_count=400)
    stop = asyncio.Event()
    living = [asyncio.create_task(node.run(stop, claims=True, abandon=0.05)) for node in fleet]
    deadline = time.monotonic() + 60
    while get_job(hub.url, submitter, job["id"])["state"] != "succeeded" and time.monotonic() < deadline:
        await asyncio.sleep(0.2)
    stop.set()
    await asyncio.gather(*living, return_exceptions=True)
    await asyncio.gather(*(node.close() for node in fleet))
    assert get_job(hub.url, submitter, job["id"])["counts"]["succeeded"] == 400
    assert sum(node.double_slots for node in fleet) == 0
    given = [row[0] for node in fleet for row in node.diary]
    assert len(given) == len(set(given)) == 400


def test_an_agent_works_a_queue_off_without_refusing_a_slot(start_agent, client):
    """What its completions bring is for slots that are being swept just then: it waits, and is not handed back."""
    start_agent()
    job = client.submit(command=["true"], slices=24)
    assert job.wait(timeout=90).state == "succeeded"
    assert [job.get_slice(index).attempt_count for index in range(24)] == [1] * 24
