"""Money in and out at a real hub, with a real provider on a real socket: paid in, earned, cashed out, charged back.

Nobody gets a welcome here, so that every credit in the books is cash that somebody moved.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import httpx
import pytest

from computepool.cli.main import run
from computepool.core.ids import AccountId
from computepool.core.ledger.accounts import AccountKind
from computepool.core.payments.books import list_differences
from computepool.core.payments.cash import CREDIT
from computepool.core.payments.errors import AccountFrozen, PayoutCoolingOff
from computepool.core.payments.payout import PayoutState
from computepool.core.payments.webhook import BODY_BYTES_MAX, SIGNATURE_HEADER
from computepool.hub.http.credits import EVENTS_PER_MINUTE
from computepool.hub.store import ledger, payments
from computepool.sdk import Client
from tests.support.earnings import insert_pay, list_faults
from tests.support.hub_process import HubProcess
from tests.support.payment_lab import FAR_AHEAD, LONG_AGO
from tests.support.payment_provider import PaymentProvider, run_provider
from tests.support.people import Person, sign_in_operator, sign_up
from tests.support.postgres import connected, wait_for

OLD_SECRET, NEW_SECRET = b"the-old-secret-of-both", b"the-new-secret-of-both"
# A sweeper looks every five seconds.
SWEEP_SECONDS = 30.0


@pytest.fixture
def provider() -> Iterator[PaymentProvider]:
    with run_provider() as provider:
        provider.secrets = (OLD_SECRET,)
        yield provider


@pytest.fixture
def cash_hub(start_hub: Callable[..., HubProcess], provider: PaymentProvider) -> HubProcess:
    hub = start_hub(
        welcome_microcredits=0,
        holdback_seconds=0,
        payment_provider="webhook",
        payment_name="acme",
        payment_url=provider.url,
        payment_secrets=f"{OLD_SECRET.decode()} {NEW_SECRET.decode()}",
        payout_cool_off_seconds=0,
    )
    provider.hook_url = f"{hub.url}/v1/credits/providers/acme/events"
    return hub


@pytest.fixture
def operator_client(cash_hub: HubProcess) -> Iterator[Client]:
    operator = sign_in_operator(cash_hub.url, cash_hub.log_path.read_text())
    with Client(cash_hub.url, operator.key) as client:
        yield client


def open_account(hub: HubProcess, name: str) -> tuple[Person, Client]:
    person = sign_up(hub.url, name)
    return person, Client(hub.url, person.key)


async def pay_in(client: Client, provider: PaymentProvider, credits: int) -> UUID:
    top_up = await asyncio.to_thread(client.credits.top_up, credits=credits)
    assert top_up.pay_url.startswith(provider.url)
    [(status, answer)] = await provider.tell(provider.pay(top_up.id))
    assert (status, answer["verdict"]) == (200, "applied"), answer
    return top_up.id


async def earn(dsn: str, owner: Person, submitter: Person, credits: int) -> None:
    """What a job of the submitter's has cost, as far as the books and the owner's attempt know of it."""
    async with connected(dsn) as conn:
        await conn.set_type_codec("jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        await insert_pay(
            conn,
            owner_id=AccountId(UUID(owner.account_id)),
            submitter_id=AccountId(UUID(submitter.account_id)),
            prices=[credits * CREDIT],
        )


async def check_books(dsn: str, provider: PaymentProvider) -> None:
    """Ours add up to the last microcredit, and the provider's own say the same of every top-up and payout."""
    async with connected(dsn) as conn:
        assert await ledger.list_drifts(conn) == []
        ours = await payments.list_cash_movements(conn, since=LONG_AGO, until=FAR_AHEAD)
    assert list_differences(ours, provider.movements) == []


async def sum_balances(dsn: str, kind: AccountKind) -> int:
    async with connected(dsn) as conn:
        return await conn.fetchval(
            "SELECT coalesce(sum(balance), 0)::bigint FROM ledger_accounts WHERE kind::text = $1", kind.value
        )


def get_state(client: Client, payout_id: UUID) -> PayoutState:
    return client.credits.get_payout(payout_id=payout_id).state


