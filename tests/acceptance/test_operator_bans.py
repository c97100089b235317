"""The operator blocks an input or suspends an account: every hub refuses, and what runs stops, within seconds."""

from __future__ import annotations

import hashlib
import time
from typing import Any

import httpx

from computepool.cli.main import run
from tests.support.people import Person, sign_in_operator, sign_up
from tests.support.postgres import wait_for
from tests.support.protocol_node import ProtocolNode

SECONDS_MAX = 5.0
SCRIPT = "print('mine')\n"
SHA256 = hashlib.sha256(SCRIPT.encode()).hexdigest()
MINER = {"script": SCRIPT}


def submit(url: str, person: Person, **spec: Any) -> httpx.Response:
    return httpx.post(f"{url}/v1/jobs", json=spec, headers=person.headers, timeout=20)


def block(url: str, operator: Person, sha256: str = SHA256) -> None:
    body = {"sha256": sha256, "why": "a miner"}
    answer = httpx.post(f"{url}/v1/operator/blocked-inputs", json=body, headers=operator.headers, timeout=20)
    assert answer.status_code == 201, answer.text


def state_of(url: str, person: Person, job_id: str) -> str:
    return httpx.get(f"{url}/v1/jobs/{job_id}", headers=person.headers, timeout=20).json()["state"]


def upload(url: str, person: Person, content: bytes) -> dict[str, Any]:
    sha = hashlib.sha256(content).hexdigest()
    httpx.put(f"{url}/v1/artifacts/{sha}", content=content, headers=person.headers, timeout=20).raise_for_status()
    return {"path": "tool", "sha256": sha, "size_bytes": len(content)}


async def hold_one(url: str, owner: Person, person: Person, **spec: Any) -> tuple[ProtocolNode, str]:
    """A node with one slot that runs this job."""
    node = ProtocolNode([url], owner, cpu_slots=1)
    await node.enrol()
    job_id = submit(url, person, **spec).json()["id"]
    await node.claim_one()
    return node, job_id


async def is_told_to_stop(node: ProtocolNode) -> bool:
    answer = await node.next(wait_seconds=1)
    controls = answer.json().get("controls", {}) if answer.status_code == 200 else {}
    return bool(set(controls.get("stop", {})) & set(node.held))


async def test_a_blocked_input_is_refused_by_every_hub_and_its_jobs_are_stopped(start_hub):
    first, second = start_hub(), start_hub()
    operator = sign_in_operator(first.url, first.log_path.read_text())
    owner, submitter = sign_up(first.url, "owner"), sign_up(first.url, "submitter")
    node, running = await hold_one(second.url, owner, submitter, **MINER)
    queued = submit(second.url, submitter, **MINER).json()["id"]
    file = upload(first.url, submitter, b"the same by another way")
    named = submit(first.url, submitter, command=["./tool"], files=[file]).json()["id"]
    harmless = submit(second.url, submitter, script="print(1)\n").json()["id"]

    began = time.monotonic()
    block(first.url, operator)
    block(first.url, operator, file["sha256"])
    assert submit(first.url, submitter, **MINER).json()["code"] == "input_blocked"

    async def is_refused() -> bool:
        asked = (MINER, {"command": ["./tool"], "files": [file]})
        return all(submit(second.url, submitter, **each).status_code == 403 for each in asked)

    await wait_for(is_refused, what="the other hub to refuse both")
    await wait_for(lambda: is_told_to_stop(node), what="the node to be told")
    assert time.monotonic() - began < SECONDS_MAX
    assert [state_of(second.url, submitter, id) for id in (running, queued, named)] == ["cancelled"] * 3
    assert state_of(second.url, submitter, harmless) == "queued"
    refused = submit(second.url, submitter, command=["./tool"], files=[file])
    assert (refused.status_code, refused.json()["code"]) == (403, "input_blocked")
    # In a batch each job is judged on its own.
    batch = httpx.post(
        f"{second.url}/v1/jobs/batch",
        json={"jobs": [MINER, {"command": ["true"]}]},
        headers=submitter.headers,
        timeout=20,
    ).json()["answers"]
    assert [each["error"]["code"] if each.get("error") else "taken" for each in batch] == ["input_blocked", "taken"]
    listed = httpx.get(f"{second.url}/v1/operator/blocked-inputs", headers=operator.headers, timeout=20).json()
    assert {each["sha256"] for each in listed["inputs"]} == {SHA256, file["sha256"]}

    path = f"/v1/operator/blocked-inputs/{SHA256}"
    assert httpx.delete(first.url + path, headers=operator.headers, timeout=20).status_code == 204
    assert httpx.delete(first.url + path, headers=operator.headers, timeout=20).status_code == 404
    assert submit(first.url, submitter, **MINER).status_code == 201
    await node.close()


