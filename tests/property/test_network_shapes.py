"""Shapes that are inferred are the shapes that torch computes, and no spec makes the reading of it fall over.

Each property has a negative control: something broken on purpose, which the same property must catch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from computepool.core.networks.blocks import BLOCKS, read_vnode
from computepool.core.networks.blocks_spatial import Conv2d
from computepool.core.networks.faults import list_spec_faults
from computepool.core.networks.graph import draw_graph, order_forward
from computepool.core.networks.shapes import infer_shapes
from computepool.core.networks.spec import ConfigValue, Dtype, Edge, NetworkSpec, Source, TensorType, VNodeSpec
from computepool.core.networks.spec_json import from_json, to_json
from computepool.networks.uncut import UncutNetwork

BOUNDED = settings(max_examples=40, deadline=None, derandomize=True, database=None, report_multiple_bugs=False)
CONTROLLED = settings(BOUNDED, max_examples=200, phases=[Phase.generate])

small = st.integers(1, 4)
pairs = st.tuples(small, small)


@st.composite
def pictures_blocks(draw: st.DrawFn) -> tuple[str, dict[str, ConfigValue]]:
    """Blocks that may follow a picture; not all fit, and those that do not are left out by the network's builder."""
    name = draw(st.sampled_from(["conv2d", "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "group_norm", "relu"]))
    window = {"kernel": draw(pairs), "stride": draw(st.one_of(small, pairs)), "padding": draw(st.integers(0, 2))}
    configs: dict[str, dict[str, ConfigValue]] = {
        "conv2d": {"channels": draw(st.integers(1, 6)), "groups": draw(st.integers(1, 2)), **window},
        "max_pool2d": window,
        "avg_pool2d": {"kernel": draw(pairs)},
        "adaptive_avg_pool2d": {"size": draw(pairs)},
        "group_norm": {"groups": draw(st.integers(1, 3))},
        "relu": {},
    }
    return name, configs[name]


@st.composite
def rows_blocks(draw: st.DrawFn) -> tuple[str, dict[str, ConfigValue]]:
    """Blocks that may follow positions and features."""
    name = draw(
        st.sampled_from(["linear", "layer_norm", "attention", "gru", "transpose", "positional", "mlp", "tanh"])
    )
    configs: dict[str, dict[str, ConfigValue]] = {
        "linear": {"features": draw(st.integers(1, 6))},
        "attention": {"heads": draw(st.integers(1, 2)), "causal": draw(st.booleans())},
        "gru": {"features": draw(small), "layers": draw(st.integers(1, 2))},
        "transpose": {"dims": (0, 1)},
        "mlp": {"hidden": draw(st.lists(small, min_size=1, max_size=2).map(tuple)), "features": draw(small)},
    }
    return name, configs.get(name, {})


@st.composite
def networks(draw: st.DrawFn) -> NetworkSpec:
    """A stem, some blocks that fit one another joined with earlier ones now and then, and an end."""
    is_picture = draw(st.booleans())
    shape = draw(
        st.tuples(small, st.integers(3, 9), st.integers(3, 9)) if is_picture else st.tuples(small, st.integers(1, 6))
    )
    blocks = pictures_blocks() if is_picture else rows_blocks()
    vnodes, edges = [VNodeSpec("v0", "identity")], [Edge("@x", "v0")]
    types = {"v0": TensorType(shape)}
    at = "v0"
    for number, (name, config) in enumerate(draw(st.lists(blocks, max_size=6)), start=1):
        vnode = VNodeSpec(f"v{number}", name, config)
        try:
            found = read_vnode(vnode).infer([types[at]])
        except ValueError:
            continue
        vnodes.append(vnode)
        edges.append(Edge(at, vnode.id))
        types[vnode.id] = found
        at = vnode.id
        twins = [each for each, known in types.items() if known == found and each != at]
        if twins and draw(st.booleans()):
            other = draw(st.sampled_from(twins))
            join = VNodeSpec(f"j{number}", draw(st.sampled_from(["add", "mul", "concat"])))
            vnodes.append(join)
            edges += [Edge(at, join.id), Edge(other, join.id, target_slot=1)]
            types[join.id] = read_vnode(join).infer([found, found])
            at = join.id
    vnodes += [
        VNodeSpec("flat", "flatten"),
        VNodeSpec("head", "linear", {"features": 2}),
        VNodeSpec("loss", "cross_entropy"),
    ]
    edges += [Edge(at, "flat"), Edge("flat", "head"), Edge("head", "loss"), Edge("@y", "loss", target_slot=1)]
    return NetworkSpec(
        name="drawn",
        vnodes=tuple(draw(st.permutations(vnodes))),
        edges=tuple(edges),
        sources=(Source("x", TensorType(shape)), Source("y", TensorType((), Dtype.I64))),
        loss="loss",
        output=("head", 0),
        batch_size=4,
        micro_batches=2,
    )


def check_shapes_are_torchs(spec: NetworkSpec) -> None:
    torch.set_num_threads(1)
    assert list_spec_faults(spec) == []
    network = UncutNetwork(spec)
    network.eval()
    sources = {"x": torch.ones(2, *spec.sources[0].type.shape), "y": torch.zeros(2, dtype=torch.int64)}
    with torch.no_grad():
        computed = network._compute(order_forward(spec), sources)
    shapes = infer_shapes(spec)
    for vnode_id, tensor in computed.items():
        expected = () if vnode_id == "loss" else (2, *shapes[vnode_id, 0].shape)
        assert tuple(tensor.shape) == expected, vnode_id


@BOUNDED
@given(networks())
def test_inferred_shapes_are_those_that_torch_computes(spec: NetworkSpec) -> None:
    check_shapes_are_torchs(spec)


def test_the_control_a_wrong_inference_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    infer = Conv2d.infer

    def infer_without_stride(self: Conv2d, values: Any, inputs: Any) -> TensorType:
        found = infer(self, values, inputs)
        channels, height, width = found.shape
        return TensorType((channels, height + (values.pair("stride")[0] > 1), width))

    monkeypatch.setattr(Conv2d, "infer", infer_without_stride)
    with pytest.raises((AssertionError, RuntimeError)):
        CONTROLLED(given(networks())(check_shapes_are_torchs))()


@BOUNDED
@given(networks())
def test_a_drawn_network_keeps_its_text_and_its_order(spec: NetworkSpec) -> None:
    assert from_json(to_json(spec)) == spec
    graph = draw_graph(spec)
    for edge in spec.edges:
        if edge.source_name is None:
            assert graph.position[edge.source] < graph.position[edge.target]
            assert graph.stages[edge.source] > graph.stages[edge.target]
    assert sum(len(edges) for edges in graph.consumers.values()) == len(spec.edges)


scalars = st.one_of(
    st.integers(-3, 12),
    st.booleans(),
    st.floats(allow_nan=True),
    st.sampled_from(["relu", "a", ""]),
    st.just(1 << 40),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from(["block", "config", "path", "z"]), inner),
    ),
    max_leaves=6,
)


@st.composite
def nonsense(draw: st.DrawFn) -> NetworkSpec:
    """Blocks with anything in their fields, and edges from anywhere to anywhere."""
    names = ["a", "b", "c", "loss"]
    vnodes = []
    for name in names:
        block = draw(st.sampled_from([*BLOCKS, "warp"]))
        fields = list(BLOCKS[block].fields) if block in BLOCKS else []
        config = {field: draw(values) for field in fields if draw(st.booleans())}
        vnodes.append(
            VNodeSpec(
                draw(st.sampled_from([name, "a", "B?"])), block, config, path=draw(st.sampled_from(["", "a", "."]))
            )
        )
    ends = st.sampled_from([*names, "@x", "@y", "ghost", "@"])
    edges = draw(st.lists(st.builds(Edge, ends, ends, st.integers(-1, 1), st.integers(-1, 99)), max_size=8))
    shape = draw(st.lists(st.integers(-1, 5), max_size=9).map(tuple))
    return NetworkSpec(
        name="nonsense",
        vnodes=tuple(vnodes),
        edges=tuple(edges),
        sources=(Source("x", TensorType(shape, draw(st.sampled_from(Dtype)))), Source("y", TensorType(()))),
        loss=draw(st.sampled_from(["loss", "a", "ghost"])),
        output=(draw(st.sampled_from(names)), draw(st.integers(-1, 1))),
        batch_size=draw(st.integers(-1, 9)),
        micro_batches=draw(st.integers(-1, 4)),
        replicas=draw(st.integers(-1, 3)),
    )


@settings(BOUNDED, max_examples=150)
@given(nonsense())
def test_nonsense_is_told_of_and_never_falls_over(spec: NetworkSpec) -> None:
    faults = list_spec_faults(spec)
    assert all(fault and len(fault) < 2_000 for fault in faults)


@settings(BOUNDED, max_examples=40)
@given(networks(), st.data())
def test_a_network_with_one_edge_less_is_refused(spec: NetworkSpec, data: st.DataObject) -> None:
    without = data.draw(st.sampled_from(spec.edges))
    broken = replace(spec, edges=tuple(edge for edge in spec.edges if edge != without))
    assert any(f"vnode {without.target}" in fault for fault in list_spec_faults(broken))
