"""What the schema of payments refuses: each statement breaks one rule and no other. The account 1 is there."""

from __future__ import annotations

from uuid import UUID

from computepool.core.payments.claim import Verdict
from computepool.core.payments.payout import PayoutState
from computepool.core.payments.top_up import TopUpState

ENUMS = {"top_up_state": TopUpState, "payout_state": PayoutState, "claim_verdict": Verdict}

_PERSON, _ID, _DETAILS = UUID(int=1), UUID(int=50), UUID(int=51)
_AT = "now()"

# How far a payout in each state has come.
_RESERVED = {"state": "reserved", "reserved_at": _AT}
_APPROVED = {**_RESERVED, "state": "approved", "approved_at": _AT, "approved_by": str(_PERSON)}
_SENT = {**_APPROVED, "state": "sent", "sent_at": _AT}
_CONFIRMED = {**_SENT, "state": "confirmed", "confirmed_at": _AT}
_RETURNED = {**_CONFIRMED, "state": "returned", "returned_at": _AT}
_FAILED = {**_RESERVED, "state": "failed", "failed_at": _AT, "failure": "no such account"}


def _insert(table: str, values: dict[str, object]) -> str:
    """A None is left out."""
    given = {name: value for name, value in values.items() if value is not None}
    words = [str(value) if value == _AT else f"'{value}'" for value in given.values()]
    return f"INSERT INTO {table} ({', '.join(given)}) VALUES ({', '.join(words)})"


def insert_freeze(**changes: object) -> str:
    return _insert("account_freezes", {"id": _ID, "account_id": _PERSON, "why": "cash taken back", **changes})


def insert_top_up(**changes: object) -> str:
    row = {
        "id": _ID,
        "account_id": _PERSON,
        "idempotency_key": "k",
        "provider": "pay",
        "currency": "INR",
        "amount_minor": 100,
        "amount_microcredits": 1_000_000,
    }
    return _insert("top_ups", {**row, **changes})


def insert_details(**changes: object) -> str:
    row = {"id": _DETAILS, "account_id": _PERSON, "region": "IN", "currency": "INR", "destination": "bank 1"}
    return _insert("payout_details", {**row, **changes})


def insert_payout(**changes: object) -> str:
    """With the details that it goes to."""
    row = {
        "id": _ID,
        "account_id": _PERSON,
        "idempotency_key": "k",
        "asked_microcredits": 1_000_000,
        "provider": "pay",
        "details_id": _DETAILS,
        "currency": "INR",
        "amount_minor": 100,
        "amount_microcredits": 1_000_000,
    }
    return f"{insert_details()}; {_insert('payouts', {**row, **changes})}"


def insert_event(**changes: object) -> str:
    row = {
        "provider": "pay",
        "event_id": "evt_1",
        "kind": "top_up.paid",
        "subject_id": _ID,
        "currency": "INR",
        "amount_minor": 100,
        "reference": "pay_1",
        "body_sha256": "",
        "verdict": "applied",
    }
    return _insert("provider_events", {**row, **changes})


# Nothing is wrong with these: what is refused below is refused for what was changed.
POSSIBLE = [
    insert_freeze(),
    insert_freeze(lifted_at=_AT, lifted_by=_PERSON),
    insert_top_up(),
    insert_top_up(state="failed"),
    insert_top_up(state="paid", paid_at=_AT),
    *(
        insert_top_up(state=state, paid_at=_AT, paid_back_at=_AT)
        for state in ("refunded", "charged_back", "paid_back_twice")
    ),
    insert_details(),
    insert_payout(),
    *(insert_payout(**row) for row in (_RESERVED, _APPROVED, _SENT, _CONFIRMED, _RETURNED, _FAILED)),
    insert_payout(**{**_SENT, "state": "unknown"}),
    # It was sent, and came to nothing.
    insert_payout(**{**_SENT, **_FAILED}),
    insert_event(),
    insert_event(verdict="refused", doubt="amount", reviewed_at=_AT, reviewed_by=_PERSON),
]

