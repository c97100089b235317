"""Owners set conditions at a real hub, from the command line; they hold, and a hub without one of them is caught."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from computepool.cli.main import run
from computepool.cli.why import describe_job
from computepool.sdk import Client
from tests.support.people import Person, sign_up
from tests.support.protocol_node import ProtocolNode


async def say(*arguments: str) -> int:
    return await asyncio.to_thread(run, list(arguments))


def access(hub: Any, person: Person) -> list[str]:
    return ["--hub-url", hub.url, "--key", person.key]


def closed_now() -> list[str]:
    return ["--hours", f"{datetime.now(UTC) + timedelta(days=3):%A}", "--zone", "UTC"]


# The options that the owner gives, a job that is then refused, one that is taken, the words of `why`, and the bug.
CASES: dict[str, tuple[Callable[[], list[str]], dict[str, Any], dict[str, Any], str, str]] = {
    "hours": (closed_now, {}, {}, "is not lent at this hour", "never_closed"),
    "kinds": (lambda: ["--kinds", "ml,gaming"], {}, {"kind": "ml"}, "of the kind gaming or ml only", "any_kind"),
    "length": (
        lambda: ["--min-seconds", "60"],
        {"wall_seconds": 59},
        {"wall_seconds": 60},
        "takes slices of 1 min or more",
        "any_length",
    ),
    "pool": (lambda: ["--pool", "own"], {}, {"own": True}, "kept for a private pool", "pools_for_all"),
}


@pytest.mark.parametrize("case", CASES)
async def test_a_node_takes_only_what_its_owner_lends_it_for(hub, submitter, owner, case):
    options, refused, taken, words, _ = CASES[case]
    node = ProtocolNode([hub.url], owner, name="attic-pc", cpu_slots=1)
    clients = Client(hub.url, submitter.key), Client(hub.url, owner.key)
    try:
        await node.enrol()
        assert await say("nodes", "attic-pc", "offer", *options(), *access(hub, owner)) == 0
        waiting = await asyncio.to_thread(clients[0].submit, command=["true"], **refused)
        assert (await node.next(wait_seconds=1.2)).status_code == 204
        told = " ".join(describe_job(await asyncio.to_thread(waiting.why)))
        assert words in " ".join(told.split())
        if case == "hours":
            assert await say("nodes", "attic-pc", "offer", "--hours", "always", *access(hub, owner)) == 0
            assert (await node.claim_one()).order["job_id"] == str(waiting.id)
            return
        wanted = {name: value for name, value in taken.items() if name != "own"}
        client = clients[1 if "own" in taken else 0]
        job = await asyncio.to_thread(client.submit, command=["true"], **wanted)
        assert (await node.claim_one()).order["job_id"] == str(job.id)
    finally:
        for client in clients:
            client.close()
        await node.close()


@pytest.mark.parametrize("case", CASES)
async def test_control_a_hub_without_the_condition_gives_the_work_away(start_hub, case):
    options, refused, _, _, bug = CASES[case]
    hub = start_hub(program=("-m", "tests.support.planted_hub", bug))
    owner, submitter = sign_up(hub.url, "owner"), sign_up(hub.url, "submitter")
    node = ProtocolNode([hub.url], owner, name="attic-pc", cpu_slots=1)
    try:
        await node.enrol()
        assert await say("nodes", "attic-pc", "offer", *options(), *access(hub, owner)) == 0
        with Client(hub.url, submitter.key) as client:
            job = await asyncio.to_thread(client.submit, command=["true"], **refused)
        assert (await node.claim_one()).order["job_id"] == str(job.id)
    finally:
        await node.close()


async def test_an_offer_is_set_shown_and_changed_piece_by_piece(hub, owner, submitter, capsys):
    node = ProtocolNode([hub.url], owner, name="attic-pc", cpu_slots=1)
    try:
        await node.enrol()
        first = ["--floor", "8", "--hours", "mon-fri 19-7, sat-sun", "--zone", "Asia/Kolkata", "--min-seconds", "60"]
        assert await say("nodes", "attic-pc", "offer", *first, "--kinds", "ml", *access(hub, owner)) == 0
        assert await say("nodes", "attic-pc", "offer", "--pool", f"named:{submitter.email}", *access(hub, owner)) == 0
        capsys.readouterr()
        assert await say("nodes", "attic-pc", *access(hub, owner)) == 0
        shown = capsys.readouterr().out
        assert "floor      8 credits/h for a slot" in shown
        assert "hours      mon-thu 19-7, fri 19-24, sat-sun (Asia/Kolkata)" in shown
        assert "slices     of 1 min or more" in shown
        assert "kinds      ml" in shown
        assert "pool       yourself and 1 account: " in shown
        assert await say("nodes", "attic-pc", "floor", "9", *access(hub, owner)) == 0
        capsys.readouterr()
        assert await say("nodes", "attic-pc", "--json", *access(hub, owner)) == 0
        offer = json.loads(capsys.readouterr().out)["offer"]
        assert (offer["floor_microcredits_per_hour"], offer["seconds_min"]) == (9_000_000, 60)
        assert (offer["kinds"], offer["audience"], len(offer["accounts"])) == (["ml"], "named", 1)
    finally:
        await node.close()


BAD = [
    ({"hours": "mon", "zone": "Mars/Olympus"}, "zone 'Mars/Olympus' is unknown"),
    ({"hours": "", "zone": "UTC"}, "names no hours"),
    ({"hours": "mon" * 700, "zone": "UTC"}, "2000"),
    ({"kinds": ["mining"]}, "there are compute, gaming, ml"),
    ({"kinds": ["ml"] * 33}, "32"),
    ({"audience": "team"}, "audience"),
    ({"audience": "named", "accounts": ["nobody@nowhere"]}, "account 'nobody@nowhere' is unknown"),
    ({"audience": "named", "accounts": [f"{n}@nowhere" for n in range(300)]}, "takes 100 at most"),
    ({"seconds_min": 61}, "0, 10, 60, 300"),
    ({"floor_microcredits_per_hour": -1}, "between 0 and"),
    ({"floor_microcredits_per_hour": 10**30}, "between 0 and"),
    ({"floor_microcredits_per_hour": 1.5}, "floor_microcredits_per_hour"),
    ({"flor": 1}, "flor"),
]


async def test_bad_offers_and_kinds_are_answered_with_what_would_be_right(hub, owner, submitter):
    node = ProtocolNode([hub.url], owner, name="attic-pc", cpu_slots=1)
    try:
        await node.enrol()
        async with httpx.AsyncClient(base_url=hub.url, timeout=20) as http:
            for body, words in BAD:
                answer = await http.put(f"/v1/nodes/{node.node_id}/offer", json=body, headers=owner.headers)
                assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), answer.text
                assert words in answer.json()["message"], answer.text
            shown = (await http.get(f"/v1/nodes/{node.node_id}", headers=owner.headers)).json()["offer"]
            assert shown["audience"] == "anyone"
            job = {"command": ["true"], "kind": "mining"}
            answer = await http.post("/v1/jobs", json=job, headers=submitter.headers)
            assert answer.json()["code"] == "invalid_spec"
            assert "kind 'mining' is unknown; there are compute, gaming, ml" in answer.json()["message"]
    finally:
        await node.close()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["offer"], "Terms go with offer"),
        (["--floor", "3"], "Terms go with offer"),
        (["floor"], "CREDITS goes with floor"),
    ],
)
async def test_terms_and_their_verb_go_together(hub, owner, capsys, arguments, words):
    assert await say("nodes", "attic-pc", *arguments, *access(hub, owner)) == 2
    assert words in capsys.readouterr().err
