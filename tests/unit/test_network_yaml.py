"""Networks as YAML: short to write, strict to read."""

from __future__ import annotations

from pathlib import Path

import pytest

from computepool.core.errors import InvalidSpec
from computepool.core.networks.spec import NetworkSpec
from computepool.networks.network import Network
from computepool.networks.yaml_file import from_yaml, read_yaml, to_yaml
from tests.support.networks import make_branching, make_char_lm, make_conv, make_mlp

SHORT = """
name: net
seed: 7
batch_size: 16
micro_batches: 4
optimizer: {kind: adam, lr: 1e-2}
sources: {x: "f32[16]", y: "i64[]"}
vnodes:
  - id: a
    block: sequential
    inputs: ["@x"]
    config:
      blocks:
        - {block: linear, path: "0", config: {features: 24}}
        - {block: relu, path: "1", config: {}}
  - id: b
    block: sequential
    inputs: [a]
    config:
      blocks:
        - {block: linear, path: "2", config: {features: 24}}
        - {block: relu, path: "3", config: {}}
  - {id: head, block: linear, path: "4", config: {features: 10}, inputs: ["b:0"]}
  - {id: loss, block: cross_entropy, inputs: [head, "@y"]}
loss: loss
output: head
"""


def test_the_short_way_of_writing_is_the_same_network() -> None:
    assert from_yaml(SHORT) == make_mlp()


@pytest.mark.parametrize(
    "spec", [make_mlp(), make_conv(), make_branching(), make_char_lm()], ids=lambda spec: spec.name
)
def test_a_network_comes_back_from_its_file_as_it_was(spec: NetworkSpec, tmp_path: Path) -> None:
    Network(spec).save(tmp_path / "net.yaml")
    assert Network.load(tmp_path / "net.yaml").spec == spec


def test_what_is_as_always_is_not_written() -> None:
    text = to_yaml(make_mlp())
    for name in ("edges", "replicas", "wire", "betas", "checkpoint_every"):
        assert name not in text


def test_edges_may_be_written_out() -> None:
    text = SHORT.replace("    inputs: [a]\n", "") + "edges: [{source: a, target: b}]\n"
    assert from_yaml(text) == make_mlp()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: [", "not YAML that can be read"),
        ("- 1", "must begin with its fields"),
        ("name: a\nname: b", "the key 'name' stands twice"),
        ("a: &x [1]\nb: *x", "references (*name) are not allowed"),
        ("a: " + "[" * 500 + "]" * 500, "nested deeper than 64"),
        ("a: !!python/object/apply:os.system [ls]", "not YAML that can be read"),
        (SHORT.replace("output: head", "outputs: head"), "network.outputs is unknown; did you mean output?"),
        (SHORT.replace('["@x"]', "a"), "vnodes[0].inputs is unknown"),
        (SHORT.replace("lr: 1e-2", "lr: fast"), "optimizer.lr is 'fast'; it must be a number"),
        (SHORT.replace("[head, ", "[3, "), "edges[3].source is 3; it must be a string"),
    ],
    ids=["torn", "list", "double", "alias", "deep", "code", "unknown", "inputs", "word", "number"],
)
def test_a_file_that_is_no_network_is_refused(text: str, told: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        from_yaml(text)
    assert told in refused.value.message


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="cannot be read: No such file"):
        read_yaml(tmp_path / "ghost.yaml")


def test_a_network_with_faults_is_not_made() -> None:
    with pytest.raises(InvalidSpec, match="batch_size 16 does not split into 5 micro_batches") as refused:
        Network(make_mlp(micro_batches=5))
    assert len(refused.value.details["faults"]) == 1
