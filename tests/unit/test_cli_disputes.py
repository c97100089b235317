"""What people type and read about disputed pay, before and after a hub is asked."""

from __future__ import annotations

import io
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import click
import pytest
from rich.console import Console

from computepool.cli.credits import command, describe_credits
from computepool.cli.disputes import describe_dispute, disputes_table
from computepool.cli.main import EXIT_REFUSED, run
from computepool.cli.statement import describe_node
from computepool.core.jobs.state import AttemptState
from computepool.core.ledger.dispute import DisputeOrigin, DisputeSide, DisputeState
from computepool.core.ledger.earning import EarningState
from computepool.wire.credits import CashTerms, Credits
from computepool.wire.disputes import AccountDispute, Dispute, OwnDispute
from computepool.wire.statements import ChargeLine, NodeStatement

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings of the person who runs the tests."""
    for name in ("HUB_URL", "COMPUTEPOOL_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def make_dispute(**overrides: Any) -> Dispute:
    fields: dict[str, Any] = {
        "id": UUID(int=0xD15B07E1),
        "state": DisputeState.OPEN,
        "origin": DisputeOrigin.SUBMITTER,
        "attempt_id": UUID(int=2),
        "job_id": UUID(int=0xABCDEF12),
        "slice_index": 3,
        "number": 1,
        "node_id": UUID(int=4),
        "charged_microcredits": 100_000_000,
        "earned_microcredits": 80_000_000,
        "release_at": NOW,
        "reason": "every pixel is black\x1b[2J",
        "opened_at": NOW,
    }
    return Dispute(**(fields | overrides))


def draw(table: Any) -> str:
    stream = io.StringIO()
    Console(file=stream, width=200, color_system=None).print(table)
    return stream.getvalue()


@pytest.mark.parametrize("state", DisputeState)
def test_a_dispute_says_what_its_state_means_and_commands_no_terminal(state):
    lines = describe_dispute(make_dispute(state=state, note="looked at it"))
    assert lines[3].startswith(f"state      {state.value}; ")
    assert lines[4:] == ["why        every pixel is black", "decided    looked at it"]


def test_a_person_reads_which_side_is_theirs():
    mine = OwnDispute(side=DisputeSide.SUBMITTER, dispute=make_dispute())
    theirs = OwnDispute(side=DisputeSide.OWNER, dispute=make_dispute(state=DisputeState.UPHELD, note="so it is"))
    first, second = draw(disputes_table([mine, theirs])).splitlines()[2:]
    assert re.search(r"d15b07e1 .* abcdef12/3 +your job +100 +open +every pixel is black", first)
    assert re.search(r"your node +100 +upheld +every pixel is black +so it is", second)


def test_an_operator_reads_whose_node_it_was():
    found = AccountDispute(submitter_id=UUID(int=5), owner_id=UUID(int=0x77777777), dispute=make_dispute())
    assert "owner 77777777" in draw(disputes_table([found]))


def test_an_owner_reads_how_much_is_frozen_and_where_to_look():
    terms = CashTerms(
        currency="INR", microcredits_per_minor_unit=1, top_up_microcredits_min=1, payout_microcredits_min=1
    )
    found = Credits(
        available_microcredits=0,
        held_microcredits=0,
        pending_microcredits=240_000_000,
        disputed_microcredits=80_000_000,
        earned_microcredits=0,
        owed_microcredits=0,
        terms=terms,
    )
    assert "disputed    80  of what is pending; see computepool credits disputes" in describe_credits(found)


def test_a_statement_says_what_is_disputed_and_why():
    line = ChargeLine(
        attempt_id=UUID(int=2),
        job_id=UUID(int=0xABCDEF12),
        slice_index=3,
        number=1,
        node_id=UUID(int=4),
        slot="cpu:0",
        state=AttemptState.SUCCEEDED,
        leased_at=NOW,
        charged_microcredits=100,
        fee_microcredits=20,
        earned_microcredits=80,
        charged_credits="0.000100",
        earned_credits="0.000080",
        earning_state=EarningState.DISPUTED,
        dispute_state=DisputeState.OPEN,
        dispute_reason="every pixel is black",
    )
    lines = describe_node(NodeStatement(node_id=UUID(int=4), since=NOW, until=NOW, sums=[], attempts=[line]))
    assert any(re.search(r"0.000080 +disputed", each) for each in lines)
    assert lines[-1] == "abcdef12/3 dispute open: every pixel is black"


@pytest.mark.parametrize("typed", [["disputes", "--state", "open"], ["dispute", "last"], ["reverse", "x", "y"]])
def test_what_is_typed_wrongly_is_told_before_a_hub_is_asked(typed, capsys):
    assert run(["credits", *typed]) == EXIT_REFUSED
    assert "error" in capsys.readouterr().err.lower()


def test_choices_are_those_of_the_wire():
    part = command.commands["disputes"]
    [state] = [each for each in part.params if each.name == "state"]
    assert isinstance(state.type, click.Choice)
    assert list(state.type.choices) == [each.value for each in DisputeState]
