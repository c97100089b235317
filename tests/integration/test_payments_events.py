"""Words of a provider that come twice, late, early, from others, or are lies: each counts once, or not at all."""

from __future__ import annotations

from typing import TypeVar
from uuid import UUID

import pytest

from computepool.core.ledger.accounts import AccountKind
from computepool.core.payments.cash import CREDIT
from computepool.core.payments.webhook import REPLAY_WINDOW_SECONDS
from computepool.hub.services import provider_events
from tests.support.payment_lab import PAY
from tests.support.payment_provider import SECRET

K = AccountKind
Answer = TypeVar("Answer")


async def test_an_event_that_is_told_many_times_counts_once(lab, provider):
    person = await lab.sign_up()
    top_up = await lab.request_top_up(person, 20)
    event = provider.pay(top_up.id)
    answers = await provider.tell(event, event) + await provider.tell_at_once(*[event] * 6)
    assert {answer["verdict"] for _, answer in answers} == {"applied"}
    assert sum(not answer["repeated"] for _, answer in answers) == 1
    assert await lab.get_balance(K.SUBMITTER_AVAILABLE, person) == 20 * CREDIT
    await lab.check_books()


async def test_an_event_that_arrives_on_many_connections_before_it_was_ever_heard_counts_once(lab, provider):
    person = await lab.sign_up()
    top_up = await lab.request_top_up(person, 20)
    answers = await provider.tell_at_once(*[provider.pay(top_up.id)] * 8)
    assert [answer["repeated"] for _, answer in answers].count(False) == 1
    await lab.check_books()


async def test_the_same_fact_under_two_ids_counts_once(lab, provider):
    top_up = await lab.request_top_up(await lab.sign_up(), 20)
    event = provider.pay(top_up.id)
    answers = await provider.tell_at_once(event, event.under_new_id(), event.under_new_id())
    assert sorted(answer["verdict"] for _, answer in answers) == ["applied", "old_news", "old_news"]
    await lab.check_books()


async def test_a_forged_event_changes_nothing_and_does_not_take_the_true_ones_id(lab, provider):
    person = await lab.sign_up()
    top_up = await lab.request_top_up(person, 20)
    event = provider.pay(top_up.id)
    assert await provider.tell(event, secrets=(b"a secret of my own",)) == [
        (400, {"code": "signature_refused", "why": "forged"})
    ]
    assert await lab.fetch_value("SELECT count(*) FROM provider_events") == 0
    [(_, answer)] = await provider.tell(event)
    assert answer["verdict"] == "applied"
    await lab.check_books()


async def test_an_event_signed_too_long_ago_is_refused_and_can_be_signed_anew(lab, provider):
    top_up = await lab.request_top_up(await lab.sign_up(), 20)
    event = provider.pay(top_up.id)
    [(_, late)] = await provider.tell(event, seconds_ago=REPLAY_WINDOW_SECONDS + 5)
    assert late == {"code": "signature_refused", "why": "late"}
    [(_, anew)] = await provider.tell(event)
    assert anew["verdict"] == "applied"
    await lab.check_books()


async def test_while_secrets_are_changed_both_are_good(lab, provider):
    top_up = await lab.request_top_up(await lab.sign_up(), 20)
    [(_, answer)] = await provider.tell(provider.pay(top_up.id), secrets=(b"the next secret of ours", SECRET))
    assert answer["verdict"] == "applied"


@pytest.mark.parametrize(
    ("lie", "doubt"),
    [
        ({"amount_minor": 2_001}, "amount_mismatch"),
        ({"amount_minor": 200_000}, "amount_mismatch"),
        ({"currency": "USD"}, "currency_mismatch"),
        ({"subject_id": str(UUID(int=5))}, "unknown_subject"),
        ({"kind": "top_up.doubled"}, "unknown_kind"),
        ({"kind": "payout.confirmed"}, "unknown_subject"),
    ],
)
async def test_a_lie_is_refused_recorded_and_shown_to_the_operator(lab, provider, lie, doubt):
    person = await lab.sign_up()
    top_up = await lab.request_top_up(person, 20)
    lying = provider.pay(top_up.id).lie(**lie)
    provider.movements.clear()
    answers = await provider.tell(lying, lying)
    assert [(a["verdict"], a["doubt"], a["repeated"]) for _, a in answers] == [
        ("refused", doubt, False),
        ("refused", doubt, True),
    ]
    assert await lab.get_top_up(top_up.id) == "requested"
    [shown] = await provider_events.list_refused_events(lab.pool, limit=10)
    assert (shown.claim.amount_minor, shown.doubt.value) == (lying.body["amount_minor"], doubt)
    assert await lab.fetch_value("SELECT count(*) FROM events WHERE kind = 'provider_event_refused'") == 1
    await provider_events.review_event(
        lab.pool, lab.operator, provider=PAY, event_id=shown.event_id, note="called them"
    )
    assert await provider_events.list_refused_events(lab.pool, limit=10) == []
    await lab.check_books()


async def test_an_id_that_is_used_for_something_else_is_refused_and_told(lab, provider):
    person = await lab.sign_up()
    one, other = [await lab.request_top_up(person, 20) for _ in range(2)]
    event = provider.pay(one.id)
    second = provider.pay(other.id).lie(id=event.body["id"])
    answers = await provider.tell(event, second)
    assert [(a["verdict"], a["doubt"]) for _, a in answers] == [("applied", None), ("refused", "reused_id")]
    assert await lab.get_top_up(other.id) == "requested"
    assert await lab.fetch_value("SELECT body->>'doubt' FROM events WHERE kind = 'provider_event_refused'") == (
        "reused_id"
    )


async def test_an_event_that_is_no_event_is_refused(lab, provider):
    top_up = await lab.request_top_up(await lab.sign_up(), 20)
    event = provider.pay(top_up.id)
    answers = await provider.tell(event.lie(amount_minor=20.0), event.lie(id="~hand:mine"), event.lie(kind=None))
    assert [(status, answer["code"]) for status, answer in answers] == [(400, "invalid_request")] * 3
    assert await lab.get_top_up(top_up.id) == "requested"


async def test_words_in_the_wrong_order_come_to_the_same(lab, provider):
    person = await lab.sign_up()
    top_up = await lab.request_top_up(person, 20)
    given_up, paid, gone = provider.give_up(top_up.id), provider.pay(top_up.id), provider.charge_back(top_up.id)
    answers = await provider.tell(gone, paid, given_up)
    assert [answer["verdict"] for _, answer in answers] == ["applied", "old_news", "old_news"]
    assert await lab.get_top_up(top_up.id) == "charged_back"
    assert await lab.get_balance(K.SUBMITTER_AVAILABLE, person) == 0
    await lab.check_books()


async def test_cash_that_comes_after_all_counts(lab, provider):
    person = await lab.sign_up()
    top_up = await lab.request_top_up(person, 20)
    await provider.tell(provider.give_up(top_up.id))
    assert await lab.get_top_up(top_up.id) == "failed"
    await provider.tell(provider.pay(top_up.id))
    assert await lab.get_balance(K.SUBMITTER_AVAILABLE, person) == 20 * CREDIT
    await lab.check_books()
