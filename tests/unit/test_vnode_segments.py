"""How a network is grouped into segments, in which order gradients are added, and what a gate lets through."""

from __future__ import annotations

import pytest
import torch

from computepool.core.networks.graph import draw_graph
from computepool.core.networks.placement import Location, Placement, SeatId
from computepool.core.networks.spec import NetworkSpec
from computepool.node.vnodes.gating import Gate
from computepool.node.vnodes.gradients import Gathering, add_in_order, flatten, unflatten
from computepool.node.vnodes.segments import Segment, Term, plan_segments
from tests.support.vnode_nets import RUN_ID, make_net, place_all


def place(spec: NetworkSpec, seats: dict[str, str]) -> Placement:
    """VNodes that are not named go to seat x."""
    locations = (Location(vnode.id, SeatId(seats.get(vnode.id, "x"))) for vnode in spec.vnodes)
    return Placement(RUN_ID, 1, tuple(locations))


def plan(spec: NetworkSpec, placement: Placement) -> dict[str, Segment]:
    return {segment.first: segment for segment in plan_segments(spec, draw_graph(spec), placement)}


def test_a_chain_on_one_seat_is_one_segment() -> None:
    spec = make_net("mlp")

    segments = plan(spec, place_all(spec, 1))

    assert [each.vnode_ids for each in segments.values()] == [("a", "b", "c", "d", "e", "loss")]


def test_a_chain_is_cut_where_its_seat_changes_and_again_where_it_comes_back() -> None:
    spec = make_net("mlp")

    segments = plan(spec, place(spec, {"c": "y"}))

    assert [each.vnode_ids for each in segments.values()] == [("a", "b"), ("c",), ("d", "e", "loss")]
    assert [each.crossings for each in segments.values()] == [2, 1, 0]


def test_branches_on_one_seat_are_one_segment_too() -> None:
    spec = make_net("residual")

    segments = plan(spec, place_all(spec, 1))

    assert [each.vnode_ids for each in segments.values()] == [tuple(vnode.id for vnode in spec.vnodes)]
    assert segments["a"].inputs == ()
    assert segments["a"].outputs == ()


def test_a_tensor_that_is_read_on_another_seat_is_cut_for_all_its_readers() -> None:
    spec = make_net("residual")

    segments = plan(spec, place(spec, {"c": "y"}))

    assert segments["a"].vnode_ids == ("a",)
    assert [edge.target for edge in segments["a"].outputs[0].readers] == ["b", "c", "sum"]
    assert segments["b"].vnode_ids == ("b", "d"), "they need not wait for c"
    assert segments["c"].seat == "y"
    assert segments["sum"].vnode_ids[0] == "sum"
    assert [str(edge) for edge in segments["sum"].inputs] == ["a:0 -> sum:0", "d:0 -> sum:1", "c:0 -> sum:2"]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("kind", ["residual", "towers"])
def test_no_segment_waits_for_what_depends_on_itself(kind: str, seed: int) -> None:
    spec = make_net(kind)
    segments = plan(spec, place_all(spec, 3, seed=seed))
    home = {vnode_id: each.first for each in segments.values() for vnode_id in each.vnode_ids}
    waits_for = {each.first: {home[edge.source] for edge in each.inputs} for each in segments.values()}

    assert sorted(home) == sorted(vnode.id for vnode in spec.vnodes), "every VNode is in one segment"
    while waits_for:
        ready = {name for name, others in waits_for.items() if not others & set(waits_for)}
        assert ready, f"{waits_for} wait for each other"
        waits_for = {name: others for name, others in waits_for.items() if name not in ready}


def find_terms(spec: NetworkSpec, placement: Placement, vnode_id: str) -> tuple[Term, ...]:
    outputs = [output for each in plan(spec, placement).values() for output in each.outputs]
    return next(output.terms for output in outputs if output.vnode_id == vnode_id)


