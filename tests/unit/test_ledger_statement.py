"""Statements and closes: which way a line goes, what a job came to, periods, decimals and CSV."""

from __future__ import annotations

import csv
import io
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from computepool.core.errors import InvalidRequest
from computepool.core.ids import AccountId
from computepool.core.ledger.accounts import (
    SHARDS,
    AccountKind,
    owner_pending,
    submitter_available,
    submitter_held,
)
from computepool.core.ledger.closing import (
    Figures,
    KindLine,
    TrialLine,
    digest_figures,
    list_trial_faults,
    make_trial,
)
from computepool.core.ledger.decimals import say_credits, to_decimal
from computepool.core.ledger.explain import REASON_WORDS, UnpaidReason
from computepool.core.ledger.period import choose_period, day_period, read_cursor, read_day, write_cursor
from computepool.core.ledger.statement import Flow, RouteSum, find_flow, sum_job
from computepool.core.ledger.table import quote_formula, to_csv
from computepool.core.ledger.transfer import TransferKind
from tests.support.builders import NOW

ALICE, BOB = AccountId(UUID(int=1)), AccountId(UUID(int=2))
A, T = AccountKind, TransferKind
UTC = UTC


@pytest.mark.parametrize(
    ("source", "target", "flow"),
    [
        (SHARDS[A.WORLD][0], submitter_available(ALICE), Flow.IN),
        (submitter_available(ALICE), submitter_held(ALICE), Flow.WITHIN),
        (submitter_held(ALICE), owner_pending(BOB), Flow.OUT),
        (submitter_held(BOB), owner_pending(ALICE), Flow.IN),
        (submitter_held(ALICE), SHARDS[A.FEE][3], Flow.OUT),
    ],
)
def test_a_line_goes_in_or_out_or_stays_within(source, target, flow):
    assert find_flow(source, target, ALICE) is flow


def test_a_jobs_transfers_add_up_to_what_was_held():
    money = sum_job(
        [
            RouteSum(T.HOLD, A.SUBMITTER_AVAILABLE, A.SUBMITTER_HELD, 100),
            RouteSum(T.SETTLE, A.SUBMITTER_HELD, A.OWNER_PENDING, 40),
            RouteSum(T.PAY_TO, A.SUBMITTER_HELD, A.OWNER_PENDING, 8),
            RouteSum(T.SETTLE, A.SUBMITTER_HELD, A.FEE, 12),
            RouteSum(T.REFUND, A.SUBMITTER_HELD, A.SUBMITTER_AVAILABLE, 30),
            RouteSum(T.RELEASE, A.OWNER_PENDING, A.OWNER_AVAILABLE, 48),
            RouteSum(T.REVERSE, A.OWNER_AVAILABLE, A.SUBMITTER_AVAILABLE, 5),
            RouteSum(T.REVERSE, A.FEE, A.SUBMITTER_AVAILABLE, 1),
        ]
    )
    assert (money.held, money.earned, money.fee, money.refunded, money.reversed) == (100, 48, 12, 30, 6)
    assert (money.remaining, money.cost) == (10, 54)


# Periods


def test_a_day_is_a_day_of_utc():
    period = day_period(date(2026, 11, 17))
    assert period.since == datetime(2026, 11, 17, tzinfo=UTC)
    assert period.until - period.since == timedelta(days=1)


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [
        (None, None, (NOW - timedelta(days=31), NOW)),
        ("2029-12-01", None, (datetime(2029, 12, 1, tzinfo=UTC), NOW)),
        ("2026-11-01", "2026-12-01", (datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC))),
        (
            "2026-11-01T05:30:00+05:30",
            "2026-11-01T00:00:01Z",
            (datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 11, 1, 0, 0, 1, tzinfo=UTC)),
        ),
    ],
)
def test_a_period_is_read_as_it_is_written(since, until, expected):
    period = choose_period(since, until, now=NOW)
    assert (period.since, period.until) == expected


@pytest.mark.parametrize(
    ("since", "until"),
    [
        ("yesterday", None),
        ("2026-11-01T00:00:00", None),
        ("2026-11-02", "2026-11-01"),
        ("2026-11-01", "2026-11-01"),
        ("2026-01-01", "2027-01-03"),
        ("0001-01-01", "0001-01-02"),
        ("9999-12-31", None),
        ("1" * 500, None),
        (None, "2026-13-01"),
    ],
)
def test_what_is_no_period_is_refused(since, until):
    with pytest.raises(InvalidRequest):
        choose_period(since, until, now=NOW)


