"""Signatures and events of providers: what is believed to be theirs, and what can be read of it."""

from __future__ import annotations

import hashlib
import hmac
import json
from datetime import timedelta
from uuid import UUID

import pytest

from computepool.core.errors import InvalidRequest
from computepool.core.payments import webhook
from computepool.core.payments.claim import Claim
from computepool.core.payments.errors import SignatureRefused
from computepool.core.payments.webhook import (
    AMOUNT_MINOR_MAX,
    BODY_BYTES_MAX,
    REPLAY_WINDOW_SECONDS,
    SIGNATURES_MAX,
    check_secrets,
    parse_event,
    sign,
    to_signature_header,
    verify,
)
from tests.support.builders import NOW

OLD, NEW, STRANGER = b"old secret of ours", b"new secret of ours", b"nobody's secret of"
UNIX = int(NOW.timestamp())
SUBJECT = UUID(int=7)
BODY = b'{"id":"evt_1"}'


def header(*secrets: bytes, body: bytes = BODY, at: int = UNIX) -> str:
    return to_signature_header(secrets or (NEW,), body=body, unix_seconds=at)


def check(header: str, body: bytes = BODY, *, secrets=(NEW,), now=NOW) -> None:
    verify(header, body, secrets=secrets, now=now)


def get_reason(header: str, body: bytes = BODY, **how) -> str:
    with pytest.raises(SignatureRefused) as refusal:
        check(header, body, **how)
    return refusal.value.details["why"]


def test_a_signature_is_the_hmac_of_time_dot_body():
    expected = hmac.new(NEW, f"{UNIX}.".encode() + BODY, hashlib.sha256).hexdigest()
    assert sign(NEW, body=BODY, unix_seconds=UNIX) == expected
    assert header() == f"t={UNIX},v1={expected}"


def test_a_signed_body_is_believed():
    check(header())


@pytest.mark.parametrize("body", [b"", b"{}", BODY + b" ", BODY.replace(b"1", b"2"), b"x" * BODY_BYTES_MAX])
def test_a_signature_holds_for_its_own_bytes_only(body):
    assert get_reason(header(), body) == "forged"


def test_a_signature_by_another_secret_is_forged():
    assert get_reason(header(STRANGER)) == "forged"


def test_a_signature_does_not_hold_for_another_time():
    moved = header(at=UNIX - 1).replace(f"t={UNIX - 1}", f"t={UNIX}")
    assert get_reason(moved) == "forged"


@pytest.mark.parametrize("seconds", [-REPLAY_WINDOW_SECONDS, 0, REPLAY_WINDOW_SECONDS])
def test_within_the_window_it_is_believed(seconds):
    check(header(at=UNIX + seconds))


@pytest.mark.parametrize("seconds", [-REPLAY_WINDOW_SECONDS - 1, REPLAY_WINDOW_SECONDS + 1, -86_400, 86_400])
def test_outside_the_window_it_is_late_however_well_signed(seconds):
    assert get_reason(header(at=UNIX + seconds)) == "late"


def test_what_is_forged_and_late_is_called_forged():
    """Who does not know the secret learns nothing of our clock."""
    assert get_reason(header(STRANGER, at=UNIX - 86_400)) == "forged"


def test_while_secrets_are_changed_either_side_may_be_first():
    check(header(OLD), secrets=(NEW, OLD))
    check(header(NEW), secrets=(NEW, OLD))
    check(header(OLD, NEW), secrets=(NEW,))
    assert get_reason(header(OLD), secrets=(NEW,)) == "forged"


def test_without_secrets_nothing_is_believed():
    assert get_reason(header(), secrets=()) == "forged"


DIGEST = "0" * 64


@pytest.mark.parametrize(
    "text",
    [
        "",
        "t=,v1=",
        f"t={UNIX}",
        f"v1={DIGEST}",
        f"t={UNIX},t={UNIX},v1={DIGEST}",
        f"t={UNIX},v1={DIGEST[:-1]}",
        f"t={UNIX},v1={'A' * 64}",
        f"t={UNIX},v1={'é' * 64}",
        f"t=-{UNIX},v1={DIGEST}",
        f"t={UNIX}.5,v1={DIGEST}",
        f"t=٣٤,v1={DIGEST}",
        f"t={'9' * 13},v1={DIGEST}",
        f"t={UNIX},v2={DIGEST}",
        f"t={UNIX}," + ",".join([f"v1={DIGEST}"] * (SIGNATURES_MAX + 1)),
        f"t={UNIX},v1={DIGEST}" + "," * 1_000,
    ],
)
def test_a_header_that_cannot_be_read_is_refused(text):
    assert get_reason(text) == "unreadable"