async def test_control_a_hub_that_does_not_ask_what_is_blocked_takes_the_job(start_hub):
    hub = start_hub(program=("-m", "tests.support.planted_hub", "blocks_unheard"))
    operator, submitter = sign_in_operator(hub.url, hub.log_path.read_text()), sign_up(hub.url, "submitter")
    block(hub.url, operator)
    assert submit(hub.url, submitter, **MINER).status_code == 201


async def test_a_suspended_accounts_jobs_stop_everywhere_within_seconds(start_hub):
    first, second = start_hub(), start_hub()
    operator = sign_in_operator(first.url, first.log_path.read_text())
    owner, submitter = sign_up(first.url, "owner"), sign_up(first.url, "submitter")
    bystander = sign_up(first.url, "bystander")
    node, running = await hold_one(second.url, owner, submitter, command=["sleep", "600"])
    queued = submit(second.url, submitter, command=["true"], slice_count=500).json()["id"]
    other = submit(second.url, bystander, command=["true"]).json()["id"]

    began = time.monotonic()
    path = f"/v1/accounts/{submitter.account_id}/suspend"
    httpx.post(first.url + path, headers=operator.headers, timeout=20).raise_for_status()
    await wait_for(lambda: is_told_to_stop(node), what="the node to be told")

    async def is_refused() -> bool:
        return submit(second.url, submitter, command=["true"]).status_code == 403

    await wait_for(is_refused, what="the other hub to refuse them")
    assert time.monotonic() - began < SECONDS_MAX
    assert [state_of(second.url, operator, id) for id in (running, queued)] == ["cancelled"] * 2
    assert state_of(second.url, bystander, other) == "queued"

    # What the other hub had let in before it heard of it is stopped as well.
    async def is_nothing_open() -> bool:
        page = httpx.get(f"{first.url}/v1/jobs?limit=500", headers=operator.headers, timeout=20).json()["jobs"]
        return [job["id"] for job in page if job["state"] in ("queued", "running")] == [other]

    await wait_for(is_nothing_open, what="nothing of theirs to be open")
    await node.close()


async def test_control_without_the_stop_a_suspended_accounts_job_runs_on(start_hub):
    hub = start_hub(program=("-m", "tests.support.planted_hub", "suspended_run_on"))
    operator = sign_in_operator(hub.url, hub.log_path.read_text())
    owner, submitter = sign_up(hub.url, "owner"), sign_up(hub.url, "submitter")
    node, running = await hold_one(hub.url, owner, submitter, command=["sleep", "600"])
    path = f"/v1/accounts/{submitter.account_id}/suspend"
    httpx.post(hub.url + path, headers=operator.headers, timeout=20).raise_for_status()
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline:
        assert not await is_told_to_stop(node)
    assert state_of(hub.url, operator, running) == "running"
    await node.close()


def test_the_operator_says_it_in_a_terminal(hub, operator, submitter, tmp_path, capsys):
    path = tmp_path / "miner.py"
    path.write_text(SCRIPT)
    at = ["--hub-url", hub.url, "--key", operator.key]
    assert run(["operator", "block-input", str(path), "--why", "a miner", *at]) == 0
    assert submit(hub.url, submitter, **MINER).json()["code"] == "input_blocked"
    assert run(["operator", "blocked-inputs", "--json", *at]) == 0
    assert SHA256 in capsys.readouterr().out
    assert run(["operator", "unblock-input", SHA256, *at]) == 0
    job_id = submit(hub.url, submitter, **MINER).json()["id"]
    assert run(["operator", "suspend", submitter.account_id, *at]) == 0
    assert state_of(hub.url, operator, job_id) == "cancelled"
    assert submit(hub.url, submitter, **MINER).json()["code"] == "account_suspended"
    assert run(["operator", "resume", submitter.account_id, *at]) == 0
    assert submit(hub.url, submitter, **MINER).status_code == 201
    assert run(["accounts", submitter.account_id, "--new-nodes", "40", *at]) == 0
    assert "40 in 30 days" in capsys.readouterr().out
