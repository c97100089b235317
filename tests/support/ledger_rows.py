"""What the schema of the ledger refuses: each statement breaks one rule and no other. `JOB` and `FIRST` are there."""

from __future__ import annotations

from uuid import UUID

from computepool.core.ledger.accounts import AccountKind
from computepool.core.ledger.earning import EarningState
from computepool.core.ledger.transfer import TransferKind

ENUMS = {
    "ledger_account_kind": AccountKind,
    "ledger_transfer_kind": TransferKind,
    "earning_state": EarningState,
}

_PERSON = UUID(int=1)
_HELD = f"submitter_held/{_PERSON}"


def _account(id: str, kind: str, account_id: UUID | None, shard: int, balance: int) -> str:
    owner = f"'{account_id}'" if account_id else "NULL"
    return (
        "INSERT INTO ledger_accounts (id, kind, account_id, shard, balance) "
        f"VALUES ('{id}', '{kind}', {owner}, {shard}, {balance})"
    )


def insert_transfer(
    key: str = "k", leg: int = 0, source: str = "world/0", target: str = _HELD, amount: int = 1
) -> str:
    return (
        "INSERT INTO ledger_transfers (key, leg, kind, source_id, target_id, amount) "
        f"VALUES ('{key}', {leg}, 'top_up', '{source}', '{target}', {amount})"
    )


def _earn(charged: int | None = 5, fee: int | None = 0, state: str = "'pending'", release_at: str = "now()") -> str:
    """An attempt that was paid, but for what is given."""
    amounts = [str(amount) if amount is not None else "NULL" for amount in (charged, fee)]
    return (
        f"UPDATE attempts SET charged_microcredits = {amounts[0]}, fee_microcredits = {amounts[1]}, "
        f"earning_state = {state}, release_at = {release_at}"
    )


_SUPERSEDED = "UPDATE attempts SET cause = 'superseded', state = 'cancelled', finished_at = now()"

# Nothing is wrong with these: what is refused below is refused for what was changed.
POSSIBLE = [
    _account(_HELD, "submitter_held", _PERSON, 0, 10**18),
    _account(f"receivable/{_PERSON}", "receivable", _PERSON, 0, -(10**18)),
    insert_transfer(key="x" * 200, leg=31, amount=10**15),
    _earn(),
    _earn(charged=5, fee=5),
    _earn(charged=0, state="NULL", release_at="NULL"),
    _earn(charged=None, fee=None, state="NULL", release_at="NULL"),
    "UPDATE attempts SET rate_microcredits_per_hour = 0, fee_ppm = 200000, holdback_seconds = 0",
    "UPDATE jobs SET held_remaining = 1, reserve_microcredits = 1, charged_microcredits = 1",
    "UPDATE jobs SET slice_base_microcredits = 1",
    "UPDATE attempts SET slice_price_microcredits = 0",
    f"{_SUPERSEDED}, made_good_microcredits = 0",
    "UPDATE shapes SET base_ceiling_microcredits_per_hour = 1, ceiling_microcredits_per_hour = 1",
]

