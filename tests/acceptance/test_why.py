"""Why, asked of a real hub: what it says of waiting jobs, dead attempts and idle nodes is so."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from computepool.cli.why import describe_job, describe_node
from computepool.sdk import Client
from computepool.wire.why import JobWhy, NodeWhy
from tests.support.people import Person, sign_up
from tests.support.postgres import wait_for
from tests.support.protocol_node import Held, ProtocolNode

RTX_4070 = {"name": "NVIDIA GeForce RTX 4070", "vram_bytes": 12_884_901_888}
RTX_3060 = {"name": "NVIDIA GeForce RTX 3060", "vram_bytes": 8_589_934_592}
LINE_LENGTH_MAX = 80
CREDIT = 1_000_000


class Grid:
    """Protocol nodes that stay online by themselves; they take work only when a test lets them."""

    def __init__(self, hub_url: str) -> None:
        self.hub_url = hub_url
        self._nodes: list[ProtocolNode] = []
        self._beating: dict[str, asyncio.Task[None]] = {}

    async def add(self, owner: Person, name: str, **options: Any) -> ProtocolNode:
        node = ProtocolNode([self.hub_url], owner, name=name, **{"cpu_slots": 0, **options})
        await node.enrol()
        self._nodes.append(node)
        await node.heartbeat()
        self._beating[node.node_id] = asyncio.create_task(self._beat(node))
        await wait_for(lambda: self._is_online(node, owner), what=f"{name} to be online")
        return node

    async def _beat(self, node: ProtocolNode) -> None:
        while True:
            await asyncio.sleep(0.5)
            with contextlib.suppress(httpx.HTTPError):
                await node.heartbeat()

    async def silence(self, node: ProtocolNode, owner: Person) -> None:
        self._beating.pop(node.node_id).cancel()

        def is_offline() -> bool:
            return not self._is_online(node, owner)

        await wait_for(is_offline, what="the silent node to be offline")

    def _is_online(self, node: ProtocolNode, owner: Person) -> bool:
        return get(self.hub_url, owner, f"/v1/nodes/{node.node_id}")["online"]

    async def close(self) -> None:
        for task in self._beating.values():
            task.cancel()
        await asyncio.gather(*self._beating.values(), return_exceptions=True)
        await asyncio.gather(*(node.close() for node in self._nodes))


@pytest.fixture
async def grid(hub) -> AsyncIterator[Grid]:
    grid = Grid(hub.url)
    yield grid
    await grid.close()


def get(hub_url: str, person: Person, path: str, status: int = 200) -> Any:
    answer = httpx.get(hub_url + path, headers=person.headers, timeout=20)
    assert answer.status_code == status, answer.text
    return answer.json()


def submit(hub_url: str, person: Person, **spec: Any) -> str:
    answer = httpx.post(f"{hub_url}/v1/jobs", json={"command": ["true"], **spec}, headers=person.headers, timeout=20)
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


def why_job(hub_url: str, person: Person, job_id: str, query: str = "") -> JobWhy:
    """As a program sees it; and as a person does: the words fit a terminal."""
    found = msgspec.convert(get(hub_url, person, f"/v1/jobs/{job_id}/why{query}"), JobWhy)
    check_words(describe_job(found))
    return found


def why_node(hub_url: str, person: Person, node: ProtocolNode) -> NodeWhy:
    found = msgspec.convert(get(hub_url, person, f"/v1/nodes/{node.node_id}/why"), NodeWhy)
    check_words(describe_node(found))
    return found


def check_words(lines: list[str]) -> None:
    long = [line for line in lines if len(line) > LINE_LENGTH_MAX]
    assert long == []
    assert "None" not in "\n".join(lines).replace("None of", "")


def set_floor(hub_url: str, person: Person, node: ProtocolNode, floor: int) -> None:
    body = {"floor_microcredits_per_hour": floor}
    answer = httpx.put(f"{hub_url}/v1/nodes/{node.node_id}/offer", json=body, headers=person.headers, timeout=20)
    assert answer.status_code == 200, answer.text
    assert answer.json()["offer"]["floor_microcredits_per_hour"] == floor


def change_node(hub_url: str, person: Person, node: ProtocolNode, change: str) -> None:
    answer = httpx.post(f"{hub_url}/v1/nodes/{node.node_id}/{change}", headers=person.headers, timeout=20)
    assert answer.status_code == 200, answer.text


async def fail(node: ProtocolNode, held: Held, **report: Any) -> None:
    answer = await node.complete(held, **{"exit_code": None, **report})
    assert answer.status_code == 200, answer.text
    node.forget(held.attempt_id)


async def test_a_job_that_waits_for_vram_is_told_the_smallest_change_and_it_is_true(hub, submitter, owner, grid):
    node = await grid.add(owner, "attic-pc", gpus=[RTX_4070], region="IN")
    await grid.add(owner, "kitchen-pc", gpus=[RTX_3060], cpu_slots=1)
    job_id = submit(hub.url, submitter, requirements={"vram_bytes": 16_000_000_000})
    waiting = why_job(hub.url, submitter, job_id).waiting
    assert (waiting.slot_count, waiting.pass_count, waiting.turn.ahead_count) == (3, 0, 0)
    assert {gate.gate.value: gate.failed_count for gate in waiting.gates} == {"gpu": 1, "vram": 3}
    first = waiting.suggestions[0]
    assert [change.words for change in first.changes] == ["ask for 12.5 GB of VRAM instead of 16 GB"]
    assert (first.slot_count, first.free_count) == (1, 1)
    assert [(place.tier, place.region) for place in first.places] == [("rtx-4070", "IN")]
    # The proof: the job as suggested runs, there; with one step less it would not have.
    changed = submit(hub.url, submitter, requirements=msgspec.to_builtins(first.requirements))
    held = await node.claim_one()
    assert held.order["job_id"] == changed
    story = why_job(hub.url, submitter, changed).slice
    assert story.attempts[0].tier == "rtx-4070"
    margins = {each.gate.value: (each.needs, each.has) for each in story.attempts[0].margins}
    assert margins["vram"] == ("12.5 GB", "12.88 GB")
    stricter = {**msgspec.to_builtins(first.requirements), "vram_bytes": first.requirements.vram_bytes + 1}
    assert (await node.complete(held)).status_code == 200
    node.forget(held.attempt_id)
    refused = submit(hub.url, submitter, requirements=stricter)
    assert why_job(hub.url, submitter, refused).waiting.pass_count == 0


async def test_two_changes_are_named_when_one_would_not_do_and_together_they_do(hub, submitter, owner, grid):
    node = await grid.add(owner, "far", cpu_slots=1, cores=4, region="DE")
    job_id = submit(hub.url, submitter, requirements={"cores": 8, "regions": ["IN"]})
    [suggestion] = why_job(hub.url, submitter, job_id).waiting.suggestions
    assert [change.gate.value for change in suggestion.changes] == ["cores", "region"]
    changed = submit(hub.url, submitter, requirements=msgspec.to_builtins(suggestion.requirements))
    assert (await node.claim_one()).order["job_id"] == changed


async def test_when_all_that_fit_are_busy_the_line_is_told(hub, submitter, owner, grid):
    node = await grid.add(owner, "node", cpu_slots=2)
    running = submit(hub.url, submitter, slice_count=2)
    while len(node.held) < 2:
        await node.claim_one()
    ahead = submit(hub.url, submitter, slice_count=5)
    urgent = submit(hub.url, submitter, slice_count=3, priority=5)
    job_id = submit(hub.url, submitter)
    waiting = why_job(hub.url, submitter, job_id).waiting
    assert (waiting.pass_count, waiting.free_count, waiting.turn.ahead_count) == (2, 0, 8)
    assert waiting.words == "2 of 2 slots fit, but all are busy."
    assert waiting.turn.words == "8 slices of this account go before it."
    assert why_job(hub.url, submitter, ahead).waiting.turn.ahead_count == 3
    turn = why_job(hub.url, submitter, urgent).waiting.turn
    assert turn.words == "No slice of this account goes before it (own priority 5)."
    assert why_job(hub.url, submitter, running).waiting is None
    assert why_node(hub.url, owner, node).reason.value == "all_busy"


async def test_other_accounts_and_higher_classes_are_told_by_number_and_not_by_name(
    hub, submitter, owner, operator, grid
):
    node = await grid.add(owner, "node", cpu_slots=1)
    submit(hub.url, owner)
    await node.claim_one()
    grant = {"priority_class_max": "high", "fair_weight": 2.0}
    answer = httpx.patch(
        f"{hub.url}/v1/accounts/{owner.account_id}", json=grant, headers=operator.headers, timeout=20
    )
    assert answer.status_code == 200, answer.text
    submit(hub.url, owner, slice_count=4, priority_class="high")
    submit(hub.url, owner, slice_count=2)
    found = get(hub.url, submitter, f"/v1/jobs/{submit(hub.url, submitter)}/why")
    turn = found["waiting"]["turn"]
    assert (turn["class_ahead_count"], turn["account_count"], turn["ahead_count"]) == (4, 1, 0)
    assert owner.account_id not in str(found)
    assert "4 slices of a higher class than normal go first. 1 other account waits for such slots" in turn["words"]


async def test_a_job_that_pays_too_little_is_told_the_price_that_would_do_and_it_is_true(hub, submitter, owner, grid):
    node = await grid.add(owner, "attic-pc", cpu_slots=1, region="IN")
    set_floor(hub.url, owner, node, 12 * CREDIT)
    job_id = submit(hub.url, submitter, requirements={"ceiling_microcredits_per_hour": 10 * CREDIT})
    waiting = why_job(hub.url, submitter, job_id).waiting
    assert {gate.gate.value: gate.failed_count for gate in waiting.gates} == {"price": 1}
    [suggestion] = waiting.suggestions
    assert "computepool run --max-price 12" in "\n".join(describe_job(why_job(hub.url, submitter, job_id)))
    assert (await node.next(wait_seconds=1.2)).status_code == 204
    changed = submit(hub.url, submitter, requirements=msgspec.to_builtins(suggestion.requirements))
    assert (await node.claim_one()).order["job_id"] == changed


async def test_an_owner_who_lowers_the_floor_as_told_gets_the_work(hub, submitter, owner, grid):
    node = await grid.add(owner, "attic-pc", cpu_slots=1)
    set_floor(hub.url, owner, node, 12 * CREDIT)
    job_id = submit(hub.url, submitter, requirements={"ceiling_microcredits_per_hour": 8 * CREDIT})
    assert (await node.next(wait_seconds=1.2)).status_code == 204
    found = why_node(hub.url, owner, node)
    assert (found.reason.value, found.floor_microcredits_per_hour) == ("nothing_fits", 12 * CREDIT)
    assert found.lower_floor.slice_count == 1
    set_floor(hub.url, owner, node, found.lower_floor.floor_microcredits_per_hour)
    assert (await node.claim_one()).order["job_id"] == job_id


async def test_a_placed_job_is_shown_why_there_and_where_else(hub, submitter, owner, grid):
    chosen = await grid.add(owner, "cheap", gpus=[RTX_4070])
    other = await grid.add(owner, "dear", gpus=[RTX_4070], region="IN")
    # Above what others pay: below it, floors are all the same.
    set_floor(hub.url, owner, chosen, 100 * CREDIT)
    set_floor(hub.url, owner, other, 300 * CREDIT)
    wishes = {"gpu": True, "ceiling_microcredits_per_hour": 400 * CREDIT}
    job_id = submit(hub.url, submitter, requirements=wishes, prefer="cheapest", wall_seconds=60)
    await chosen.claim_one()
    choice = why_job(hub.url, submitter, job_id).slice.choice
    assert (choice.prefer.value, choice.weight_set, choice.fit_count) == ("cheapest", "default", 2)
    assert [(each.chosen, each.busy, each.node_name) for each in choice.candidates] == [
        (True, True, None),
        (False, False, None),
    ]
    assert [each.price_microcredits_per_hour for each in choice.candidates] == [100 * CREDIT, 300 * CREDIT]
    assert choice.candidates[0].total > choice.candidates[1].total
    assert "speed" not in choice.candidates[0].points
    assert "mostly for its price, 3 times as good" in choice.words
    assert other.node_id not in str(get(hub.url, submitter, f"/v1/jobs/{job_id}/why"))


@pytest.mark.short_leases
async def test_an_empty_fleet_an_offline_and_a_paused_node_are_told_apart(hub, submitter, owner, grid):
    job_id = submit(hub.url, submitter)
    waiting = why_job(hub.url, submitter, job_id).waiting
    assert (waiting.slot_count, waiting.away_count) == (0, 0)
    assert waiting.words == "No node is online and taking work."
    assert waiting.suggestions == []
    node = await grid.add(owner, "node", cpu_slots=2)
    assert why_job(hub.url, submitter, job_id).waiting.free_count == 2
    change_node(hub.url, owner, node, "pause")
    waiting = why_job(hub.url, submitter, job_id).waiting
    assert (waiting.slot_count, waiting.away_count, waiting.places[0].standing.value) == (0, 2, "paused")
    await grid.silence(node, owner)
    waiting = why_job(hub.url, submitter, job_id).waiting
    assert (waiting.away_count, waiting.places[0].standing.value) == (2, "offline")
    change_node(hub.url, owner, node, "remove")
    assert why_job(hub.url, submitter, job_id).waiting.away_count == 0


async def test_dead_attempts_are_told_with_their_cause_what_follows_and_what_to_do(hub, submitter, owner, grid):
    node = await grid.add(owner, "node", cpu_slots=1)
    job_id = submit(hub.url, submitter, retries=1, requirements={"ram_bytes": 2_000_000_000})
    usage = {"memory_bytes_peak": 2_000_000_000}
    used = {"cause": "out_of_memory", "message": "killed at 2 GB", "usage": usage}
    await fail(node, await node.claim_one(), **used)
    story = why_job(hub.url, submitter, job_id).slice
    assert story.state.value == "queued"
    assert story.attempts[0].cause_words == "it used more memory than it asked for"
    assert story.attempts[0].message == "killed at 2 GB"
    assert story.next_words == "It is tried again, on another node if one is free: retry 1 of 1, none left after it."
    assert (story.advice[0].remedy.value, story.advice[0].value) == ("ask_for_more_ram", 3_000_000_000)
    await fail(node, await node.claim_one(tries=40), cause="exit_code", exit_code=3)
    found = why_job(hub.url, submitter, job_id)
    assert found.waiting is None
    assert [attempt.cause.value for attempt in found.slice.attempts] == ["exit_code", "out_of_memory"]
    assert found.slice.next_words == "The slice failed for good: its one retry is spent."
    text = "\n".join(describe_job(found))
    assert f"computepool logs {job_id[-8:]} --slice 0 --attempt 2" in text
    assert "ended with exit code 3" in text


@pytest.mark.short_leases
async def test_a_timeout_a_lost_node_and_a_cancelled_job_are_told_apart(hub, submitter, owner, grid):
    node = await grid.add(owner, "node", cpu_slots=1)
    timed_out = submit(hub.url, submitter, retries=0, wall_seconds=60)
    await fail(node, await node.claim_one(), cause="timed_out")
    story = why_job(hub.url, submitter, timed_out).slice
    assert (story.advice[0].remedy.value, story.advice[0].value) == ("raise_wall_seconds", 120)
    assert story.next_words == "The slice failed for good: the job allows no retry."
    lost = submit(hub.url, submitter)
    await node.claim_one()
    await grid.silence(node, owner)
    await wait_for(
        lambda: get(hub.url, submitter, f"/v1/jobs/{lost}/slices/0")["state"] == "queued", what="the lease to end"
    )
    story = why_job(hub.url, submitter, lost).slice
    assert story.attempts[0].cause.value == "node_vanished"
    assert "spends no retry" in story.next_words
    httpx.post(f"{hub.url}/v1/jobs/{lost}/cancel", headers=submitter.headers, timeout=20)
    story = why_job(hub.url, submitter, lost).slice
    assert story.next_words == "The slice was cancelled and is not tried again."


async def test_one_slice_of_many_can_be_asked_for(hub, submitter, owner, grid):
    node = await grid.add(owner, "node", cpu_slots=1)
    job_id = submit(hub.url, submitter, slice_count=3)
    held = await node.claim_one()
    index = held.order["slice_index"]
    found = why_job(hub.url, submitter, job_id)
    assert found.slice.index == index
    assert found.waiting is not None
    assert why_job(hub.url, submitter, job_id, f"?slice={index}").waiting is None
    other = why_job(hub.url, submitter, job_id, f"?slice={(index + 1) % 3}")
    assert other.slice.attempts == []
    assert other.waiting is not None
    assert get(hub.url, submitter, f"/v1/jobs/{job_id}/why?slice=3", 404)["code"] == "not_found"
    assert get(hub.url, submitter, f"/v1/jobs/{job_id}/why?slice=-1", 404)["code"] == "not_found"


@pytest.mark.short_leases
async def test_an_idle_node_is_told_why_and_what_it_would_need(hub, submitter, owner, grid):
    node = await grid.add(owner, "node", gpus=[RTX_3060])
    assert why_node(hub.url, owner, node).reason.value == "no_work"
    submit(hub.url, submitter, slice_count=40, requirements={"vram_bytes": 16_000_000_000})
    submit(hub.url, submitter, slice_count=2, requirements={"regions": ["AQ"]})
    found = why_node(hub.url, owner, node)
    assert (found.reason.value, found.waiting_count, found.fitting_count) == ("nothing_fits", 42, 0)
    assert {g.gate.value: (g.shape_count, g.slice_count) for g in found.gates} == {"vram": (1, 40), "region": (1, 2)}
    assert (found.lack.slice_count, found.lack.slot) == (40, "gpu:0")
    assert [(m.gate.value, m.needs, m.has) for m in found.lack.missing] == [("vram", "16 GB", "8.59 GB")]
    change_node(hub.url, owner, node, "drain")
    assert why_node(hub.url, owner, node).reason.value == "draining"
    change_node(hub.url, owner, node, "pause")
    assert why_node(hub.url, owner, node).reason.value == "paused"
    change_node(hub.url, owner, node, "resume")
    submit(hub.url, submitter)
    assert why_node(hub.url, owner, node).reason.value == "work_fits"
    await grid.silence(node, owner)
    assert why_node(hub.url, owner, node).reason.value == "offline"


async def test_tenants_see_counts_and_tiers_of_others_but_no_names(hub, submitter, owner, operator, grid):
    node = await grid.add(owner, "secret-name", gpus=[RTX_4070], region="IN")
    spec = {"requirements": {"vram_bytes": 16_000_000_000}}
    theirs, own = submit(hub.url, submitter, **spec), submit(hub.url, owner, **spec)
    answer = get(hub.url, submitter, f"/v1/jobs/{theirs}/why")
    assert answer["waiting"]["suggestions"][0]["places"][0]["tier"] == "rtx-4070"
    assert "secret-name" not in str(answer)
    assert node.node_id not in str(answer)
    for person, job_id in ((owner, own), (operator, theirs)):
        place = why_job(hub.url, person, job_id).waiting.suggestions[0].places[0]
        assert place.node_name == "secret-name"
    stranger = sign_up(hub.url, "stranger")
    assert get(hub.url, stranger, f"/v1/jobs/{theirs}/why", 404)["code"] == "not_found"
    assert get(hub.url, stranger, f"/v1/nodes/{node.node_id}/why", 404)["code"] == "not_found"
    # The owner learns how much waits, and nothing of whose it is.
    answer = str(get(hub.url, owner, f"/v1/nodes/{node.node_id}/why"))
    assert submitter.account_id not in answer
    assert theirs not in answer
    # A job that ran elsewhere names its node only to the node's owner.
    fitting = submit(hub.url, submitter)
    await node.claim_one()
    assert why_job(hub.url, submitter, fitting).slice.attempts[0].node_name is None
    assert why_job(hub.url, operator, fitting).slice.attempts[0].node_name == "secret-name"


async def test_the_sdk_and_the_command_line_ask_the_same(hub, owner, grid, capsys):
    from computepool.cli.main import run

    node = await grid.add(owner, "attic-pc", gpus=[RTX_4070], region="IN")
    job_id = submit(hub.url, owner, requirements={"vram_bytes": 16_000_000_000})
    with Client(hub_url=hub.url, key=owner.key) as client:
        told = await asyncio.to_thread(client.get_job(job_id=job_id).why)
        assert told.waiting.suggestions[0].requirements.vram_bytes == 12_500_000_000
        idle = client.why_node(node_id=node.node_id)
        assert idle.reason.value == "nothing_fits"
    access = ["--hub-url", hub.url, "--key", owner.key]
    assert await asyncio.to_thread(run, ["why", job_id, *access]) == 0
    said = capsys.readouterr().out
    assert "Ask for 12.5 GB of VRAM instead of 16 GB: 1 slot, 1 free now" in said
    assert "computepool run --vram 12.5GB ..." in said
    assert "'attic-pc'" in said
    assert await asyncio.to_thread(run, ["why", "--node", "attic-pc", *access]) == 0
    assert "none of it fits a free slot" in capsys.readouterr().out
    assert await asyncio.to_thread(run, ["why", job_id, "--json", *access]) == 0
    assert msgspec.json.decode(capsys.readouterr().out, type=JobWhy).waiting is not None
    assert run(["why", *access]) == 2
    assert run(["why", job_id, "--node", "x", *access]) == 2