def test_gradients_are_added_in_the_reverse_order_of_forward_use() -> None:
    spec = make_net("residual")

    terms = find_terms(spec, place(spec, {"e": "y"}), "sum")

    assert [[str(edge) for edge in term.edges] for term in terms] == [
        ["sum:0 -> gate:0"],
        ["sum:0 -> e:0"],
        ["sum:0 -> twice:1"],
        ["sum:0 -> twice:0"],
    ]


def test_only_what_comes_first_in_the_order_is_added_on_another_seat() -> None:
    spec = make_net("residual")

    last_two = find_terms(spec, place(spec, {"gate": "y", "e": "y"}), "sum")
    first_two = find_terms(spec, place(spec, {"twice": "y"}), "sum")

    assert [(term.seat, len(term.edges)) for term in last_two] == [("y", 2), ("x", 1), ("x", 1)]
    assert [(term.seat, len(term.edges)) for term in first_two] == [("x", 1), ("x", 1), ("y", 1), ("y", 1)]


def test_replicas_have_segments_of_their_own() -> None:
    spec = make_net("mlp", replicas=2)

    segments = plan_segments(spec, draw_graph(spec), place_all(spec, 2))

    assert [(each.replica, each.seat) for each in segments] == [
        (0, "seat-0-0"),
        (0, "seat-0-1"),
        (1, "seat-1-0"),
        (1, "seat-1-1"),
    ]


def test_a_gate_bounds_what_is_in_flight_and_keeps_the_order() -> None:
    gate = Gate(range(4), in_flight_max=2, step=0, until_step=1)

    assert (gate.next_forward, gate.next_backward) == (0, None)
    gate.forwarded = 2
    assert (gate.next_forward, gate.next_backward) == (None, 0)
    gate.returned = 1
    assert (gate.next_forward, gate.next_backward) == (2, 1)
    gate.forwarded = gate.returned = 4
    assert gate.is_step_over
    gate.begin_next_step()
    assert gate.next_forward is None, "the end is reached"


def test_a_gate_of_a_replica_counts_its_own_micro_batches() -> None:
    gate = Gate(range(1, 8, 3), in_flight_max=1, step=2, until_step=9, forwarded=2, returned=1)

    assert gate.next_backward == 4
    assert [gate.has_forwarded(2, each) for each in (1, 4, 7)] == [True, True, False]
    assert [gate.has_returned(2, each) for each in (1, 4, 7)] == [True, False, False]
    assert gate.has_forwarded(1, 7)
    assert not gate.has_forwarded(3, 1)


def test_parts_are_taken_in_the_order_of_their_names() -> None:
    parts: Gathering[str, int] = Gathering(["a", "b", "c"])
    moment = (0, 0)

    assert parts.missing(moment) == ["a", "b", "c"]
    assert [parts.put(moment, name, number) for name, number in (("c", 3), ("a", 1), ("c", 9))] == [True, True, False]
    assert not parts.is_complete(moment)
    assert parts.missing(moment) == ["b"]
    parts.put(moment, "b", 2)

    assert parts.is_complete(moment)
    assert parts.take(moment) == [1, 2, 3]
    assert len(parts) == 0


def test_the_order_of_a_sum_decides_its_bits() -> None:
    large, small = torch.tensor([1e8]), torch.tensor([3.0])

    one = add_in_order([large, small, -large])
    other = add_in_order([large, -large, small])

    assert one is not None
    assert other is not None
    assert one.item() == 0.0
    assert other.item() == 3.0
    assert add_in_order([None, small, None]) is small
    assert add_in_order([None]) is None


@pytest.mark.parametrize("shapes", [[(2, 3)], [(4,), (1, 5), ()]])
def test_flat_gradients_come_apart_as_they_were(shapes: list[tuple[int, ...]]) -> None:
    tensors = [torch.randn(shape) for shape in shapes]

    back = unflatten(flatten(tensors), tensors)

    assert all(torch.equal(one, two) for one, two in zip(tensors, back, strict=True))
    assert all(each.storage_offset() == 0 for each in back)
