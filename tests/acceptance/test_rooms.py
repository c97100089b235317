"""What the rooms of the dashboard ask for, of a real hub on which one job has run; and the plug of the demo."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import asyncpg
import httpx
import pytest

from computepool.core.live.leaderboard import Measure, Period
from computepool.sdk import Client
from tests.support.bugged_nodes import bug_node
from tests.support.hub_process import SHORT_LEASE_SECONDS, HubProcess
from tests.support.people import sign_in_operator, sign_up
from tests.support.protocol_node import ProtocolNode


def wait_for(found: Callable[[], Any], seconds: float = 90.0) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if answer := found():
            return answer
        time.sleep(0.2)
    raise AssertionError("it did not come about")


async def test_one_paid_job_is_seen_in_every_room(start_hub):
    # A busy test machine must not take the node for gone while we look.
    hub = start_hub(lease_seconds=60)
    submitter, owner = sign_up(hub.url, "submitter"), sign_up(hub.url, "owner")
    operator = sign_in_operator(hub.url, hub.log_path.read_text())
    node = ProtocolNode([hub.url], owner, name="workhorse", cpu_slots=2, region="DE")
    await node.enrol()

    def ask(path: str, person=submitter) -> Any:
        answer = httpx.get(hub.url + path, headers=person.headers, timeout=30)
        assert answer.status_code == 200, f"{path}: {answer.text}"
        return answer.json()

    body = {"script": "print(1)", "name": "Secret plan", "slice_count": 3, "kind": "ml"}
    job_id = httpx.post(f"{hub.url}/v1/jobs", json=body, headers=submitter.headers, timeout=60).json()["id"]
    first = await node.claim_one()
    await asyncio.sleep(1.1)
    await node.complete(first)
    second = await node.claim_one()

    assert ask(f"/v1/jobs/{job_id}/spec")["script"] == "print(1)"
    assert [job["id"] for job in ask("/v1/jobs?name=SECRET")["jobs"]] == [job_id]
    assert ask("/v1/jobs?name=nothing")["jobs"] == []
    strip = ask(f"/v1/jobs/{job_id}/strip")
    assert strip["slice_count"] == 3
    assert sum(last - first + 1 for first, last, _ in strip["ranges"]) == 3
    assert {state for _, _, state in strip["ranges"]} >= {"succeeded", "leased"}

    timeline = ask(f"/v1/jobs/{job_id}/attempts?limit=1")
    rest = ask(f"/v1/jobs/{job_id}/attempts?cursor={timeline['cursor']}")
    attempts = timeline["attempts"] + rest["attempts"]
    assert {first.attempt_id, second.attempt_id} <= {each["attempt"]["id"] for each in attempts}
    assert {each["tier"] for each in attempts} == {"cpu"}
    # What a machine is called is its owner's business.
    assert not any(each.get("node_name") for each in attempts)
    theirs = ask(f"/v1/nodes/{node.node_id}/attempts", owner)["attempts"]
    assert {each["node_name"] for each in theirs} == {"workhorse"}
    assert theirs[-1]["attempt"]["id"] == first.attempt_id

    earned = ask(f"/v1/nodes/{node.node_id}/earnings", owner)
    assert earned["earned_microcredits"] > 0
    assert sum(day["attempt_count"] for day in earned["days"]) == 1
    holds = ask("/v1/credits/holds")["holds"]
    assert [hold["job_id"] for hold in holds] == [job_id]
    assert ask("/v1/credits/holds", owner)["holds"] == []

    depth = await asyncio.to_thread(ask, "/v1/market/depth?tier=cpu&region=eu")
    assert depth["asks"] == [{"count": 2, "price_microcredits_per_hour": 0}]
    assert ask("/v1/market/depth?tier=cpu")["asks"] == []
    assert [each["id"] for each in ask("/v1/nodes?online=true&name=WORK", owner)["nodes"]] == [node.node_id]
    assert ask("/v1/nodes?online=false", owner)["nodes"] == []

    overview = ask("/v1/operator/overview", operator)
    assert overview["counts"]["busy_slots"] >= 1
    assert overview["counts"]["tiers"]["cpu"]["slots"] == 2
    found = ask(f"/v1/operator/events?job={job_id}&kind=slices", operator)["events"]
    assert {event["kind"] for event in found} >= {"slices_leased", "slices_succeeded"}
    assert [each["email"] for each in httpx_list(hub.url, operator, submitter.email)] == [submitter.email]

    await see_titles_and_leaders(hub, submitter, owner)
    await node.close()


async def test_an_operator_sees_which_nodes_computed_wrongly_and_what(hub, dsn, operator, owner):
    names = ("bad-ram", "overclocked", "honest")
    nodes = {}
    for name in names:
        nodes[name] = ProtocolNode([hub.url], owner, name=name)
        await nodes[name].enrol()
        await nodes[name].close()
    run_id = await bug_node(dsn, nodes["bad-ram"].node_id, owner.account_id, wrong=2)

    def ask(query: str = "") -> Any:
        answer = httpx.get(f"{hub.url}/v1/operator/distrusted-nodes{query}", headers=operator.headers, timeout=30)
        assert answer.status_code == 200, answer.text
        return answer.json()

    [bad] = ask()["nodes"]
    assert (bad["node_name"], bad["owner_id"], bad["standing"]) == ("bad-ram", owner.account_id, "bugged")
    assert bad["back_at"] > bad["since"]
    assert "held back is lost" in bad["words"]
    # Newest first.
    spans = bad["wrong_spans"]
    assert [(each["run_id"], each["from_step"], each["until_step"]) for each in spans] == [
        (run_id, 10, 20),
        (run_id, 0, 10),
    ]
    assert {(each["witness_count"], each["message"]) for each in spans} == {(2, "other bits")}
    conn = await asyncpg.connect(dsn)
    await conn.execute("DELETE FROM run_audits")
    await conn.close()
    await bug_node(dsn, nodes["overclocked"].node_id, owner.account_id, wrong=0)
    page = ask("?limit=1")
    assert [each["node_name"] for each in page["nodes"]] == ["overclocked"]
    rest = ask(f"?limit=1&cursor={page['cursor']}")
    assert [(each["node_name"], each["wrong_spans"]) for each in rest["nodes"]] == [("bad-ram", [])]
    assert ask(f"?limit=1&cursor={rest['cursor']}")["nodes"] == []
    assert httpx.get(f"{hub.url}/v1/operator/distrusted-nodes", headers=owner.headers).status_code == 403


def httpx_list(hub_url: str, operator, words: str) -> list[dict[str, Any]]:
    answer = httpx.get(f"{hub_url}/v1/accounts", params={"q": words}, headers=operator.headers, timeout=60)
    return answer.json()["accounts"]


async def see_titles_and_leaders(hub, submitter, owner) -> None:
    """Names by consent, places under pseudonyms, and nobody who has left."""
    with Client(hub.url, submitter.key) as client, Client(hub.url, owner.key) as lender:
        assert [job.title for job in client.live.jobs().jobs] == [None]
        client.live.change_profile(shows_titles=True)
        assert [job.title for job in client.live.jobs().jobs] == ["Secret plan"]
        made = lender.live.profile().pseudonym
        leaders = await asyncio.to_thread(
            wait_for, lambda: lender.live.leaderboard(by=Measure.EARNED, period=Period.DAY).rows
        )
        assert [(row.rank, row.pseudonym) for row in leaders] == [(1, made)]
        assert leaders[0].value > 0
        assert lender.live.leaderboard(by=Measure.HOURS).rows[0].value >= 1
        assert 0 < lender.live.leaderboard(by=Measure.RELIABILITY).rows[0].value < 10**6
        assert lender.live.change_profile(pseudonym="Ada 1815").pseudonym == "Ada 1815"
        assert lender.live.leaderboard().rows[0].pseudonym == "Ada 1815"
        taken = httpx.patch(
            f"{hub.url}/v1/accounts/me/profile", json={"pseudonym": "ADA 1815"}, headers=submitter.headers, timeout=60
        )
        assert (taken.status_code, taken.json()["code"]) == (409, "name_taken")
        for wrong in ("ab", "<script>", "a" * 31, " ada", "ada\u202e"):
            refused = httpx.patch(
                f"{hub.url}/v1/accounts/me/profile", json={"pseudonym": wrong}, headers=submitter.headers, timeout=60
            )
            assert refused.status_code == 400, wrong
        assert lender.live.change_profile(on_leaderboard=False).on_leaderboard is False
        assert lender.live.leaderboard().rows == []


async def test_work_moves_away_from_a_machine_whose_plug_is_pulled(start_hub):
    hub: HubProcess = start_hub(lease_seconds=SHORT_LEASE_SECONDS)
    owner = sign_up(hub.url, "owner")
    real = ProtocolNode([hub.url], owner, name="real", cpu_slots=1)
    await real.enrol()
    played = ProtocolNode([hub.url], owner, name="played", cpu_slots=1)
    await played.enrol(synthetic=True)
    with Client(hub.url, owner.key) as client:
        job_id = httpx.post(
            f"{hub.url}/v1/jobs", json={"command": ["true"]}, headers=owner.headers, timeout=60
        ).json()["id"]
        await played.claim_one()
        played_id = wait_for(lambda: [node.id for node in client.live.mesh().nodes if node.synthetic])[0]
        client.live.unplug(played_id, seconds=30)
        assert (await played.heartbeat()).status_code == 503
        # It runs elsewhere once the lease is over.
        held = await real.claim_one(tries=60)
        await real.complete(held)
        real_id = wait_for(lambda: [node.id for node in client.live.mesh().nodes if not node.synthetic])[0]
        assert client.get_job(job_id=job_id).job.counts.succeeded == 1
        refused = httpx.post(f"{hub.url}/v1/demo/nodes/{real_id}/unplug", json={}, headers=owner.headers, timeout=60)
        assert refused.status_code == 403
        unknown = httpx.post(f"{hub.url}/v1/demo/nodes/{'0' * 16}/unplug", json={}, headers=owner.headers, timeout=60)
        assert unknown.status_code == 404
    await asyncio.gather(real.close(), played.close())


@pytest.mark.parametrize("seconds", [0, 121])
def test_a_plug_is_out_for_a_bounded_time(shared_hub, seconds):
    person = sign_up(shared_hub.url)
    answer = httpx.post(
        f"{shared_hub.url}/v1/demo/nodes/{'0' * 16}/unplug",
        json={"seconds": seconds},
        headers=person.headers,
        timeout=60,
    )
    assert answer.status_code == 400
