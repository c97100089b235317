"""The node protocol against a real hub process: leases, redelivery, late results, boots, controls."""

from __future__ import annotations

import asyncio
from datetime import UTC

import asyncpg
import httpx
import pytest

from tests.support.people import Person, sign_up
from tests.support.postgres import wait_for
from tests.support.protocol_node import ProtocolNode, wait_for_parked
from tests.support.quickest import quickest_of


def submit(hub_url: str, person: Person, **spec: object) -> dict:
    answer = httpx.post(f"{hub_url}/v1/jobs", json={"command": ["true"], **spec}, headers=person.headers, timeout=20)
    assert answer.status_code == 201, answer.text
    return answer.json()


def get_job(hub_url: str, person: Person, job_id: str) -> dict:
    answer = httpx.get(f"{hub_url}/v1/jobs/{job_id}", headers=person.headers, timeout=20)
    assert answer.status_code == 200, answer.text
    return answer.json()


def get_slice(hub_url: str, person: Person, job_id: str, index: int = 0) -> dict:
    return httpx.get(f"{hub_url}/v1/jobs/{job_id}/slices/{index}", headers=person.headers, timeout=20).json()


@pytest.fixture
async def node(hub, owner):
    node = ProtocolNode([hub.url], owner, cpu_slots=1)
    await node.enrol()
    yield node
    await node.close()


@pytest.fixture
async def other_node(hub, owner):
    node = ProtocolNode([hub.url], owner, name="other", cpu_slots=1)
    await node.enrol()
    yield node
    await node.close()


async def test_a_job_goes_to_a_node_and_its_result_comes_back(hub, submitter, node):
    job = submit(hub.url, submitter, slice_count=3)
    for _ in range(3):
        held = await node.claim_one()
        answer = await node.complete(held)
        assert answer.json() == {"accepted": True, "repeated": False, "next": None}
        node.forget(held.attempt_id)
    done = get_job(hub.url, submitter, job["id"])
    assert done["state"] == "succeeded"
    assert done["counts"]["succeeded"] == 3


async def test_a_parked_call_is_answered_when_a_job_arrives(start_hub):
    """Long before the hub would have let it go."""
    hub = start_hub(beat_seconds=60, lease_seconds=180)
    node = ProtocolNode([hub.url], sign_up(hub.url, "owner"), cpu_slots=1)
    await node.enrol()
    waiting = asyncio.create_task(node.next(wait_seconds=30))
    await wait_for_parked(hub.url, 1)
    submit(hub.url, sign_up(hub.url, "submitter"))
    answer = await asyncio.wait_for(waiting, 25)
    assert len(answer.json()["assignments"]) == 1
    await node.close()


async def test_an_assignment_whose_answer_was_lost_is_delivered_again_at_any_hub(hub, start_hub, submitter, node):
    other = start_hub()
    submit(hub.url, submitter)
    [held] = await node.claim_some(url=hub.url)
    lost = {"attempt_id": held.attempt_id, "lease_secret": held.secret}
    # The node never saw that answer: it lists nothing, and calls another hub.
    node.held.clear()
    again = (await node.next(url=other.url)).json()["assignments"][0]
    assert again["attempt_id"] == lost["attempt_id"]
    assert again["lease_secret"] == lost["lease_secret"]
    node.take({"assignments": [again]})
    assert (await node.next(url=hub.url, wait_seconds=0)).status_code == 204
    held = next(iter(node.held.values()))
    assert (await node.complete(held)).json()["accepted"]


@pytest.mark.short_leases
async def test_a_silent_nodes_slice_runs_elsewhere_and_its_late_result_is_refused_if_it_was_beaten(
    hub, submitter, node, other_node
):
    job = submit(hub.url, submitter)
    late = await node.claim_one()
    held = await other_node.claim_one(tries=60)
    assert held.order["attempt_number"] == 2
    assert (await other_node.complete(held)).json()["accepted"]
    refused = await node.complete(late)
    assert refused.status_code == 409
    assert refused.json()["code"] == "stale_lease"
    assert get_job(hub.url, submitter, job["id"])["counts"]["succeeded"] == 1


@pytest.mark.short_leases
async def test_a_late_result_counts_while_the_slice_is_unfinished_and_the_newer_attempt_is_stopped(
    hub, submitter, node, other_node
):
    job = submit(hub.url, submitter)
    late = await node.claim_one()
    held = await other_node.claim_one(tries=60)
    assert (await node.complete(late)).json()["accepted"]
    assert await await_stop(other_node, hub.url) == {held.attempt_id: "superseded"}
    assert get_job(hub.url, submitter, job["id"])["state"] == "succeeded"
    causes = [a["cause"] for a in get_slice(hub.url, submitter, job["id"])["attempts"]]
    assert causes == [None, "superseded"]


@pytest.mark.short_leases
async def test_a_node_that_returns_within_its_lease_keeps_its_work(hub, submitter, node, other_node):
    """For twice as long as it would have kept it in silence."""
    submit(hub.url, submitter)
    held = await node.claim_one()
    for _ in range(32):
        await node.heartbeat()
        assert (await other_node.next(wait_seconds=0)).status_code == 204
        await asyncio.sleep(0.25)
    assert (await node.complete(held)).json()["accepted"]


