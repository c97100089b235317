"""Where VNodes live: what makes a placement whole, and what changes when some of them move."""

from __future__ import annotations

from dataclasses import replace

from computepool.core.networks.entries import list_entries
from computepool.core.networks.graph import draw_graph
from computepool.core.networks.placement import Location, Placement, SeatId, list_placement_faults, move
from tests.support.vnode_nets import make_net, place_all


def test_a_placement_of_all_vnodes_has_no_faults() -> None:
    spec = make_net("mlp", replicas=2)

    assert list_placement_faults(spec, place_all(spec, 2)) == []


def test_all_that_is_wrong_with_a_placement_is_told_at_once() -> None:
    spec = make_net("mlp")
    whole = place_all(spec, 2)
    locations = (
        *(each for each in whole.locations if each.vnode_id != "c"),
        Location("stranger", SeatId("seat-0")),
        Location("a", SeatId("seat-1")),
        Location("d", SeatId("")),
    )

    faults = list_placement_faults(spec, Placement("run-1", 0, locations))

    assert "VNode c has no seat" in faults
    assert "VNode stranger is not part of network mlp" in faults
    assert "VNode a has 2 seats" in faults
    assert "epoch 0: epochs count from 1" in faults
    assert any("name of 0 characters" in fault for fault in faults)


def test_a_move_raises_the_epoch_and_the_incarnation_of_what_moved_alone() -> None:
    spec = make_net("mlp")
    before = place_all(spec, 2)
    before = replace(before, locations=tuple(replace(each, address="10.0.0.1:7") for each in before.locations))

    after = move(before, {("a", 0): SeatId("seat-9")})

    assert after.epoch == before.epoch + 1
    assert after.find("a") == Location("a", SeatId("seat-9"), 0, incarnation=2)
    assert [each for each in after.locations if each.vnode_id != "a"] == list(before.locations[1:])


def test_seats_are_listed_once_and_hold_their_vnodes() -> None:
    spec = make_net("mlp")
    placement = place_all(spec, 2)

    assert placement.seats == ("seat-0", "seat-1")
    assert [each.vnode_id for each in placement.at(SeatId("seat-0"))] == ["a", "b", "c"]
    assert placement.find("nobody") is None


def test_a_request_enters_where_its_sources_are_read_and_not_at_the_loss() -> None:
    spec = make_net("towers")
    placement = place_all(spec, 3)

    entries = list_entries(spec, draw_graph(spec), placement)

    assert {(entry.source_name, entry.target) for entry in entries} == {("x", "turn"), ("z", "r1")}
    assert all(entry.seat == placement.seat_of(entry.target) for entry in entries)
