"""What people read of the leaderboard, and whose plug chaos pulls."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from computepool.cli.demo_chaos import choose_victim, list_hosts
from computepool.cli.leaderboard import describe_leaders
from computepool.core.live.leaderboard import Measure, Period
from computepool.core.placement.slot import SlotKind
from computepool.wire.leaderboard import Leader, Leaderboard
from computepool.wire.live import MeshEdge, MeshNode


def make_board(by: Measure, *values: int) -> Leaderboard:
    rows = [Leader(rank=rank, pseudonym=f"name-{rank}", value=value) for rank, value in enumerate(values, 1)]
    return Leaderboard(by=by, period=Period.WEEK, rows=rows)


@pytest.mark.parametrize(
    ("by", "value", "words"),
    [
        (Measure.EARNED, 1_234_567_890, "1,234.56"),
        (Measure.HOURS, 5_400, "1.5"),
        (Measure.VERIFIED_SLICES, 1_200, "1,200"),
        (Measure.RELIABILITY, 987_000, "98.7%"),
    ],
)
def test_values_are_said_in_their_units(by: Measure, value: int, words: str) -> None:
    assert words in describe_leaders(make_board(by, value))[-1]


def test_an_empty_board_says_so() -> None:
    assert "Nobody" in describe_leaders(make_board(Measure.EARNED))[0]


def make_node(id: str, *, busy: bool = False, online: bool = True, synthetic: bool = True) -> MeshNode:
    return MeshNode(
        id=id,
        tier="cpu",
        kind=SlotKind.CPU,
        speed_tflops=0.1,
        country=None,
        point=None,
        online=online,
        busy=busy,
        slots=1,
        busy_slots=int(busy),
        synthetic=synthetic,
        joined_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


def test_chaos_takes_a_busy_synthetic_machine_and_never_the_last_one() -> None:
    idle, busy = make_node("idle"), make_node("busy", busy=True)
    real = make_node("real", busy=True, synthetic=False)
    for chance in (0.0, 0.5, 0.99):
        assert choose_victim([idle, busy, real], chance=chance) is busy
    assert choose_victim([busy, real, make_node("off", online=False)], chance=0.0) is None


def test_chaos_takes_a_machine_of_the_network_when_it_is_the_networks_turn_and_spares_it_otherwise() -> None:
    host, other = make_node("host", busy=True), make_node("other", busy=True)
    for chance in (0.0, 0.5, 0.99):
        assert choose_victim([host, other], {"host"}, under_network=True, chance=chance) is host
        assert choose_victim([host, other], {"host"}, chance=chance) is other
    # Without neighbours on the map nobody knows whose turn it is; plugs are pulled all the same.
    assert choose_victim([host, other], (), under_network=True, chance=0.0) is host


def test_hosts_of_a_network_are_those_with_a_neighbour_on_the_map() -> None:
    edge = MeshEdge(run="r", source="a", target="b", vnodes=1)
    assert list_hosts([edge]) == {"a", "b"}
    assert list_hosts([]) == frozenset()
