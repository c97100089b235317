"""Disputed pay at a real hub, as people type it: doubted, seen by both sides, decided, and shown by statements."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from uuid import UUID

import httpx
import pytest

from computepool.cli.main import run
from computepool.core.errors import NotFound
from computepool.core.ids import AccountId
from computepool.core.ledger.dispute import DisputeRefused, DisputeState
from computepool.core.payments.cash import CREDIT
from computepool.sdk import Client
from tests.support.earnings import Pay, insert_pay, list_faults
from tests.support.hub_process import HubProcess
from tests.support.people import Person, sign_in_operator, sign_up
from tests.support.postgres import connected, wait_for

# A sweeper looks every five seconds.
SWEEP_SECONDS = 30.0


@pytest.fixture
def hub(start_hub: Callable[..., HubProcess]) -> HubProcess:
    return start_hub(welcome_microcredits=5_000 * CREDIT)


class Terminal:
    def __init__(self, hub: HubProcess, key: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._where, self._capsys = ["--hub-url", hub.url, "--key", key], capsys

    def type(self, *words: str, code: int = 0) -> str:
        self._capsys.readouterr()
        done = run([*words, *self._where])
        said = self._capsys.readouterr()
        assert done == code, said.err
        return said.out + said.err


async def earn(dsn: str, owner: Person, submitter: Person, *credits: int, due_seconds_ago: float) -> Pay:
    async with connected(dsn) as conn:
        await conn.set_type_codec("jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        return await insert_pay(
            conn,
            owner_id=AccountId(UUID(owner.account_id)),
            submitter_id=AccountId(UUID(submitter.account_id)),
            prices=[each * CREDIT for each in credits],
            due_seconds_ago=due_seconds_ago,
        )


async def find_node(dsn: str, pay: Pay) -> str:
    async with connected(dsn) as conn:
        return str(await conn.fetchval("SELECT node_id FROM attempts WHERE job_id = $1 LIMIT 1", pay.job_id))


@pytest.mark.timeout(280)
async def test_a_submitter_doubts_the_owner_reads_why_and_the_operator_decides(hub, dsn, capsys):
    alice, bob = sign_up(hub.url, "alice"), sign_up(hub.url, "bob")
    her, him = Terminal(hub, alice.key, capsys), Terminal(hub, bob.key, capsys)
    operator = Terminal(hub, sign_in_operator(hub.url, hub.log_path.read_text()).key, capsys)
    pay = await earn(dsn, bob, alice, 100, 200, 400, due_seconds_ago=-86_400)
    job, node = str(pay.job_id), await find_node(dsn, pay)

    assert "--slice" in her.type("credits", "dispute", job, "it is black", code=2)
    assert "frozen until the operator decides" in her.type("credits", "dispute", job, "it is black", "--slice", "0")
    said = json.loads(her.type("credits", "dispute", job, "this one too", "--slice", "1", "--json"))
    assert (said["side"], said["dispute"]["charged_microcredits"]) == ("submitter", 200 * CREDIT)
    assert "(not_found)" in him.type("credits", "dispute", job, "mine!", code=2)

    # The owner reads why, wherever they look.
    assert re.search(r"disputed +240 +of what is pending", him.type("credits"))
    assert re.search(r"your node +100 +open +it is black", him.type("credits", "disputes"))
    day = str(json.loads(him.type("statement", "--node", node, "--json"))["attempts"][0]["finished_at"])[:10]
    assert "dispute, open: it is black" in him.type("why", "--payment", "--node", node, "--day", day)
    assert "dispute open: it is black" in him.type("statement", "--node", node)
    assert "this one too" in him.type("statement", "--node", node, "--csv")

    # The operator decides: one each way, and a third at once.
    listed = operator.type("credits", "disputes", "--all")
    assert "it is black" in listed
    assert "this one too" in listed
    found = json.loads(operator.type("credits", "disputes", "--all", "--json"))
    [first, second] = [each["dispute"]["id"] for each in found]
    assert "100 credits went back" in operator.type("credits", "uphold", first[-8:], "black indeed")
    assert "is dismissed" in operator.type("credits", "dismiss", second, "it is as it was ordered")
    assert "(dispute_refused)" in operator.type("credits", "uphold", second, "no, after all", code=2)
    assert "400 credits went back" in operator.type("credits", "reverse", str(pay.attempt_ids[2]), "copied")
    assert "No pay is in dispute" in operator.type("credits", "disputes", "--all")
    assert "(forbidden)" in her.type("credits", "disputes", "--all", code=2)

    # Everybody reads what became of it, and the books are exact.
    assert re.search(r"your job +100 +upheld +it is black +black indeed", her.type("credits", "disputes"))
    assert "500.000000 credits came back" in her.type("statement", "--job", job)
    assert "decided: black indeed" in him.type("why", "--payment", "--node", node, "--day", day)
    with Client(hub.url, alice.key) as client:
        assert client.credits.get().available_microcredits == (5_000 - 200) * CREDIT
    with Client(hub.url, bob.key) as client:
        found = client.credits.get()
        assert (found.pending_microcredits, found.disputed_microcredits) == (160 * CREDIT, 0)
    async with connected(dsn) as conn:
        assert await list_faults(conn) == []


@pytest.mark.timeout(280)
async def test_it_is_too_late_after_the_release_but_not_for_the_operator(hub, dsn):
    alice, bob = sign_up(hub.url, "alice"), sign_up(hub.url, "bob")
    operator = sign_in_operator(hub.url, hub.log_path.read_text())
    pay = await earn(dsn, bob, alice, 100, due_seconds_ago=1)
    with Client(hub.url, alice.key) as hers, Client(hub.url, bob.key) as his, Client(hub.url, operator.key) as desk:
        await wait_for(
            lambda: his.credits.get().earned_microcredits == 80 * CREDIT, seconds=SWEEP_SECONDS, what="the release"
        )
        with pytest.raises(DisputeRefused) as refusal:
            hers.disputes.open(job_id=pay.job_id, reason="it is black")
        assert refusal.value.details == {"reason": "released"}
        first, again = [desk.disputes.reverse(attempt_id=pay.attempt_ids[0], reason="copied") for _ in range(2)]
        assert first == again
        assert first.dispute.state is DisputeState.UPHELD
        assert [each.dispute.id for each in desk.disputes.everybodys(state=DisputeState.UPHELD)] == [first.dispute.id]
        assert his.disputes.get(dispute_id=first.dispute.id).dispute.reason == "copied"
        assert his.credits.get().earned_microcredits == 0
        stranger = sign_up(hub.url, "mallory")
        with Client(hub.url, stranger.key) as nobody, pytest.raises(NotFound):
            nobody.disputes.get(dispute_id=first.dispute.id)
        assert desk.books.check_balances().drifts == []


BAD = [
    {},
    {"job_id": "x", "slice_index": 0, "reason": "y"},
    {"job_id": str(UUID(int=7)), "slice_index": -1, "reason": "y"},
    {"job_id": str(UUID(int=7)), "slice_index": 1e30, "reason": "y"},
    {"job_id": str(UUID(int=7)), "slice_index": 0, "number": 2**40, "reason": "y"},
    {"job_id": str(UUID(int=7)), "slice_index": 0, "reason": ""},
    {"job_id": str(UUID(int=7)), "slice_index": 0, "reason": "y" * 301},
    {"job_id": str(UUID(int=7)), "slice_index": 0, "reason": "a\u0000b"},
    {"job_id": str(UUID(int=7)), "slice_index": 0, "reason": 5},
    {"job_id": str(UUID(int=7)), "slice_index": 0, "reason": "y", "amount": 5},
]


def test_bad_input_is_answered_with_400_and_words(hub):
    person = sign_up(hub.url)
    for body in BAD:
        answer = httpx.post(f"{hub.url}/v1/credits/disputes", json=body, headers=person.headers, timeout=20)
        assert answer.status_code == 400, (body, answer.text)
        assert answer.json()["message"]
