"""The order of a network, and what follows from it: who waits for whom, and how gradients are added."""

from __future__ import annotations

from dataclasses import replace

from computepool.core.networks.graph import draw_graph, find_cycle, order_forward
from computepool.core.networks.shapes import list_gradient_edges
from computepool.core.networks.spec import Dtype, Edge, Source, TensorType, VNodeSpec
from tests.support.networks import Y, chain, make_branching


def test_the_spec_decides_the_order_where_the_edges_do_not() -> None:
    spec = make_branching()
    assert order_forward(spec) == ("stem", "left", "right", "sum", "head", "loss")
    swapped = replace(spec, vnodes=tuple(spec.vnodes[index] for index in (0, 2, 1, 3, 4, 5)))
    assert order_forward(swapped) == ("stem", "right", "left", "sum", "head", "loss")


def test_a_vnode_never_comes_before_what_feeds_it() -> None:
    spec = make_branching()
    backwards = replace(spec, vnodes=spec.vnodes[::-1])
    assert order_forward(backwards) == ("stem", "right", "left", "sum", "head", "loss")


def test_users_of_a_tensor_stand_in_order_of_forward_use_and_gradients_are_added_backwards() -> None:
    graph = draw_graph(make_branching())
    assert [str(edge) for edge in graph.consumers["stem", 0]] == [
        "stem:0 -> left:0",
        "stem:0 -> right:0",
        "stem:0 -> sum:0",
    ]
    assert [edge.target for edge in graph.gradient_order("stem")] == ["sum", "right", "left"]


def test_two_slots_of_one_user_stand_in_order_of_slots() -> None:
    spec = chain(VNodeSpec("a", "relu"), VNodeSpec("sum", "add"))
    graph = draw_graph(replace(spec, edges=(Edge("a", "sum", target_slot=1), *spec.edges)))
    assert [edge.target_slot for edge in graph.consumers["a", 0]] == [0, 1]
    assert [edge.target_slot for edge in graph.inputs["sum"]] == [0, 1]


def test_the_stage_is_the_longest_way_to_the_loss() -> None:
    graph = draw_graph(make_branching())
    assert graph.stages == {"stem": 4, "left": 3, "right": 3, "sum": 2, "head": 1, "loss": 0}


def test_producers_users_and_sources_are_known() -> None:
    graph = draw_graph(make_branching())
    assert graph.producers("sum") == ["stem", "left", "right"]
    assert graph.users("stem") == ["left", "right", "sum"]
    assert graph.ancestors("right") == ("stem", "right")
    assert graph.source_names(graph.ancestors("head")) == ["x"]
    assert graph.source_names(graph.order) == ["x", "y"]


def test_no_cycle_is_found_where_there_is_none() -> None:
    assert find_cycle(make_branching()) == []


def test_a_cycle_behind_other_vnodes_is_found_without_them() -> None:
    spec = chain(VNodeSpec("a", "relu"), VNodeSpec("b", "add"), VNodeSpec("c", "relu"), VNodeSpec("d", "relu"))
    spec = replace(spec, edges=(*spec.edges, Edge("c", "b", target_slot=1)))
    assert find_cycle(spec) == ["b", "c", "b"]


def test_no_gradient_comes_back_to_whole_numbers_or_to_what_has_no_weights() -> None:
    embed = VNodeSpec("embed", "embedding", {"vocabulary": 5, "features": 4})
    tokens = (Source("x", TensorType((3,), Dtype.I64)), Source("y", TensorType((3,), Dtype.I64)))
    spec = chain(VNodeSpec("turn", "flatten"), embed, VNodeSpec("head", "linear", {"features": 5}), sources=tokens)
    assert {str(edge) for edge in list_gradient_edges(spec)} == {"embed:0 -> head:0", "head:0 -> loss:0"}
    floats = chain(
        VNodeSpec("a", "relu"), VNodeSpec("b", "linear", {"features": 10}), sources=(Source("x", TensorType((4,))), Y)
    )
    assert {edge.source for edge in list_gradient_edges(floats)} == {"b"}
