"""What people type and read about credits, before and after a hub is asked."""

from __future__ import annotations

import io
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import click
import pytest
from rich.console import Console

from computepool.cli.credits import command, describe_credits, describe_payout, describe_top_up, history_table
from computepool.cli.main import EXIT_REFUSED, run
from computepool.cli.operator_credits import (
    describe_rates,
    events_table,
    freezes_table,
    parse_cash,
    payouts_table,
    top_ups_table,
)
from computepool.core.ledger.amount import AMOUNT_MAX, InvalidAmount
from computepool.core.payments.claim import ClaimKind, Doubt
from computepool.core.payments.payout import PayoutState
from computepool.core.payments.top_up import TopUpState
from computepool.sdk import parse_amount
from computepool.wire.credits import (
    AccountPayout,
    AccountTopUp,
    CashRate,
    CashRates,
    CashTerms,
    Credits,
    Freeze,
    Payout,
    ProviderEvent,
    TopUp,
)

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
TERMS = CashTerms(
    currency="INR",
    microcredits_per_minor_unit=10_000,
    top_up_microcredits_min=10**7,
    payout_microcredits_min=500_000_000,
)


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings of the person who runs the tests."""
    for name in ("HUB_URL", "COMPUTEPOOL_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def make_credits(**overrides: Any) -> Credits:
    fields: dict[str, Any] = {
        "available_microcredits": 1_234_500_000,
        "held_microcredits": 0,
        "pending_microcredits": 1,
        "earned_microcredits": 80_000_000,
        "owed_microcredits": 0,
        "terms": TERMS,
    }
    return Credits(**(fields | overrides))


def make_top_up(**overrides: Any) -> TopUp:
    fields: dict[str, Any] = {
        "id": UUID(int=0xABCDEF12),
        "state": TopUpState.REQUESTED,
        "amount_microcredits": 500_000_000,
        "currency": "INR",
        "amount_minor": 50_000,
        "provider": "manual",
        "created_at": NOW,
    }
    return TopUp(**(fields | overrides))


def make_payout(**overrides: Any) -> Payout:
    fields: dict[str, Any] = {
        "id": UUID(int=0xCAFE1234),
        "state": PayoutState.RESERVED,
        "asked_microcredits": 600_000_001,
        "amount_microcredits": 600_000_000,
        "currency": "INR",
        "amount_minor": 60_000,
        "provider": "manual",
        "created_at": NOW + timedelta(days=1),
    }
    return Payout(**(fields | overrides))


def draw(table: Any) -> str:
    stream = io.StringIO()
    Console(file=stream, width=200, color_system=None).print(table)
    return stream.getvalue()


# Amounts


@pytest.mark.parametrize(
    ("written", "microcredits"),
    [
        ("40", 40_000_000),
        ("0.5", 500_000),
        ("0.000001", 1),
        ("1000000000", AMOUNT_MAX),
        (" 7 ", 7_000_000),
        (40, 40_000_000),
        (Decimal("12.5"), 12_500_000),
        (Decimal("1E+3"), 1_000_000_000),
        # No float on the way: this one would lose its last digit.
        ("123456789.123457", 123_456_789_123_457),
    ],
)
def test_an_amount_is_read_to_the_last_microcredit(written: Any, microcredits: int) -> None:
    assert parse_amount(written) == microcredits


@pytest.mark.parametrize(
    "written",
    [
        *("", "0", "0.0", "-1", "+1", "1e3", "1_000", "1,000", "0.0000001", "nan", "inf", "5 credits", "0x10", "٣"),
        *("1000000000.000001", "9" * 40, 0.5, True, 0, -1, Decimal("NaN"), Decimal("0.0000001"), None),
    ],
)
def test_what_is_no_amount_is_refused_and_never_rounded(written: Any) -> None:
    with pytest.raises(InvalidAmount):
        parse_amount(written)


@pytest.mark.parametrize("verb", ["top-up", "cash-out", "spend"])
@pytest.mark.parametrize("amount", ["0", "1.2345678", "ten", "-5", "1e9"])
def test_a_bad_amount_is_one_clear_line_before_a_hub_is_asked(
    verb: str, amount: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # `--` keeps a sign from being taken for an option.
    assert run(["credits", verb, "--", amount]) == EXIT_REFUSED
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.endswith("(invalid_amount)\n")
    assert said.count("\n") == 1


def test_cash_is_written_with_its_currency() -> None:
    assert parse_cash("INR500.00") == ("INR", 50_000)
    assert parse_cash("inr 500") == ("INR", 50_000)
    assert parse_cash("JPY500") == ("JPY", 500)
    for wrong in ("500", "INR", "INR5.001", "INR-5", "RUPEES 5", "INR1e3", ""):
        with pytest.raises(click.UsageError):
            parse_cash(wrong)


# What is typed


@pytest.mark.parametrize("arguments", [["credits"], ["credits", "history"], ["credits", "payouts"]])
def test_without_a_hub_one_line_says_what_to_do(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == EXIT_REFUSED
    assert capsys.readouterr().err.startswith("error: No hub is named.")


@pytest.mark.parametrize("name", command.commands)
def test_every_part_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["credits", name, "--help"]) == 0
    assert f"Usage: computepool credits {name}" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["credits", "books", "audit"])
def test_no_line_of_a_list_of_commands_is_cut_short(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([name, "--help"]) == 0
    said = capsys.readouterr().out.partition("Commands:")[2]
    assert said
    assert "..." not in said
    assert max(map(len, said.splitlines())) <= 80


def test_what_can_be_recorded_stands_in_the_help_word_by_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["credits", "record", "--help"]) == 0
    said = capsys.readouterr().out
    assert {kind.value for kind in ClaimKind} <= set(said.split())
    assert max(map(len, said.splitlines())) <= 80


def test_what_everybody_uses_is_listed_before_what_operators_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["credits", "--help"]) == 0
    parts = re.findall(r"^  ([a-z-]+) +(For operators)?", capsys.readouterr().out.partition("Commands:")[2], re.M)
    marks = [bool(mark) for _, mark in parts]
    assert marks == sorted(marks)
    assert any(marks)


def test_details_need_both_region_and_destination(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["credits", "details", "--region", "IN"]) == EXIT_REFUSED
    assert "--region IN --to" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("part", "parameter", "kind"),
    [("payouts", "state", PayoutState), ("top-ups", "state", TopUpState), ("record", "kind", ClaimKind)],
)
def test_choices_are_those_of_the_wire(part: str, parameter: str, kind: type[Enum]) -> None:
    [found] = [each for each in command.commands[part].params if each.name == parameter]
    assert isinstance(found.type, click.Choice)
    assert list(found.type.choices) == [each.value for each in kind]


# What is read


def test_balances_are_said_in_numbers_and_words() -> None:
    assert describe_credits(make_credits()) == [
        "available   1,234.5  to spend on jobs",
        "held              0  set aside for jobs that are not finished",
        "pending    0.000001  earned, and held back for a while",
        "earned           80  to cash out, from 500 credits on, or to spend",
    ]


def test_who_owes_or_is_frozen_reads_it() -> None:
    lines = describe_credits(make_credits(owed_microcredits=3_000_000, frozen_at=NOW))
    assert lines[4].split()[:2] == ["owed", "3"]
    assert lines[5].startswith("Frozen since 20")


def test_a_top_up_says_how_to_pay_and_commands_no_terminal() -> None:
    lines = describe_top_up(
        make_top_up(instructions="Pay to bank 1.\nName CP-1.\x1b]0;owned\x07", pay_url="https://pay.example.org/1")
    )
    assert lines[1:] == [
        "amount     500 credits",
        "to pay     INR 500.00",
        "state      requested",
        "pay at     https://pay.example.org/1",
        "how        Pay to bank 1.",
        "           Name CP-1.",
    ]


@pytest.mark.parametrize("state", PayoutState)
def test_a_payout_says_what_its_state_means(state: PayoutState) -> None:
    said = describe_payout(make_payout(state=state))[3]
    assert state is PayoutState.REQUESTED or said != f"state      {state.value}"


def test_a_payout_that_failed_says_why() -> None:
    assert describe_payout(make_payout(state=PayoutState.FAILED, failure="refused: no such bank"))[-1] == (
        "why        refused: no such bank"
    )


def test_history_is_newest_first_and_tells_in_from_out() -> None:
    text = draw(history_table([make_top_up()], [make_payout(failure="[red]no[/red]")], limit=5))
    out, into = [line for line in text.splitlines() if "INR" in line]
    assert re.search(r"payout +cafe1234 +-600 +INR 600.00 +reserved +\[red\]no\[/red\]", out)
    assert re.search(r"top-up +abcdef12 +500 +INR 500.00 +requested", into)
    assert draw(history_table([make_top_up()] * 3, [], limit=2)).count("top-up") == 2


def test_an_operator_reads_whose_it_is_and_where_it_goes() -> None:
    person = UUID(int=0x77777777)
    payout = AccountPayout(account_id=person, payout=make_payout(), region="IN", destination="HDFC 1\x1b[2J")
    top_up = AccountTopUp(account_id=person, top_up=make_top_up(reference="CP-0000ABCDEF12"))
    said = draw(payouts_table([payout]))
    assert re.search(r"cafe1234 .* 77777777 +600 +INR 600.00 +manual +IN HDFC 1$", said, re.M)
    assert re.search(r"abcdef12 .* 77777777 +500 +INR 500.00 +CP-0000ABCDEF12 +manual", draw(top_ups_table([top_up])))


def test_an_operator_reads_what_cash_is_worth_and_what_is_an_example() -> None:
    rates = CashRates(
        rates=[
            CashRate(currency="INR", microcredits_per_minor_unit=10_000, is_example=False),
            CashRate(currency="USD", microcredits_per_minor_unit=884_500, is_example=False),
            CashRate(currency="JPY", microcredits_per_minor_unit=570_000, is_example=True),
        ],
        rates_on=NOW.date(),
        warnings=[],
    )
    shown = " ".join(" ".join(describe_rates(rates)).split())
    assert "INR 1 1 USD 1 88.45 JPY 1 0.57 an example, set by nobody" in shown
    assert "Set by the operator, as of 2026-01-01." in shown


def test_an_operator_reads_what_was_not_believed_and_who_is_frozen() -> None:
    event = ProviderEvent(
        provider="acme",
        event_id="evt_1",
        kind="top_up.paid",
        subject_id=UUID(int=1),
        currency="INR",
        amount_minor=1,
        reference="",
        doubt=Doubt.AMOUNT_MISMATCH,
        received_at=NOW,
    )
    assert re.search(r"acme +evt_1 +top_up.paid .* INR 0.01 +amount_mismatch", draw(events_table([event])))
    frozen = Freeze(account_id=UUID(int=1), why="the cash was taken back", frozen_at=NOW)
    assert "the cash was taken back" in draw(freezes_table([frozen]))