# The rows of tests/integration/test_schema.py's table, for payments.
IMPOSSIBLE = [
    ("account_freezes_lifted_check", insert_freeze(lifted_at=_AT)),
    ("account_freezes_lifted_check", insert_freeze(lifted_by=_PERSON)),
    *(("top_ups_currency_check", insert_top_up(currency=currency)) for currency in ("inr", "IN", "INRS", "")),
    ("top_ups_minor_check", insert_top_up(amount_minor=0)),
    ("top_ups_amount_check", insert_top_up(amount_microcredits=0)),
    ("top_ups_amount_check", insert_top_up(amount_microcredits=10**15 + 1)),
    ("top_ups_paid_check", insert_top_up(state="paid")),
    ("top_ups_paid_check", insert_top_up(paid_at=_AT)),
    ("top_ups_paid_check", insert_top_up(state="failed", paid_at=_AT)),
    ("top_ups_paid_check", insert_top_up(state="charged_back", paid_back_at=_AT)),
    *(
        ("top_ups_paid_back_check", insert_top_up(state=state, paid_at=_AT))
        for state in ("refunded", "charged_back", "paid_back_twice")
    ),
    ("top_ups_paid_back_check", insert_top_up(state="paid", paid_at=_AT, paid_back_at=_AT)),
    *(("payout_details_region_check", insert_details(region=region)) for region in ("in", "IND", "I", "")),
    ("payout_details_currency_check", insert_details(currency="inr")),
    ("payouts_currency_check", insert_payout(currency="inr")),
    ("payouts_minor_check", insert_payout(amount_minor=0)),
    ("payouts_amount_check", insert_payout(amount_microcredits=0)),
    ("payouts_amount_check", insert_payout(amount_microcredits=1_000_001)),
    ("payouts_asked_check", insert_payout(asked_microcredits=10**15 + 1)),
    ("payouts_reserved_check", insert_payout(state="reserved")),
    ("payouts_reserved_check", insert_payout(reserved_at=_AT)),
    ("payouts_approved_check", insert_payout(**{**_APPROVED, "approved_at": None, "approved_by": None})),
    ("payouts_approved_check", insert_payout(**{**_APPROVED, "approved_by": None})),
    ("payouts_approved_check", insert_payout(**{**_RESERVED, "approved_by": _PERSON})),
    *(
        ("payouts_sent_check", insert_payout(**{**row, "sent_at": None}))
        for row in (_SENT, {**_SENT, "state": "unknown"}, _CONFIRMED, _RETURNED)
    ),
    ("payouts_sent_check", insert_payout(**{**_APPROVED, "sent_at": _AT})),
    ("payouts_sent_check", insert_payout(**{**_FAILED, "sent_at": _AT})),
    *(("payouts_confirmed_check", insert_payout(**{**row, "confirmed_at": None})) for row in (_CONFIRMED, _RETURNED)),
    *(("payouts_confirmed_check", insert_payout(**{**row, "confirmed_at": _AT})) for row in (_SENT, _FAILED)),
    ("payouts_returned_check", insert_payout(**{**_RETURNED, "returned_at": None})),
    ("payouts_returned_check", insert_payout(**{**_CONFIRMED, "returned_at": _AT})),
    ("payouts_failed_check", insert_payout(**{**_FAILED, "failed_at": None, "failure": None})),
    ("payouts_failed_check", insert_payout(**{**_FAILED, "failure": None})),
    ("payouts_failed_check", insert_payout(**{**_RESERVED, "failure": "no such account"})),
    ("payouts_failed_check", insert_payout(**{**_SENT, "failed_at": _AT, "failure": "no such account"})),
    ("provider_events_doubt_check", insert_event(verdict="refused")),
    ("provider_events_doubt_check", insert_event(doubt="amount")),
    ("provider_events_doubt_check", insert_event(verdict="old_news", doubt="amount")),
    ("provider_events_reviewed_check", insert_event(reviewed_at=_AT)),
    ("provider_events_reviewed_check", insert_event(reviewed_by=_PERSON)),
]
