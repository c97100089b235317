"""What owners type of their terms, and what is shown of them."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import click
import msgspec
import pytest

from computepool.cli import node as node_command
from computepool.cli.nodes import _list_terms, _show_trust, find_local_zone, to_terms
from computepool.core.market.offers import Audience
from computepool.core.trust.standing import Standing
from computepool.wire.nodes import Offer
from computepool.wire.trust import NodeTrust


@pytest.mark.parametrize(
    ("given", "terms"),
    [
        ({"floor": "8"}, {"floor": "8"}),
        ({"kinds": "compute, ml,"}, {"kinds": ["compute", "ml"]}),
        ({"kinds": "all"}, {"kinds": []}),
        ({"pool": "own"}, {"pool": "own"}),
        ({"pool": "named:a@b.c, d@e.f"}, {"pool": ["a@b.c", "d@e.f"]}),
        ({"hours": "always"}, {"hours": "always"}),
        ({"hours": "19-7", "zone": "UTC"}, {"hours": "19-7", "zone": "UTC"}),
    ],
)
def test_options_become_terms(given: dict[str, Any], terms: dict[str, Any]) -> None:
    assert to_terms(given, zone=None) == terms


def test_hours_are_those_of_this_machine_unless_a_clock_was_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    assert to_terms({"hours": "19-7"}, zone=None) == {"hours": "19-7", "zone": "Asia/Kolkata"}
    assert to_terms({"hours": "19-7"}, zone="Europe/Berlin") == {"hours": "19-7"}, "it is kept"
    assert to_terms({"floor": "1"}, zone=None) == {"floor": "1"}


@pytest.mark.parametrize(
    ("variable", "place", "zone"),
    [
        (":Asia/Kolkata", "", "Asia/Kolkata"),
        ("/usr/share/zoneinfo/Europe/Berlin", "", "Europe/Berlin"),
        ("", "/usr/share/zoneinfo/Etc/UTC", "Etc/UTC"),
    ],
)
def test_a_machine_says_its_zone_by_variable_or_link(
    monkeypatch: pytest.MonkeyPatch, variable: str, place: str, zone: str
) -> None:
    monkeypatch.setenv("TZ", variable)
    monkeypatch.setattr("os.path.realpath", lambda path: place)
    assert find_local_zone() == zone


def test_a_machine_that_does_not_say_its_zone_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TZ", raising=False)
    monkeypatch.setattr("os.path.realpath", lambda path: "/etc/localtime")
    with pytest.raises(click.UsageError, match="--zone"):
        find_local_zone()


def test_only_what_is_asked_for_is_shown_of_an_offer() -> None:
    assert _list_terms(Offer()) == [("floor", "0 credits/h for a slot")]
    opens = datetime(2030, 1, 7, 19, 0, tzinfo=UTC)
    whole = Offer(
        floor_microcredits_per_hour=8_000_000,
        hours="mon-fri 19-7",
        zone="UTC",
        seconds_min=300,
        kinds=["compute", "ml"],
        audience=Audience.NAMED,
        accounts=[UUID(int=1)],
        opens_at=opens,
    )
    assert dict(_list_terms(whole)) == {
        "floor": "8 credits/h for a slot",
        "hours": f"mon-fri 19-7 (UTC); closed, opens {opens.astimezone():%a %H:%M}",
        "slices": "of 5 min or more",
        "kinds": "compute, ml",
        "pool": f"yourself and 1 account: {UUID(int=1)}",
    }
    assert ("pool", "yourself alone") in _list_terms(Offer(audience=Audience.OWN))


def test_the_agent_is_started_with_a_floor() -> None:
    [option] = [each for each in node_command.command.params if "--floor" in each.opts]
    assert option.name == "floor_credits_per_hour", "as the settings of the agent know it"


def test_trust_tells_since_when_a_node_serves_how_soon_it_is_paid_and_what_waits(capsys) -> None:
    known = NodeTrust(
        node_id=UUID(int=1),
        standing=Standing.CLEAR,
        words="Trusted.",
        integrity=0.94,
        validated_count=200,
        audit_rate=0.15,
        is_trusted=True,
        is_vouched=False,
        bugged_count=0,
        pay_words="Pay is held back for 6 h.",
        serving_since=datetime(2026, 1, 2, tzinfo=UTC),
    )
    _show_trust(SimpleNamespace(name="attic-pc"), known)
    said = capsys.readouterr().out
    assert "Serving cleanly since 2026-01-02. Pay is held back for 6 h." in said
    assert "Waiting" not in said
    waiting = msgspec.structs.replace(
        known, serving_since=None, pay_waiting_count=3, pay_waiting_microcredits=2_000_000
    )
    _show_trust(SimpleNamespace(name="attic-pc"), waiting)
    said = capsys.readouterr().out
    assert "Waiting beyond its holdback: 2 credits, for 3 attempts." in said
    assert "Serving" not in said