async def test_a_new_boot_gives_unlisted_work_away_at_once(hub, submitter, node, other_node):
    job = submit(hub.url, submitter)
    await node.claim_one()
    await node.heartbeat()
    node.held.clear()
    node.boot_id = "00000000-0000-4000-8000-000000000001"
    assert (await node.heartbeat()).status_code == 200
    # Its lease would have lasted for half a minute.
    held = await asyncio.wait_for(other_node.claim_one(), 20)
    assert held.order["attempt_number"] == 2
    attempts = get_slice(hub.url, submitter, job["id"])["attempts"]
    assert attempts[0]["cause"] == "node_vanished"


async def test_a_new_boot_that_still_lists_its_work_keeps_it(hub, submitter, node):
    submit(hub.url, submitter)
    held = await node.claim_one()
    node.boot_id = "00000000-0000-4000-8000-000000000002"
    assert (await node.heartbeat()).status_code == 200
    assert (await node.complete(held)).json()["accepted"]


async def test_a_replaced_agent_is_told_to_stop(hub, node):
    first = node.boot_id
    await node.heartbeat()
    node.boot_id = "00000000-0000-4000-8000-000000000003"
    await node.heartbeat()
    node.boot_id = first
    refused = await node.heartbeat()
    assert (refused.status_code, refused.json()["code"]) == (409, "stale_boot")


async def test_a_repeated_completion_gets_the_first_answer_again(hub, submitter, node):
    submit(hub.url, submitter)
    held = await node.claim_one()
    assert (await node.complete(held)).json() == {"accepted": True, "repeated": False, "next": None}
    assert (await node.complete(held)).json() == {"accepted": True, "repeated": True, "next": None}
    different = await node.complete(held, exit_code=1, cause="exit_code")
    assert different.json()["code"] == "stale_lease"


@pytest.mark.parametrize("forgery", ["secret", "other_node", "no_receipt", "manifest", "missing_output"])
async def test_a_forged_completion_is_refused_and_changes_nothing(hub, submitter, node, other_node, forgery):
    job = submit(hub.url, submitter)
    held = await node.claim_one()
    if forgery == "secret":
        answer = await node.complete(held, lease_secret="guess")
    elif forgery == "other_node":
        answer = await other_node.complete(held)
    elif forgery == "no_receipt":
        answer = await node.complete(held, receipt="")
    elif forgery == "manifest":
        answer = await node.complete(held, result_sha256="0" * 64)
    else:
        output = {"path": "a.txt", "sha256": "0" * 64, "size_bytes": 3}
        answer = await node.complete(held, outputs=[output])
    assert answer.status_code in (400, 409)
    assert get_job(hub.url, submitter, job["id"])["counts"]["succeeded"] == 0
    assert (await node.complete(held)).json()["accepted"]


async def test_retries_are_spent_on_failures_of_the_program_and_then_the_slice_fails(hub, submitter, node):
    job = submit(hub.url, submitter, retries=1)
    for number in (1, 2):
        held = await node.claim_one(tries=60)
        assert held.order["attempt_number"] == number
        answer = await node.complete(held, exit_code=3, cause="exit_code", message="boom")
        assert answer.json()["accepted"] is False
        node.forget(held.attempt_id)
    failed = get_job(hub.url, submitter, job["id"])
    assert failed["state"] == "failed"
    slice_ = get_slice(hub.url, submitter, job["id"])
    assert (slice_["cause"], slice_["message"]) == ("exit_code", "boom")


async def test_exit_code_85_queues_the_slice_again_without_spending_a_retry(hub, submitter, node):
    job = submit(hub.url, submitter, retries=0)
    for _ in range(3):
        held = await node.claim_one()
        await node.complete(held, exit_code=85, cause="exit_code")
        node.forget(held.attempt_id)
    held = await node.claim_one()
    await node.complete(held)
    assert get_job(hub.url, submitter, job["id"])["state"] == "succeeded"


async def await_stop(node: ProtocolNode, url: str) -> dict[str, str]:
    """Calls again whenever the beat is over, as an agent does."""
    while True:
        answer = await node.next(wait_seconds=20, url=url, free_slots=[])
        if answer.status_code == 200 and answer.json()["controls"]["stop"]:
            return answer.json()["controls"]["stop"]


async def test_cancel_reaches_a_running_attempt_on_another_hub_within_two_seconds(hub, start_hub, submitter, node):
    other = start_hub()

    async def cancel_one() -> float:
        job = submit(hub.url, submitter)
        held = await node.claim_one()
        await node.heartbeat()
        waiting = asyncio.create_task(await_stop(node, hub.url))
        await wait_for_parked(hub.url, 1)
        httpx.post(f"{other.url}/v1/jobs/{job['id']}/cancel", headers=submitter.headers, timeout=20)
        started = asyncio.get_running_loop().time()
        assert await waiting == {held.attempt_id: "cancelled"}
        seconds = asyncio.get_running_loop().time() - started
        assert get_job(hub.url, submitter, job["id"])["state"] == "cancelled"
        assert (await node.complete(held)).json()["code"] == "stale_lease"
        node.forget(held.attempt_id)
        return seconds

    assert await quickest_of(cancel_one, enough=2.0) < 2.0


