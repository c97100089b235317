"""What is served first, on a real hub: big cards for big work, CPU work beside GPU work, classes, claims, batches."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx

from tests.support.people import Person, sign_up
from tests.support.protocol_node import ProtocolNode, wait_for_parked
from tests.support.quickest import quickest_of

RTX_4090 = {"name": "NVIDIA GeForce RTX 4090", "vram_bytes": 24_000_000_000}
RTX_3060 = {"name": "NVIDIA GeForce RTX 3060", "vram_bytes": 12_000_000_000}
PLANTED = ("-m", "tests.support.planted_hub")


def submit(hub_url: str, person: Person, **spec: object) -> dict[str, Any]:
    answer = httpx.post(f"{hub_url}/v1/jobs", json={"command": ["true"], **spec}, headers=person.headers, timeout=60)
    assert answer.status_code == 201, answer.text
    return answer.json()


async def make_node(hub_url: str, owner: Person, **hardware: Any) -> ProtocolNode:
    node = ProtocolNode([hub_url], owner, **hardware)
    await node.enrol()
    return node


async def run_all(node: ProtocolNode, count: int) -> list[str]:
    """The jobs of the next slices, in the order they were given; each ends at once and claims the next."""
    jobs: list[str] = []
    given = []
    while len(jobs) < count:
        given = given or await node.claim_some()
        held, *given = given
        jobs.append(held.order["job_id"])
        given += await node.complete_and_claim(held)
    return jobs


async def test_a_cpu_job_submitted_last_starts_at_once_behind_ten_thousand_gpu_slices(hub, submitter, owner):
    submit(hub.url, submitter, slice_count=10_000, requirements={"gpu": True}, priority=10)
    node = await make_node(hub.url, owner, cpu_slots=1)
    assert (await node.next(wait_seconds=1.5)).status_code == 204

    async def start_one() -> float:
        small = submit(hub.url, submitter, priority=-10)
        started = time.monotonic()
        held = await node.claim_one()
        seconds = time.monotonic() - started
        assert held.order["job_id"] == small["id"]
        await node.deliver(held)
        return seconds

    # Far less than a beat or a timer: it did not wait for anything but its own transaction.
    assert await quickest_of(start_one, enough=0.9) < 0.9
    await node.close()


async def test_a_4090_runs_the_hundred_slices_that_need_it_before_ten_thousand_that_a_3060_could_run(
    hub, submitter, owner
):
    small = submit(hub.url, submitter, slice_count=10_000, requirements={"vram_bytes": 10_000_000_000}, priority=10)
    big = submit(hub.url, submitter, slice_count=100, requirements={"vram_bytes": 24_000_000_000}, priority=-10)
    node = await make_node(hub.url, owner, gpus=[RTX_4090], cpu_slots=0)
    assert await run_all(node, 103) == [big["id"]] * 100 + [small["id"]] * 3
    await node.close()


async def test_control_a_hub_with_one_line_keeps_the_cpu_job_waiting(start_hub):
    hub = start_hub(program=(*PLANTED, "one_line"))
    submitter, owner = sign_up(hub.url), sign_up(hub.url)
    submit(hub.url, submitter, slice_count=100, requirements={"gpu": True}, priority=10)
    node = await make_node(hub.url, owner, cpu_slots=1)
    assert (await node.next(wait_seconds=1.5)).status_code == 204
    submit(hub.url, submitter, priority=-10)
    assert [(await node.next(wait_seconds=1.5)).status_code for _ in range(3)] == [204] * 3
    await node.close()


async def test_control_a_hub_that_serves_the_modest_first_wastes_the_4090(start_hub):
    hub = start_hub(program=(*PLANTED, "modest_first"))
    submitter, owner = sign_up(hub.url), sign_up(hub.url)
    small = submit(hub.url, submitter, slice_count=100, requirements={"vram_bytes": 10_000_000_000}, priority=-10)
    submit(hub.url, submitter, slice_count=10, requirements={"vram_bytes": 24_000_000_000}, priority=10)
    node = await make_node(hub.url, owner, gpus=[RTX_4090], cpu_slots=0)
    assert await run_all(node, 3) == [small["id"]] * 3
    await node.close()


async def test_work_without_a_gpu_leaves_the_card_alone_while_a_cpu_slot_is_free(start_hub):
    # No call is held for longer than a beat, and both should be parked when the jobs come.
    hub = start_hub(beat_seconds=30, lease_seconds=90)
    submitter, owner = sign_up(hub.url), sign_up(hub.url)
    gamer = await make_node(hub.url, owner, gpus=[RTX_3060], cpu_slots=0)
    plain = await make_node(hub.url, owner, cpu_slots=1)
    at_plain, at_gamer = [asyncio.create_task(node.next(wait_seconds=25)) for node in (plain, gamer)]
    await wait_for_parked(hub.url, 2)
    first = submit(hub.url, submitter)
    [held] = plain.take((await at_plain).json())
    assert held.order["job_id"] == first["id"]
    assert not at_gamer.done()
    # With no CPU slot free, it may have the card rather than wait.
    second = submit(hub.url, submitter)
    [held] = gamer.take((await at_gamer).json())
    assert held.order["job_id"] == second["id"]
    for node in (gamer, plain):
        await node.close()


async def test_a_higher_class_goes_first_and_only_by_the_operators_grant(hub, submitter, owner, operator):
    spec = {"command": ["true"], "priority_class": "high"}
    refused = httpx.post(f"{hub.url}/v1/jobs", json=spec, headers=submitter.headers, timeout=20)
    assert refused.status_code in (400, 403), refused.text
    httpx.patch(
        f"{hub.url}/v1/accounts/{submitter.account_id}",
        json={"priority_class_max": "high"},
        headers=operator.headers,
        timeout=20,
    ).raise_for_status()
    low = submit(hub.url, submitter, priority_class="low", priority=10)
    normal = submit(hub.url, submitter)
    deadline = time.monotonic() + 60
    while True:
        # Keys are remembered for a few seconds, and with them what they may.
        answer = httpx.post(f"{hub.url}/v1/jobs", json=spec, headers=submitter.headers, timeout=20)
        if answer.status_code == 201 or time.monotonic() > deadline:
            break
        time.sleep(0.5)
    high = answer.json()
    node = await make_node(hub.url, owner, cpu_slots=1)
    assert await run_all(node, 3) == [high["id"], normal["id"], low["id"]]
    await node.close()


async def test_nobody_runs_a_job_above_its_ceiling(hub, submitter, owner):
    node = await make_node(hub.url, owner, cpu_slots=1)
    httpx.put(
        f"{hub.url}/v1/nodes/{node.node_id}/offer",
        json={"floor_microcredits_per_hour": 10_000_000},
        headers=owner.headers,
        timeout=20,
    ).raise_for_status()
    submit(hub.url, submitter, requirements={"ceiling_microcredits_per_hour": 9_000_000})
    assert (await node.next(wait_seconds=2)).status_code == 204
    willing = submit(hub.url, submitter, requirements={"ceiling_microcredits_per_hour": 11_000_000})
    held = await node.claim_one()
    assert held.order["job_id"] == willing["id"]
    await node.close()


async def test_a_batch_of_jobs_is_taken_and_refused_one_by_one(hub, submitter):
    good, bad = {"command": ["true"]}, {"command": []}
    url = f"{hub.url}/v1/jobs/batch"
    headers = {**submitter.headers, "Idempotency-Key": "one"}
    answers = httpx.post(url, json={"jobs": [good, bad, good]}, headers=headers, timeout=20).json()["answers"]
    assert [bool(a["job"]) for a in answers] == [True, False, True]
    assert answers[1]["error"]["code"] == "invalid_spec"
    again = httpx.post(url, json={"jobs": [good, bad, good]}, headers=headers, timeout=20).json()["answers"]
    assert [a["job"] and a["job"]["id"] for a in again] == [a["job"] and a["job"]["id"] for a in answers]
    too_many = httpx.post(url, json={"jobs": [good] * 257}, headers=submitter.headers, timeout=20)
    assert too_many.status_code == 400


async def test_a_batch_of_completions_counts_one_by_one_under_one_receipt(hub, submitter, owner):
    job = submit(hub.url, submitter, slice_count=3)
    node = await make_node(hub.url, owner, cpu_slots=4)
    held = await node.claim_some()
    while len(held) < 3:
        held += await node.claim_some()
    answer = await node.complete_batch(held, each={held[1].attempt_id: {"lease_secret": "guess"}})
    outcomes = answer.json()["answers"]
    assert [o["accepted"] for o in outcomes] == [True, False, True]
    assert outcomes[1]["error"]["code"] == "stale_lease"
    await node.complete(held[1])
    done = httpx.get(f"{hub.url}/v1/jobs/{job['id']}", headers=submitter.headers, timeout=20).json()
    assert done["state"] == "succeeded"
    await node.close()