@pytest.mark.timeout(280)
async def test_a_charged_back_top_up_that_was_spent_leaves_exact_books_a_visible_loss_and_a_frozen_account(
    cash_hub, dsn, provider, operator_client
):
    (alice, alice_client), (bob, bob_client) = open_account(cash_hub, "alice"), open_account(cash_hub, "bob")
    top_up_id = await pay_in(alice_client, provider, 1_000)
    assert alice_client.credits.get().available_microcredits == 1_000 * CREDIT

    # Alice's job has cost 800 credits, of which Bob's part is 640. The holdback is over at once.
    await earn(dsn, bob, alice, 800)
    await wait_for(
        lambda: bob_client.credits.get().earned_microcredits == 640 * CREDIT,
        seconds=SWEEP_SECONDS,
        what="the release",
    )
    async with connected(dsn) as conn:
        assert await list_faults(conn) == []

    # Bob cashes 600 out.
    bob_client.credits.set_payout_details(region="IN", destination="HDFC 0001")
    payout = bob_client.credits.cash_out(credits="600.000001")
    assert (payout.state, payout.amount_microcredits) == (PayoutState.RESERVED, 600 * CREDIT)
    [waiting] = operator_client.operator_credits.payouts()
    assert (waiting.payout.id, waiting.destination) == (payout.id, "HDFC 0001")
    operator_client.operator_credits.approve_payout(payout_id=payout.id)
    await wait_for(
        lambda: get_state(bob_client, payout.id) is PayoutState.SENT, seconds=SWEEP_SECONDS, what="the payout"
    )
    # The hub notes that it sends before it does.
    await wait_for(lambda: payout.id in provider.entries, seconds=SWEEP_SECONDS, what="the call")
    assert provider.entries[payout.id].destination == "HDFC 0001"
    assert [answer["verdict"] for _, answer in await provider.tell(provider.confirm(payout.id))] == ["applied"]
    assert get_state(bob_client, payout.id) is PayoutState.CONFIRMED
    assert bob_client.credits.get().earned_microcredits == 40 * CREDIT
    await check_books(dsn, provider)

    # Alice's bank takes the 1,000 back. There are 400 left in the pool: it is kept, and Alice is frozen already.
    chargeback = provider.charge_back(top_up_id)
    [(_, answer)] = await provider.tell(chargeback)
    assert (answer["verdict"], answer["doubt"]) == ("refused", "cash_short")
    assert alice_client.credits.get().frozen_at is not None
    [event] = operator_client.operator_credits.list_refused_events()
    assert event.event_id == chargeback.body["id"]

    # Somebody pays in, and it can be booked.
    _, carol_client = open_account(cash_hub, "carol")
    await pay_in(carol_client, provider, 1_000)
    operator_client.operator_credits.hear_event_again(provider="acme", event_id=event.event_id)
    await check_books(dsn, provider)
    found = alice_client.credits.get()
    assert (found.available_microcredits, found.owed_microcredits) == (0, 800 * CREDIT)
    # The loss is what people owe us: the pool holds that much less than it owes.
    assert await sum_balances(dsn, AccountKind.RECEIVABLE) == -800 * CREDIT
    assert await sum_balances(dsn, AccountKind.WORLD) == -400 * CREDIT
    [freeze] = operator_client.operator_credits.freezes()
    assert (freeze.account_id, freeze.top_up_id) == (UUID(alice.account_id), top_up_id)
    with pytest.raises(AccountFrozen):
        alice_client.credits.spend_earnings(credits=1)

    # She pays her debt, and the operator lets her go on.
    await pay_in(alice_client, provider, 1_000)
    found = alice_client.credits.get()
    assert (found.available_microcredits, found.owed_microcredits) == (200 * CREDIT, 0)
    operator_client.operator_credits.lift_freeze(account_id=UUID(alice.account_id))
    assert alice_client.credits.get().frozen_at is None
    await check_books(dsn, provider)
    assert len({id for id, _ in provider.orders}) == len(provider.orders) == 1


async def test_only_the_provider_is_believed_and_either_secret_will_do_while_they_change(cash_hub, provider):
    _, client = open_account(cash_hub, "alice")
    first = client.credits.top_up(credits=10)
    event = provider.pay(first.id)

    async def tell(**how: Any) -> tuple[int, str]:
        [(status, answer)] = await provider.tell(event, **how)
        return status, answer.get("code") or answer["verdict"]

    assert await tell(secrets=(b"a secret of somebody else",)) == (401, "signature_refused")
    assert await tell(seconds_ago=400) == (401, "signature_refused")
    assert client.credits.get().available_microcredits == 0
    assert await tell(secrets=(NEW_SECRET,)) == (200, "applied")
    assert await tell(secrets=(OLD_SECRET,)) == (200, "applied")
    assert client.credits.get().available_microcredits == 10 * CREDIT
    [(_, lie)] = await provider.tell(event.lie(amount_minor=1).under_new_id())
    assert lie["doubt"] == "amount_mismatch"