async def test_cancel_of_a_large_queued_job_ends_all_of_it(hub, submitter):
    job = submit(hub.url, submitter, slice_count=5_000)
    answer = httpx.post(f"{hub.url}/v1/jobs/{job['id']}/cancel", headers=submitter.headers, timeout=30).json()
    assert answer["state"] == "cancelled"
    assert answer["counts"]["cancelled"] == 5_000


async def test_a_job_past_its_expiry_fails_with_that_cause(hub, submitter):
    from datetime import datetime, timedelta

    soon = (datetime.now(UTC) + timedelta(seconds=3)).isoformat()
    job = submit(hub.url, submitter, expires_at=soon)
    await wait_for(lambda: get_job(hub.url, submitter, job["id"])["state"] == "failed", what="the job to expire")
    assert get_slice(hub.url, submitter, job["id"])["cause"] == "expired"


async def test_requirements_are_hard_gates(hub, submitter, owner):
    small = ProtocolNode(
        [hub.url],
        owner,
        name="3060",
        gpus=[{"name": "NVIDIA GeForce RTX 3060", "vram_bytes": 12_884_901_888}],
        region="IN",
    )
    await small.enrol()
    job = submit(hub.url, submitter, requirements={"vram_bytes": 16_000_000_000})
    german = submit(hub.url, submitter, requirements={"regions": ["DE"]})
    big_tier = submit(hub.url, submitter, requirements={"tiers": ["rtx-4090"]})
    gvisor = submit(hub.url, submitter, requirements={"isolation": "gvisor"})
    assert (await small.next(wait_seconds=2)).status_code == 204
    fits = submit(hub.url, submitter, requirements={"vram_bytes": 8_000_000_000, "regions": ["IN"]})
    held = await small.claim_one()
    assert (held.order["job_id"], held.slot) == (fits["id"], "gpu:0")
    for waiting in (job, german, big_tier, gvisor):
        assert get_job(hub.url, submitter, waiting["id"])["state"] == "queued"
    await small.close()


async def test_pause_drain_and_remove_reach_the_node(hub, submitter, owner, node):
    def change(word: str) -> httpx.Response:
        return httpx.post(f"{hub.url}/v1/nodes/{node.node_id}/{word}", headers=owner.headers, timeout=20)

    assert change("pause").json()["state"] == "paused"
    submit(hub.url, submitter)
    assert (await node.next()).json()["controls"]["pause"] is True
    assert (await node.next(free_slots=[], wait_seconds=0)).status_code == 204
    assert change("resume").json()["state"] == "active"
    held = await node.claim_one()
    assert change("drain").json()["state"] == "draining"
    assert (await node.next(free_slots=[], wait_seconds=0)).status_code == 204
    await node.complete(held)
    node.forget(held.attempt_id)
    assert (await node.next(free_slots=[])).json()["controls"]["drain"] is True
    assert change("remove").json()["state"] == "removed"
    assert (await node.heartbeat()).json()["code"] == "node_removed"


async def test_an_agent_that_does_not_wait_is_told_when_to_call_again(hub, submitter, node):
    first = await node.next(wait_seconds=0)
    assert 4 <= float(first.headers["Poll-Seconds"]) <= 11
    for _ in range(4):
        later = await node.next(wait_seconds=0)
    assert 29 <= float(later.headers["Poll-Seconds"]) <= 61
    submit(hub.url, submitter)
    held = await node.claim_one(wait_seconds=0)
    await node.complete(held)
    node.forget(held.attempt_id)
    again = await node.next(wait_seconds=0)
    assert float(again.headers["Poll-Seconds"]) <= 11
    assert "Poll-Seconds" not in (await node.next(wait_seconds=0.2)).headers


async def test_a_row_that_somebody_holds_blocks_only_its_own_completion(hub, dsn, submitter, owner):
    """The group they share is cut in two until the blocked one stands alone; nothing is half done."""
    node = ProtocolNode([hub.url], owner, cpu_slots=6, cores=64)
    await node.enrol()
    job = submit(hub.url, submitter, slice_count=6)
    while len(node.held) < 6:
        await node.claim_some()
    held = list(node.held.values())
    conn = await asyncpg.connect(dsn)
    async with conn.transaction():
        blocked = held[-1]
        await conn.execute(
            "SELECT 1 FROM slices WHERE job_id = $1 AND slice_index = $2 FOR UPDATE",
            job["id"],
            blocked.order["slice_index"],
        )
        answers = await asyncio.gather(*(node.complete(each) for each in held))
    await conn.close()
    assert [answer.status_code for answer in answers] == [200] * 5 + [503]
    assert answers[-1].json()["retryable"] is True
    assert get_job(hub.url, submitter, job["id"])["counts"]["succeeded"] == 5
    assert (await node.complete(blocked)).json() == {"accepted": True, "repeated": False, "next": None}
    assert get_job(hub.url, submitter, job["id"])["state"] == "succeeded"
    await node.close()
