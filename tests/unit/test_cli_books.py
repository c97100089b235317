"""What owners and operators read of the books in a terminal, and what they may type."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from computepool.cli.audit import describe_check, describe_proof
from computepool.cli.books import describe_close, read_provider_books
from computepool.cli.main import EXIT_REFUSED, run
from computepool.cli.pay import describe_pay
from computepool.cli.statement import describe_account, describe_job, describe_node
from computepool.core.errors import InvalidRequest
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.state import AttemptState
from computepool.core.ledger.accounts import AccountKind
from computepool.core.ledger.audit import BatchFaultKind
from computepool.core.ledger.charging import ChargeRule
from computepool.core.ledger.closing import DifferenceKind
from computepool.core.ledger.earning import EarningState
from computepool.core.ledger.explain import PayMark, UnpaidReason
from computepool.core.ledger.statement import Flow
from computepool.core.ledger.transfer import TransferKind
from computepool.wire import audit as wire_audit
from computepool.wire import books as wire_books
from computepool.wire import pay as wire_pay
from computepool.wire import statements as wire_statements

NOW = datetime(2026, 11, 17, 12, tzinfo=UTC)
DAY = date(2026, 11, 17)
CREDIT = 1_000_000
COLUMNS = 80


def fits(lines: list[str]) -> bool:
    return max(len(line) for line in lines) <= COLUMNS


# Why a payment


def make_paid(mark: PayMark = PayMark.PAID, **overrides: Any) -> wire_pay.PaidAttempt:
    fields: dict[str, Any] = {
        "attempt_id": UUID(int=1),
        "job_id": UUID(int=2),
        "slice_index": 3,
        "number": 1,
        "slot": "cpu:0",
        "state": AttemptState.SUCCEEDED,
        "leased_at": NOW,
        "finished_at": NOW + timedelta(seconds=50),
        "mark": mark,
        "words": "32 credits, as agreed.",
        "rule": ChargeRule.METERED,
        "run_seconds": 39.2,
        "metered_seconds": 40,
        "rate_microcredits_per_hour": 3_600 * CREDIT,
        "due_microcredits": 40 * CREDIT,
        "charged_microcredits": 40 * CREDIT,
        "fee_microcredits": 8 * CREDIT,
        "due_to_owner_microcredits": 32 * CREDIT,
        "earned_microcredits": 32 * CREDIT,
        "moved_microcredits": 32 * CREDIT,
        "missing_microcredits": 0,
        "differences": [],
    }
    return wire_pay.PaidAttempt(**(fields | overrides))


UNDERPAID = make_paid(
    PayMark.UNDERPAID,
    words="Underpaid: charged 35 credits, by the rules 40 credits.",
    differences=["charged 35 credits, by the rules 40 credits"],
    charged_microcredits=35 * CREDIT,
    earned_microcredits=28 * CREDIT,
    moved_microcredits=None,
    missing_microcredits=4 * CREDIT,
)


def test_a_day_on_which_everything_agrees_is_told_in_a_few_lines():
    lines = describe_pay(
        "attic-pc", DAY, [make_paid(), make_paid(), make_paid(PayMark.UNPAID, earned_microcredits=0)]
    )
    assert lines[-1] == "Everything agrees: rules, attempts and ledger."
    assert any(line.split() == ["paid", "2", "64.000000"] for line in lines)
    assert fits(lines)


def test_time_that_was_made_good_counts_as_earned():
    beaten = make_paid(PayMark.UNPAID, earned_microcredits=0, made_good_microcredits=3 * CREDIT)
    lines = describe_pay("attic-pc", DAY, [make_paid(), beaten])
    assert any(line.split() == ["unpaid", "1", "3.000000"] for line in lines)


def test_an_underpayment_is_told_with_all_that_it_follows_from():
    lines = describe_pay("attic-pc", DAY, [make_paid(), UNDERPAID])
    text = " ".join(" ".join(lines).split())
    assert "You were paid 4 credits too little." in text
    assert "claimed 39.2 s, metered 40 s; rate 3,600 credits/h; rule metered" in text
    assert "due 40.000000, charged 35.000000" in text
    assert "moved unclear" in text
    assert "by the rules 40 credits" in text
    assert text.count("Attempt ") == 1


def test_with_all_every_attempt_is_told_with_its_reason():
    unpaid = make_paid(PayMark.UNPAID, reason=UnpaidReason.SUPERSEDED, words="Nothing is due: it was beaten.")
    lines = describe_pay("attic-pc", DAY, [make_paid(), unpaid], everything=True)
    assert sum(line.startswith("Attempt ") for line in lines) == 2
    assert any("Nothing is due" in line for line in lines)


def test_pay_that_waits_is_told_once_with_what_it_waits_for_and_with_all_at_each_attempt():
    waiting = [make_paid(waits="Not released before noon."), make_paid(waits="Not released before night.")]
    text = " ".join(describe_pay("attic-pc", DAY, [make_paid(), *waiting]))
    assert "Waiting: 64 credits, for 2 attempts. Not released before night." in text
    assert "noon" not in text
    assert "noon" in " ".join(describe_pay("attic-pc", DAY, waiting, everything=True))
    assert "Waiting" not in " ".join(describe_pay("attic-pc", DAY, [make_paid()]))


def test_too_much_and_a_day_without_work_are_told_too():
    much = make_paid(PayMark.OVERPAID, missing_microcredits=-5, differences=["x"])
    assert any("0.000005 credits too much" in line for line in describe_pay("n", DAY, [much]))
    assert describe_pay("n", DAY, []) == ["No attempt ended on n on 2026-11-17 (UTC)."]


def test_a_days_worst_case_is_bounded():
    lines = describe_pay("n", DAY, [UNDERPAID] * 500)
    assert sum(line.startswith("Attempt ") for line in lines) == 100


@pytest.mark.parametrize(
    "arguments",
    [
        ["--payment"],
        ["--payment", "--node", "n"],
        ["--node", "n", "--day", "2026-11-17"],
        ["last", "--payment", "--day", "2026-11-17"],
        ["--node", "n", "--all"],
    ],
)
def test_why_says_what_goes_with_payment(arguments, capsys):
    assert run(["why", *arguments]) == EXIT_REFUSED
    assert "Usage" in capsys.readouterr().err


def test_a_day_that_is_none_is_refused_before_any_hub_is_asked(capsys):
    assert run(["why", "--payment", "--node", "n", "--day", "tuesday"]) == EXIT_REFUSED
    assert "'tuesday' is not a day" in capsys.readouterr().err


# Statements


def make_line(**overrides: Any) -> wire_statements.TransferLine:
    fields: dict[str, Any] = {
        "id": 1,
        "at": NOW,
        "kind": TransferKind.SETTLE,
        "source": AccountKind.SUBMITTER_HELD,
        "target": AccountKind.OWNER_PENDING,
        "flow": Flow.OUT,
        "amount_microcredits": 5,
        "credits": "0.000005",
    }
    return wire_statements.TransferLine(**(fields | overrides))


def make_charge(cause: Cause | None = None) -> wire_statements.ChargeLine:
    return wire_statements.ChargeLine(
        attempt_id=UUID(int=1),
        job_id=UUID(int=2),
        slice_index=0,
        number=1,
        node_id=UUID(int=3),
        slot="cpu:0",
        state=AttemptState.SUCCEEDED,
        cause=cause,
        leased_at=NOW,
        finished_at=NOW,
        metered_seconds=40,
        charged_microcredits=40 * CREDIT,
        fee_microcredits=8 * CREDIT,
        earned_microcredits=32 * CREDIT,
        charged_credits="40.000000",
        earned_credits="32.000000",
    )


def test_an_accounts_statement_fits_and_says_when_there_is_more():
    sums = wire_statements.AccountSum(
        kind=AccountKind.SUBMITTER_AVAILABLE,
        opening_microcredits=0,
        closing_microcredits=CREDIT,
        opening_credits="0.000000",
        closing_credits="1.000000",
    )
    found = wire_statements.AccountStatement(
        account_id=UUID(int=1), since=NOW, until=NOW, sums=[sums], lines=[make_line()] * 60, cursor="9"
    )
    lines = describe_account(found)
    assert fits(lines)
    assert "--csv has all of them" in lines[-1]
    assert any("-0.000005" in line for line in lines)
    empty = wire_statements.AccountStatement(account_id=UUID(int=1), since=NOW, until=NOW, sums=[], lines=[])
    assert describe_account(empty)[-1] == "Nothing moved."


def test_no_hour_and_no_account_of_a_statement_is_cut_short():
    held = make_line(
        kind=TransferKind.REFUND,
        source=AccountKind.SUBMITTER_HELD,
        target=AccountKind.SUBMITTER_AVAILABLE,
        credits="1000.000000",
    )
    moved = wire_statements.AccountStatement(account_id=UUID(int=1), since=NOW, until=NOW, sums=[], lines=[held])
    attempts = [make_charge(), make_charge(Cause.OWNER_RETURNED)]
    earned = wire_statements.NodeStatement(node_id=UUID(int=3), since=NOW, until=NOW, sums=[], attempts=attempts)
    for lines in (describe_account(moved), describe_node(earned)):
        assert fits(lines)
        assert not any("..." in line for line in lines)
        assert any(f"{NOW:%H:%M}" in line for line in lines[2:])


def test_a_jobs_statement_adds_up_before_the_readers_eyes():
    found = wire_statements.JobStatement(
        job_id=UUID(int=2),
        held_microcredits=100,
        earned_microcredits=40,
        fee_microcredits=10,
        refunded_microcredits=50,
        remaining_microcredits=0,
        reversed_microcredits=7,
        cost_microcredits=43,
        cost_credits="0.000043",
        transfers=[],
        attempts=[make_charge()],
    )
    text = "\n".join(describe_job(found))
    assert "has cost 0.000043 credits" in text
    assert "0.000007 credits came back after late fraud" in text
    assert fits(describe_job(found))


def test_a_nodes_statement_says_where_the_pay_stands():
    sums = [
        wire_statements.NodeSum(
            attempt_count=2,
            charged_microcredits=5,
            fee_microcredits=1,
            earned_microcredits=4,
            earned_credits="0.000004",
            earning_state=state,
        )
        for state in (EarningState.PENDING, None)
    ]
    found = wire_statements.NodeStatement(
        node_id=UUID(int=3), since=NOW, until=NOW, sums=sums, attempts=[make_charge()]
    )
    lines = describe_node(found)
    assert fits(lines)
    assert any(line.split()[:2] == ["pending", "2"] for line in lines)
    assert any(line.split()[:2] == ["unpaid", "2"] for line in lines)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--job", "last", "--node", "n"],
        ["--attempts"],
        ["--job", "last", "--from", "2026-11-01"],
        ["--out", "file.csv"],
    ],
)
def test_statement_says_what_goes_together(arguments, capsys):
    assert run(["statement", *arguments]) == EXIT_REFUSED
    assert "Usage" in capsys.readouterr().err


# Audit


BATCH = wire_audit.AuditBatch(
    number=7, sha256="ab" * 32, previous_sha256="cd" * 32, row_count=3, last_id=9, sealed_at=NOW
)
GOOD = wire_audit.BalanceCheck(drifts=[], stray_ids=[], unsealed_count=2)


def test_a_good_chain_ends_with_the_line_to_keep():
    lines = describe_check(wire_audit.AuditCheck(batch_count=7, row_count=1_234, last_batch=BATCH), GOOD)
    assert lines[-2].startswith("Good: ")
    assert lines[-1] == f"7:{'ab' * 32}"
    assert fits(lines)


def test_whatever_is_bad_is_said_and_nothing_is_called_good():
    fault = wire_audit.AuditFault(
        kind=BatchFaultKind.TRANSFER_MISSING, batch_number=3, words="Transfer 8 of batch 3 is missing.", transfer_id=8
    )
    drift = wire_audit.BalanceDrift(name="account fee/3", kept_microcredits=5, counted_microcredits=0)
    bad = wire_audit.BalanceCheck(drifts=[drift], stray_ids=[99], unsealed_count=0)
    text = "\n".join(describe_check(wire_audit.AuditCheck(batch_count=2, row_count=9, fault=fault), bad))
    assert text.count("BAD: ") == 3
    assert "Transfer 8 of batch 3 is missing. (transfer_missing)" in text
    assert "Good" not in text


@pytest.mark.parametrize(("total", "words"), [(0, "All accounts come to zero."), (7, "BAD: all accounts come to 7")])
def test_a_proof_says_whether_it_is_one(total, words):
    kinds = [
        wire_audit.KindTotal(kind=kind, account_count=1, balance_microcredits=0, balance_credits="0.000000")
        for kind in AccountKind
    ]
    proof = wire_audit.Proof(balance_sum_microcredits=total, totals=kinds, last_batch=BATCH)
    assert any(line.startswith(words) for line in describe_proof(proof))
    fresh = wire_audit.Proof(balance_sum_microcredits=0, totals=kinds)
    assert describe_proof(fresh)[-1] == "Nothing is sealed yet."


# The close


def make_closed(**overrides: Any) -> wire_books.ClosedBooks:
    trial = [
        wire_books.TrialLine(
            kind=kind,
            opening_microcredits=10**13,
            gained_microcredits=5,
            lost_microcredits=5,
            closing_microcredits=10**13,
        )
        for kind in AccountKind
    ]
    moved = wire_books.MovedLine(kind=TransferKind.HOLD, transfer_count=1, amount_microcredits=5)
    fields: dict[str, Any] = {
        "day": DAY,
        "closed_at": NOW,
        "closed_by": UUID(int=1),
        "sha256": "ab" * 32,
        "trial": trial,
        "moved": [moved],
        "payout_count": 2,
        "payout_sha256": "cd" * 32,
        "differences": [],
        "differences_is_cut": False,
        "compared_with_provider": False,
    }
    return wire_books.ClosedBooks(**(fields | overrides))


def test_a_close_shows_its_trial_balance_and_that_everything_agrees():
    lines = describe_close(make_closed(), Path("payouts.csv"))
    assert lines[-1] == "Everything agrees."
    assert any(line.split()[0] == "sum" for line in lines if line.strip())
    assert any("written to payouts.csv" in line for line in lines)
    assert fits(lines)


def test_a_close_lists_what_does_not_agree_and_that_there_is_more():
    difference = wire_books.BookDifference(kind=DifferenceKind.CHARGE, subject="x", words="job x: 5 and not 4")
    lines = describe_close(make_closed(differences=[difference], differences_is_cut=True, moved=[]), None)
    assert "  charge: job x: 5 and not 4" in lines
    assert lines[-1] == "  and more"
    assert "Nothing moved." in lines


def test_a_providers_books_are_read_from_csv(tmp_path: Path):
    path = tmp_path / "books.csv"
    path.write_text(f"\ufeffid,when,currency,amount_minor\n{UUID(int=7)},today,INR,-500\n", encoding="utf-8")
    [movement] = read_provider_books(path)
    assert (movement.id, movement.currency, movement.amount_minor) == (UUID(int=7), "INR", -500)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "id,currency\n",
        "id,currency,amount_minor\nx,INR,5\n",
        f"id,currency,amount_minor\n{UUID(int=7)},INR,5.0\n",
        f"id,currency,amount_minor\n{UUID(int=7)}\n",
    ],
)
def test_what_is_no_providers_books_is_refused_with_the_line(tmp_path: Path, text: str):
    path = tmp_path / "books.csv"
    path.write_text(text)
    with pytest.raises(InvalidRequest, match=r"books\.csv"):
        read_provider_books(path)