def post_event(hub: HubProcess, name: str, body: bytes, header: str = "t=1,v1=" + "0" * 64) -> httpx.Response:
    path = f"/v1/credits/providers/{name}/events"
    return httpx.post(hub.url + path, content=body, headers={SIGNATURE_HEADER: header} if header else {}, timeout=20)


def test_the_providers_door_lets_nothing_else_in(cash_hub):
    assert post_event(cash_hub, "nobody", b"{}").status_code == 404
    assert post_event(cash_hub, "acme", b"{}").json()["code"] == "signature_refused"
    assert post_event(cash_hub, "acme", b"{}", header="").json()["code"] == "signature_refused"
    assert post_event(cash_hub, "acme", b"\xff" * (BODY_BYTES_MAX + 1)).status_code == 413
    # The operator's hand has no secret: nobody can speak in its name.
    assert post_event(cash_hub, "manual", b"{}").status_code == 401


async def test_a_flood_at_the_providers_door_is_held_up_there_and_nowhere_else(cash_hub):
    async with httpx.AsyncClient(base_url=cash_hub.url, timeout=20, trust_env=False) as http:

        async def knock() -> int:
            return (await http.post("/v1/credits/providers/acme/events", content=b"{}")).status_code

        # The bucket holds ten seconds' worth, and fills up while we knock.
        statuses: set[int] = set()
        for _ in range(EVENTS_PER_MINUTE // 10):
            statuses.update(await asyncio.gather(*(knock() for _ in range(20))))
            if 429 in statuses:
                break
        assert statuses == {401, 429}
        assert (await http.get("/v1/hub")).status_code == 200


BAD_AMOUNTS = ["0", "-1", "1.5", "1.0", "true", '"5"', "null", "1e3", "99999999999999999999", "1000000000000001"]


@pytest.mark.parametrize("path", ["top-ups", "payouts", "spend-earnings"])
def test_an_amount_that_is_none_is_answered_with_400(cash_hub, path):
    person = sign_up(cash_hub.url)
    for number, amount in enumerate(BAD_AMOUNTS):
        answer = httpx.post(
            f"{cash_hub.url}/v1/credits/{path}",
            content=f'{{"amount_microcredits": {amount}}}',
            headers={**person.headers, "Idempotency-Key": f"k{number}"},
            timeout=20,
        )
        assert answer.status_code == 400, (amount, answer.text)
    without_key = httpx.post(
        f"{cash_hub.url}/v1/credits/{path}",
        json={"amount_microcredits": 10 * CREDIT},
        headers=person.headers,
        timeout=20,
    )
    assert without_key.status_code == 400
    assert "idempotency key" in without_key.json()["message"]


def test_a_request_that_is_repeated_with_its_key_is_one_top_up(cash_hub, provider):
    _, client = open_account(cash_hub, "alice")
    first, again = [client.credits.top_up(credits=20, idempotency_key="once") for _ in range(2)]
    assert first == again
    assert len(provider.entries) == 1
    assert [each.id for each in client.credits.list_top_ups().top_ups] == [first.id]
    assert client.credits.list_top_ups(limit=1).cursor == str(first.id)
    assert client.credits.list_top_ups(cursor=str(first.id)).top_ups == []


def test_changed_details_stop_payouts_for_a_while(start_hub):
    hub = start_hub(welcome_microcredits=0)
    _, client = open_account(hub, "owner")
    client.credits.set_payout_details(region="IN", destination="a new place")
    with pytest.raises(PayoutCoolingOff) as caught:
        client.credits.cash_out(credits=500)
    assert caught.value.details["retry_after_seconds"] > 3_600


# The whole way by hand, as people type it


class Terminal:
    def __init__(self, hub: HubProcess, key: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._where, self._capsys = ["--hub-url", hub.url, "--key", key], capsys

    def type(self, *words: str, code: int = 0) -> str:
        self._capsys.readouterr()
        done = run(["credits", *words, *self._where])
        said = self._capsys.readouterr()
        assert done == code, said.err
        return said.out + said.err

    def read(self, balance: str) -> str:
        return dict(line.split()[:2] for line in self.type().splitlines())[balance]


@pytest.mark.timeout(280)
async def test_by_hand_money_comes_in_and_goes_out_on_the_bank_statements_word(start_hub, dsn, capsys):
    hub = start_hub(
        welcome_microcredits=0, payment_instructions="Pay to bank 1.", payout_cool_off_seconds=0, holdback_seconds=0
    )
    operator = Terminal(hub, sign_in_operator(hub.url, hub.log_path.read_text()).key, capsys)
    (alice, _), (bob, bob_client) = open_account(hub, "alice"), open_account(hub, "bob")
    her, him = Terminal(hub, alice.key, capsys), Terminal(hub, bob.key, capsys)

    said = her.type("top-up", "1000")
    assert "Pay to bank 1." in said
    [reference] = re.findall(r"CP-[0-9A-F]{12}", said)
    assert reference in operator.type("top-ups")
    assert "(payment_refused)" in operator.type("confirm", reference, "INR999.99", "UTR 1", code=2)
    assert "in the books" in operator.type("confirm", reference.lower(), "INR1000", "UTR 1")
    assert her.read("available") == "1,000"
    # One line of a bank's statement vouches for one payment.
    [another] = re.findall(r"CP-[0-9A-F]{12}", her.type("top-up", "1000"))
    assert "(payment_refused)" in operator.type("confirm", another, "INR1000", "UTR 1", code=2)

    await earn(dsn, bob, alice, 1_000)
    await wait_for(
        lambda: bob_client.credits.get().earned_microcredits == 800 * CREDIT,
        seconds=SWEEP_SECONDS,
        what="the release",
    )
    assert him.read("earned") == "800"
    assert "(payout_details_missing)" in him.type("cash-out", "600", code=2)
    assert "currency   INR" in him.type("details", "--region", "in", "--to", "HDFC 0001")
    assert "(payout_below_minimum)" in him.type("cash-out", "499.999999", code=2)
    assert "800 credits" in him.type("cash-out", "801", code=2)
    cancelled = json.loads(him.type("cash-out", "500", "--json"))["id"]
    assert "credits are yours again" in him.type("cancel", cancelled)
    payout = json.loads(him.type("cash-out", "600", "--json"))["id"]
    assert "HDFC 0001" in operator.type("payouts")
    assert "approved" in operator.type("approve", payout[-8:])
    await wait_for(
        lambda: get_state(bob_client, UUID(payout)) is PayoutState.SENT, seconds=SWEEP_SECONDS, what="the payout"
    )
    assert "in the books" in operator.type("confirm", payout[-8:], "INR600.00", "UTR 2")
    assert "was said before" in operator.type("record", "payout.confirmed", payout, "INR600.00", "UTR 2")
    assert "in the books" in operator.type("record", "payout.returned", payout, "INR600.00", "UTR 3")
    him.type("spend", "0.5")
    assert (him.read("earned"), him.read("available")) == ("799.5", "0.5")
    history = him.type("history")
    assert re.search(r"payout +\S+ +-600 +INR 600.00 +returned", history)
    assert re.search(r"payout +\S+ +-500 +INR 500.00 +failed +cancelled by the owner", history)

    # What is spent cannot be refunded; what is not, can.
    [paid] = json.loads(operator.type("top-ups", "--state", "paid", "--json"))
    assert "(insufficient_credits)" in operator.type("refund", paid["top_up"]["id"], code=2)
    assert "in the books" in operator.type("confirm", another, "INR1000", "UTR 4")
    [newest, _] = json.loads(operator.type("top-ups", "--state", "paid", "--json"))
    assert "send INR 1,000.00 back" in operator.type("refund", newest["top_up"]["id"])
    assert "No account is frozen" in operator.type("freezes")
    assert "was believed" in operator.type("events")
    async with connected(dsn) as conn:
        assert await ledger.list_drifts(conn) == []


def test_a_hub_that_moves_money_at_example_rates_says_so_to_its_operator(start_hub, capsys):
    hub = start_hub(demo="false", cash_rates="USD=884500", cash_rates_date="2020-01-31")
    assert "cash_rates_doubtful EUR, GBP: the rates are the examples" in hub.log_path.read_text()
    operator = sign_in_operator(hub.url, hub.log_path.read_text())
    found = Client(hub.url, operator.key).operator_credits.cash_rates()
    assert {rate.currency: rate.is_example for rate in found.rates} == {
        "INR": False,
        "USD": False,
        "EUR": True,
        "GBP": True,
    }
    assert [words.partition(":")[0] for words in found.warnings] == [
        "EUR, GBP",
        "The rates of cash are of 2020-01-31",
    ]
    for command in ("rates", "payouts"):
        assert run(["credits", command, "--hub-url", hub.url, "--key", operator.key]) == 0
        assert capsys.readouterr().err.count("WARNING: ") == 2