# The rows of tests/integration/test_schema.py's table, for the ledger.
IMPOSSIBLE = [
    ("ledger_accounts_id_check", _account("fee/99", "fee", None, 98, 0)),
    ("ledger_accounts_id_check", _account("somebody", "submitter_held", _PERSON, 0, 0)),
    ("ledger_accounts_owner_check", _account("submitter_held/0", "submitter_held", None, 0, 0)),
    ("ledger_accounts_owner_check", _account(f"fee/{_PERSON}", "fee", _PERSON, 0, 0)),
    ("ledger_accounts_owner_check", _account(_HELD, "submitter_held", _PERSON, 1, 0)),
    *(
        ("ledger_accounts_side_check", _account(f"{kind}/{_PERSON}", kind, _PERSON, 0, -1))
        for kind in ("submitter_available", "submitter_held", "owner_pending", "owner_available")
    ),
    ("ledger_accounts_side_check", _account(f"receivable/{_PERSON}", "receivable", _PERSON, 0, 1)),
    ("ledger_accounts_side_check", _account(_HELD, "submitter_held", _PERSON, 0, 10**18 + 1)),
    ("ledger_accounts_side_check", _account(f"receivable/{_PERSON}", "receivable", _PERSON, 0, -(10**18) - 1)),
    ("ledger_accounts_side_check", "UPDATE ledger_accounts SET balance = -1 WHERE id = 'fee/3'"),
    ("ledger_accounts_side_check", "UPDATE ledger_accounts SET balance = -1 WHERE id = 'payout_clearing/0'"),
    ("ledger_accounts_side_check", "UPDATE ledger_accounts SET balance = 1 WHERE id = 'world/15'"),
    ("ledger_transfers_key_check", insert_transfer(key="")),
    ("ledger_transfers_key_check", insert_transfer(key="x" * 201)),
    ("ledger_transfers_key_check", insert_transfer(leg=-1)),
    ("ledger_transfers_key_check", insert_transfer(leg=32)),
    ("ledger_transfers_sides_check", insert_transfer(source=_HELD)),
    ("ledger_transfers_amount_check", insert_transfer(amount=0)),
    ("ledger_transfers_amount_check", insert_transfer(amount=-1)),
    ("ledger_transfers_amount_check", insert_transfer(amount=10**15 + 1)),
    ("jobs_held_remaining_check", "UPDATE jobs SET held_remaining = -1"),
    (
        "jobs_finished_hold_check",
        "UPDATE jobs SET held_remaining = 1, state = 'succeeded', succeeded_count = slice_count, finished_at = now()",
    ),
    ("jobs_reserve_check", "UPDATE jobs SET reserve_microcredits = -1"),
    ("jobs_charged_check", "UPDATE jobs SET charged_microcredits = -1"),
    ("jobs_slice_base_check", "UPDATE jobs SET slice_base_microcredits = 0"),
    ("shapes_base_ceiling_check", "UPDATE shapes SET base_ceiling_microcredits_per_hour = 1"),
    *(
        ("shapes_base_ceiling_check", f"UPDATE shapes SET {base} = {one}, {ceiling} = {other}")
        for base, ceiling in [("base_ceiling_microcredits_per_hour", "ceiling_microcredits_per_hour")]
        for one, other in [(0, 1), (1, 0)]
    ),
    ("attempts_slice_price_check", "UPDATE attempts SET slice_price_microcredits = -1"),
    (
        "attempts_slice_price_check",
        "UPDATE attempts SET slice_price_microcredits = 1, rate_microcredits_per_hour = 1",
    ),
    ("attempts_made_good_check", "UPDATE attempts SET made_good_microcredits = 1"),
    ("attempts_made_good_check", f"{_SUPERSEDED}, made_good_microcredits = -1"),
    ("attempts_rate_check", "UPDATE attempts SET rate_microcredits_per_hour = -1"),
    ("attempts_fee_ppm_check", "UPDATE attempts SET fee_ppm = -1"),
    ("attempts_fee_ppm_check", "UPDATE attempts SET fee_ppm = 200001"),
    ("attempts_holdback_check", "UPDATE attempts SET holdback_seconds = -1"),
    ("attempts_charged_check", _earn(charged=-1, fee=None)),
    ("attempts_fee_check", _earn(fee=-1)),
    ("attempts_fee_check", _earn(charged=5, fee=6)),
    ("attempts_earning_check", _earn(release_at="NULL")),
    ("attempts_earning_check", _earn(state="NULL")),
    ("attempts_earning_check", _earn(state="NULL", release_at="NULL")),
    ("attempts_earning_check", _earn(charged=0)),
    ("attempts_earning_check", _earn(charged=None, fee=None)),
]
