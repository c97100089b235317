"""A network's text: one for each network, read strictly, with all that is wrong told at once."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from computepool.core.errors import InvalidSpec
from computepool.core.networks.spec import (
    SPEC_BYTES_MAX,
    Dtype,
    Edge,
    Exactness,
    NetworkSpec,
    OptimizerSpec,
    TensorType,
    VNodeSpec,
    find_tensor_type,
)
from computepool.core.networks.spec_json import from_json, from_plain, to_json, to_plain
from tests.support.networks import make_branching, make_char_lm, make_conv, make_mlp

NETWORKS = (make_mlp(), make_conv(), make_branching(), make_char_lm())


@pytest.mark.parametrize("spec", NETWORKS, ids=lambda spec: spec.name)
def test_a_spec_comes_back_from_its_text_as_it_was(spec: NetworkSpec) -> None:
    text = to_json(spec)
    assert from_json(text) == spec
    assert to_json(from_json(text)) == text


def test_the_text_has_no_spaces_and_sorted_keys() -> None:
    text = to_json(make_mlp())
    assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))


def test_the_order_of_edges_does_not_make_another_network() -> None:
    spec = make_branching()
    assert replace(spec, edges=spec.edges[::-1]) == spec
    assert to_json(replace(spec, edges=spec.edges[::-1])) == to_json(spec)


def test_the_order_of_vnodes_does_as_it_decides_the_order_of_sums() -> None:
    spec = make_branching()
    assert to_json(replace(spec, vnodes=spec.vnodes[::-1])) != to_json(spec)


def test_what_is_not_said_is_the_default() -> None:
    plain = to_plain(make_mlp())
    for name in ("optimizer", "replicas", "wire", "exact", "trust", "checkpoint_every", "local_steps"):
        del plain[name]
    spec = from_plain(plain)
    assert spec.optimizer == OptimizerSpec()
    assert (spec.replicas, spec.wire, spec.exact) == (1, Dtype.F32, Exactness.PREFERRED)


def test_a_vnode_without_a_path_stands_at_its_id() -> None:
    assert VNodeSpec("head", "linear").path == "head"
    plain = to_plain(make_mlp())
    del plain["vnodes"][2]["path"]
    assert from_plain(plain).vnodes[2].path == "head"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"batchsize": 4}, "network.batchsize is unknown; did you mean batch_size?"),
        ({"batch_size": "many"}, "batch_size is 'many'; it must be a whole number"),
        ({"batch_size": True}, "batch_size is True; it must be a whole number"),
        ({"wire": "int3"}, "wire is 'int3'; it must be one of f32, f16"),
        ({"exact": "roughly"}, "exact is 'roughly'; it must be one of required, preferred"),
        ({"output": "head"}, "output must be a list"),
        ({"output": ["head"]}, "output must be a VNode and its slot"),
        ({"sources": [{"name": "x", "type": "f31[3]"}]}, "sources[0].type is 'f31[3]'; it is written as f32[3,8,8]"),
        ({"optimizer": {"kind": "lion"}}, "optimizer.kind is 'lion'; it must be one of sgd, adam, adamw"),
        ({"optimizer": {"rate": 1}}, "optimizer.rate is unknown; known are: kind, lr"),
        ({"optimizer": {"betas": [0.9]}}, "optimizer.betas must be two numbers"),
        ({"optimizer": 3}, "optimizer must be an object"),
        ({"vnodes": {}}, "vnodes must be a list"),
        ({"vnodes": [{"id": "a"}]}, "vnodes[0].block is missing"),
        ({"vnodes": [{"id": "a", "block": "linear", "tie": "b"}]}, "vnodes[0].tie is unknown; tied weights are not"),
        ({"vnodes": [{"id": "a", "block": "linear", "code": "x"}]}, "vnodes[0].code is unknown; no code travels"),
        ({"vnodes": [{"id": "a", "block": "linear", "config": 3}]}, "vnodes[0].config must be an object"),
        (
            {"vnodes": [{"id": "a", "block": "linear", "config": {"features": None}}]},
            "vnodes[0].config.features is None",
        ),
        ({"edges": [{"source": "a"}]}, "edges[0].target is missing"),
        ({"vnodes": [{"id": "a", "block": "linear"}] * 2001}, "vnodes has 2,001 entries; 2,000 are allowed"),
    ],
)
def test_what_is_not_understood_is_named_with_what_would_be(change: dict[str, object], told: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        from_plain({**to_plain(make_mlp()), **change})
    assert told in refused.value.message


def test_all_that_is_wrong_is_told_at_once() -> None:
    plain = {**to_plain(make_mlp()), "seed": "x", "wire": 3, "colour": "red"}
    del plain["loss"]
    with pytest.raises(InvalidSpec) as refused:
        from_plain(plain)
    assert len(refused.value.details["faults"]) == 4


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "not JSON"),
        ("[1]", "network must be an object"),
        ('{"name": "a", "name": "b"}', "the key 'name' stands twice"),
        ('{"seed": NaN}', "NaN is not a number that a spec may hold"),
        ("[" * 100_000, "not JSON"),
        ('{"seed": 1' + "0" * 5_000 + "}", "not JSON"),
        (" " * (SPEC_BYTES_MAX + 1), "bytes; 8,000,000 are allowed"),
    ],
    ids=["torn", "list", "double", "nan", "deep", "huge_number", "huge"],
)
def test_text_that_is_no_spec_is_refused(text: str, told: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        from_json(text)
    assert told in refused.value.message


def test_tensor_types_are_written_as_they_are_read() -> None:
    for found in (TensorType(()), TensorType((3, 8, 8)), TensorType((5,), Dtype.I64)):
        assert find_tensor_type(str(found)) == found
    for strange in ("f32", "f32[", "f32[-1]", "f32[1,]", "f32[a]", "f32[1]x", "f32[1]\n"):
        assert find_tensor_type(strange) is None


def test_an_edge_knows_whether_a_source_feeds_it() -> None:
    assert Edge("@x", "a").source_name == "x"
    assert Edge("x", "a").source_name is None