def test_a_body_that_is_too_large_is_refused_before_anything_is_computed():
    assert get_reason(header(), b"x" * (BODY_BYTES_MAX + 1)) == "too_large"


def test_signatures_are_compared_all_with_all_and_in_constant_time(monkeypatch):
    compared = []

    def compare(a: str, b: str) -> bool:
        compared.append((a, b))
        return hmac_compare(a, b)

    hmac_compare = hmac.compare_digest
    monkeypatch.setattr(webhook.hmac, "compare_digest", compare)
    check(header(NEW, STRANGER), secrets=(NEW, OLD))
    assert len(compared) == 4


# Events


def make_body(**overrides) -> bytes:
    values = {
        "id": "evt_1",
        "kind": "top_up.paid",
        "subject_id": str(SUBJECT),
        "currency": "INR",
        "amount_minor": 50_000,
        "reference": "pay 1",
    }
    return json.dumps({name: value for name, value in {**values, **overrides}.items() if value is not ...}).encode()


def test_an_event_is_read():
    body = make_body(added_later={"by": ["the", "provider"]})
    event = parse_event(body)
    assert event.id == "evt_1"
    assert event.claim == Claim("top_up.paid", SUBJECT, "INR", 50_000, "pay 1")
    assert event.body_sha256 == hashlib.sha256(body).digest()


def test_a_kind_that_we_do_not_know_can_be_read_and_is_judged_later():
    assert parse_event(make_body(kind="dispute.opened")).claim.kind == "dispute.opened"


@pytest.mark.parametrize("field", ["id", "kind", "subject_id", "currency", "amount_minor", "reference"])
@pytest.mark.parametrize("value", [..., None, [], {}, True, 1.5])
def test_an_event_with_a_field_missing_or_of_another_type_is_refused(field, value):
    with pytest.raises(InvalidRequest, match=field):
        parse_event(make_body(**{field: value}))


@pytest.mark.parametrize("amount", [0, -1, 1.0, 50_000.0, "50000", AMOUNT_MINOR_MAX + 1, 10**30])
def test_an_amount_is_a_whole_number_above_zero_and_bounded(amount):
    with pytest.raises(InvalidRequest, match="amount_minor"):
        parse_event(make_body(amount_minor=amount))


@pytest.mark.parametrize("id", ["", "~hand:1", "a b", "a\n", "é", "x" * 201])
def test_an_event_cannot_take_an_id_that_is_ours_or_no_id(id):
    with pytest.raises(InvalidRequest, match="id"):
        parse_event(make_body(id=id))


@pytest.mark.parametrize("currency", ["inr", "IN", "INRS", "IN1", "INR\n"])
def test_a_currency_is_three_capital_letters(currency):
    with pytest.raises(InvalidRequest, match="currency"):
        parse_event(make_body(currency=currency))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"evt_1"',
        b"\xff\xfe",
        b'{"id":',
        b"[" * BODY_BYTES_MAX,
        make_body().replace(b"50000", b"NaN"),
        make_body().replace(b"50000", b"Infinity"),
        make_body().replace(b"50000", b"5e4"),
        make_body().replace(b"50000", b"9" * 5_000),
    ],
    ids=lambda body: body[:12].decode(errors="replace"),
)
def test_what_is_no_event_is_refused_and_nothing_worse_happens(body):
    with pytest.raises(InvalidRequest):
        parse_event(body)


def test_a_field_that_stands_twice_is_refused():
    """One reader would see the first amount and another the last."""
    body = make_body()[:-1] + b', "amount_minor": 1}'
    assert json.loads(body)["amount_minor"] == 1
    with pytest.raises(InvalidRequest, match="twice"):
        parse_event(body)


def test_a_clock_that_is_slow_within_the_window_refuses_nothing():
    check(header(), now=NOW + timedelta(seconds=REPLAY_WINDOW_SECONDS))


@pytest.mark.parametrize("secrets", [(b"",), (NEW, b"short")])
def test_a_secret_that_could_be_guessed_is_refused(secrets):
    with pytest.raises(InvalidRequest, match="16 bytes"):
        check_secrets(secrets)
    check_secrets((NEW, OLD))
    check_secrets(())