@pytest.mark.parametrize("text", ["", "17.11.2026", "2026-11-31", "tuesday", "x" * 1_000])
def test_what_is_no_day_is_refused(text):
    with pytest.raises(InvalidRequest):
        read_day(text)


def test_a_day_in_no_time_of_a_hub_is_refused():
    with pytest.raises(InvalidRequest):
        day_period(date(9999, 12, 31))


def test_a_cursor_comes_back_as_it_was():
    assert read_cursor(write_cursor(NOW, UUID(int=7))) == (NOW, UUID(int=7))


@pytest.mark.parametrize("text", ["", "~", "2026-11-01~x", "x~00000000-0000-0000-0000-000000000007"])
def test_a_cursor_that_is_none_is_refused(text):
    with pytest.raises(InvalidRequest):
        read_cursor(text)


def test_a_cursor_without_an_offset_is_refused():
    with pytest.raises(InvalidRequest):
        read_cursor(f"2026-11-01T00:00:00~{UUID(int=7)}")


# Decimals and tables


@given(st.integers(-(10**18), 10**18))
def test_decimals_are_exact(microcredits):
    assert Decimal(to_decimal(microcredits)) * 1_000_000 == microcredits
    said = say_credits(microcredits).removesuffix("s").removesuffix(" credit").replace(",", "")
    assert Decimal(said) * 1_000_000 == microcredits


def test_amounts_are_said_shortly():
    assert [say_credits(n) for n in (0, 1_000_000, 840_000, -1, 1_200_000_000)] == [
        "0 credits",
        "1 credit",
        "0.84 credits",
        "-0.000001 credits",
        "1,200 credits",
    ]


@given(st.lists(st.tuples(st.text(), st.none() | st.integers()), max_size=5))
def test_a_csv_is_read_back_as_it_was_written(rows):
    # The reader's own dialect: what it reads is what any spreadsheet reads.
    clean = [(text.replace("\r", "").replace("\n", " ").replace("\0", ""), number) for text, number in rows]
    read = list(csv.reader(io.StringIO(to_csv(("a", "b"), clean), newline="")))
    assert read == [["a", "b"], *[[text, "" if number is None else str(number)] for text, number in clean]]


def test_pages_of_a_csv_can_be_put_one_after_the_other():
    assert to_csv(("a",), [(1,)]) + to_csv(("a",), [(2,)], with_heads=False) == "a\r\n1\r\n2\r\n"


@pytest.mark.parametrize("text", ["=1+1", "+49", "-x", "@sum", "\t=1"])
def test_what_a_stranger_wrote_never_becomes_a_formula(text):
    assert quote_formula(text) == f"'{text}"
    assert quote_formula("bank 1") == "bank 1"


# The close


def test_a_trial_lists_every_kind_and_comes_to_zero():
    trial = make_trial([TrialLine(A.WORLD, -100, 20, 50), TrialLine(A.SUBMITTER_AVAILABLE, 100, 50, 20)])
    assert [line.kind for line in trial] == list(AccountKind)
    assert sum(line.closing for line in trial) == 0
    assert list_trial_faults(trial) == []


def test_a_trial_that_does_not_come_to_zero_is_told():
    faults = list_trial_faults(make_trial([TrialLine(A.FEE, 1, 2, 0)]))
    assert len(faults) == 3
    assert "closing: the accounts come to 3 microcredits" in faults[1]


def test_the_same_figures_have_the_same_digest_and_others_another():
    figures = Figures(date(2026, 11, 17), make_trial([]), (KindLine(T.HOLD, 1, 5),), 0, "")
    again = Figures(date(2026, 11, 17), make_trial([]), (KindLine(T.HOLD, 1, 5),), 0, "")
    other = Figures(date(2026, 11, 17), make_trial([]), (KindLine(T.HOLD, 1, 6),), 0, "")
    assert digest_figures(figures) == digest_figures(again) != digest_figures(other)


def test_every_reason_has_words():
    assert set(REASON_WORDS) == set(UnpaidReason)
