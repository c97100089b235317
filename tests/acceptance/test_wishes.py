"""What submitters, owners and operators may say, said from the command line and the SDK to a real hub."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from computepool.cli.main import run
from computepool.core.errors import Forbidden, InvalidSpec
from computepool.sdk import Client
from tests.support.people import Person, sign_up
from tests.support.protocol_node import ProtocolNode, wait_for_parked

CREDIT = 1_000_000
RTX_4090 = {"name": "NVIDIA GeForce RTX 4090", "vram_bytes": 25_769_803_776}
RTX_3060 = {"name": "NVIDIA GeForce RTX 3060", "vram_bytes": 12_884_901_888}


def access(hub: Any, person: Person) -> list[str]:
    return ["--hub-url", hub.url, "--key", person.key]


async def say(*arguments: str) -> int:
    return await asyncio.to_thread(run, list(arguments))


async def test_a_job_with_every_wish_is_taken_and_shown_as_it_was_wished(hub, submitter, capsys):
    wishes = ["--gpu", "--max-price", "40.5", "--prefer", "cheapest", "--deadline", "2h", "--class", "low"]
    assert await say("run", *wishes, "--detach", *access(hub, submitter), "--", "true") == 0
    job_id = capsys.readouterr().out.strip()
    assert await say("jobs", job_id, *access(hub, submitter)) == 0
    shown = capsys.readouterr().out
    assert "at most 40.5 credits/h" in shown
    assert "the cheapest slot, class low" in shown
    assert "deadline" in shown
    job = httpx.get(f"{hub.url}/v1/jobs/{job_id}", headers=submitter.headers, timeout=20).json()
    assert job["requirements"]["ceiling_microcredits_per_hour"] == 40_500_000
    assert (job["prefer"], job["priority_class"]) == ("cheapest", "low")


async def test_who_runs_what_nobody_can_is_told_so_and_where_to_read_more(hub, submitter, capsys):
    told = ""
    running = asyncio.create_task(say("run", "--vram", "500GB", *access(hub, submitter), "--", "true"))
    async with asyncio.timeout(60):
        while "It waits: " not in told:
            await asyncio.sleep(0.1)
            told += capsys.readouterr().err
    assert "More: computepool why " in told
    with Client(hub.url, submitter.key) as client:
        client.get_job(job_id=client.list_jobs(limit=1).jobs[0].id).cancel()
    assert await running == 1


async def test_what_cannot_be_wished_is_refused_in_plain_words(hub, submitter):
    with Client(hub.url, submitter.key) as client:
        with pytest.raises(InvalidSpec, match="ceiling_microcredits_per_hour is 0; it must be between 1"):
            client.submit(command=["true"], max_price=0)
        with pytest.raises(InvalidSpec, match="deadline_at lies in the past"):
            client.submit(command=["true"], deadline_at=client.get_account().created_at)


async def test_a_class_above_normal_needs_a_grant_and_the_operator_gives_it_by_e_mail(
    hub, submitter, operator, capsys
):
    with Client(hub.url, submitter.key) as client, pytest.raises(Forbidden, match="normal at most"):
        client.submit(command=["true"], priority_class="high")
    assert await say("accounts", submitter.email, "--class", "high", "--weight", "2.5", *access(hub, operator)) == 0
    shown = capsys.readouterr().out
    assert "high at most" in shown
    assert "2.5 in the fair share" in shown
    with Client(hub.url, submitter.key) as client:
        assert client.submit(command=["true"], priority_class="high").job.priority_class.value == "high"
    assert await say("accounts", *access(hub, operator)) == 0
    assert submitter.email in capsys.readouterr().out
    assert await say("accounts", *access(hub, submitter)) == 2
    assert "(forbidden)" in capsys.readouterr().err


async def test_an_owner_names_a_price_and_cheaper_jobs_go_elsewhere(hub, submitter, owner, capsys):
    dear = ProtocolNode([hub.url], owner, name="dear-pc", cpu_slots=1)
    free = ProtocolNode([hub.url], owner, name="free-pc", cpu_slots=1)
    try:
        await asyncio.gather(dear.enrol(), free.enrol())
        assert await say("nodes", "dear-pc", "floor", "12.5", *access(hub, owner)) == 0
        assert "12.5 credits/h for a slot" in capsys.readouterr().out
        assert await say("nodes", "dear-pc", "--json", *access(hub, owner)) == 0
        assert json.loads(capsys.readouterr().out)["offer"]["floor_microcredits_per_hour"] == 12_500_000
        with Client(hub.url, submitter.key) as client:
            job = await asyncio.to_thread(client.submit, command=["true"], max_price=5)
        assert (await dear.next(wait_seconds=1.2)).status_code == 204
        assert (await free.claim_one()).order["job_id"] == str(job.id)
    finally:
        await asyncio.gather(dear.close(), free.close())


@pytest.mark.parametrize(("prefer", "chosen"), [("cheapest", "slow"), ("fastest", "fast")])
async def test_the_wish_decides_between_two_slots_that_fit(start_hub, prefer: str, chosen: str):
    # A slow beat: calls stay parked for as long as the test needs them.
    hub = start_hub(beat_seconds=60, lease_seconds=180)
    owner, submitter = sign_up(hub.url, "owner"), sign_up(hub.url, "submitter")
    fast = ProtocolNode([hub.url], owner, name="fast", cpu_slots=0, gpus=[RTX_4090])
    slow = ProtocolNode([hub.url], owner, name="slow", cpu_slots=0, gpus=[RTX_3060])
    parked: dict[str, asyncio.Task[httpx.Response]] = {}
    with Client(hub.url, owner.key) as lender, Client(hub.url, submitter.key) as client:
        try:
            await asyncio.gather(fast.enrol(), slow.enrol())
            for node, credits in ((fast, 40), (slow, 10)):
                await asyncio.to_thread(lender.set_floor, node_id=node.node_id, credits_per_hour=credits)
                parked[node.name] = asyncio.create_task(node.next(wait_seconds=30))
            await wait_for_parked(hub.url, 2)
            await asyncio.to_thread(client.submit, command=["true"], gpu=True, prefer=prefer)
            done, _ = await asyncio.wait(parked.values(), return_when=asyncio.FIRST_COMPLETED, timeout=30)
            assert [name for name, task in parked.items() if task in done] == [chosen]
            assert parked[chosen].result().status_code == 200
        finally:
            for task in parked.values():
                task.cancel()
            await asyncio.gather(*parked.values(), return_exceptions=True)
            await asyncio.gather(fast.close(), slow.close())
