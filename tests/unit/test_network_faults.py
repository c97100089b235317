"""Networks that cannot be: each fault is found before anything runs, and its message names the VNode and the slot."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from computepool.core.networks.faults import FAULTS_MAX, list_spec_faults
from computepool.core.networks.spec import (
    Dtype,
    Edge,
    NetworkSpec,
    OptimizerKind,
    OptimizerSpec,
    Schedule,
    Source,
    TensorType,
    VNodeSpec,
)
from tests.support.networks import X, Y, chain, entry, make_branching, make_char_lm, make_conv, make_mlp


def told(spec: NetworkSpec) -> str:
    return "\n".join(list_spec_faults(spec))


@pytest.mark.parametrize(
    "spec", [make_mlp(), make_conv(), make_branching(), make_char_lm()], ids=lambda spec: spec.name
)
def test_networks_that_can_be_have_no_fault(spec: NetworkSpec) -> None:
    assert list_spec_faults(spec) == []


def linear(vnode_id: str, features: int = 8) -> VNodeSpec:
    return VNodeSpec(vnode_id, "linear", {"features": features})


def test_a_cycle_is_told_by_its_vnodes() -> None:
    spec = chain(linear("a"), VNodeSpec("b", "add"), linear("c"))
    spec = replace(spec, edges=(*spec.edges, Edge("c", "b", target_slot=1)))
    assert "the VNodes b -> c -> b form a cycle" in told(spec)


def test_a_vnode_that_feeds_itself_is_a_cycle() -> None:
    spec = chain(linear("a"), VNodeSpec("b", "add"))
    spec = replace(spec, edges=(*spec.edges, Edge("b", "b", target_slot=1)))
    assert "the VNodes b -> b form a cycle" in told(spec)


def test_an_unknown_block_is_told_with_the_nearest_known_one() -> None:
    assert "vnode a: block 'linaer' is unknown; did you mean linear?" in told(chain(VNodeSpec("a", "linaer")))
    assert "vnode a: block 'warp' is unknown; known are: linear, mlp" in told(chain(VNodeSpec("a", "warp")))


def test_a_shape_that_does_not_fit_is_told_by_vnode_slot_and_feeder() -> None:
    spec = chain(linear("a", 8), linear("b", 9), VNodeSpec("sum", "add"))
    spec = replace(spec, edges=(*spec.edges, Edge("a", "sum", target_slot=1)))
    fault = "vnode sum (add), fed by b:0, a:0: slot 1 gets f32[8], but slot 0 gets f32[9]: they must be the same"
    assert list_spec_faults(spec) == [fault]


def test_a_misfit_within_a_sequential_is_told_by_its_path() -> None:
    block = VNodeSpec(
        "a", "sequential", {"blocks": (entry("linear", "in", features=8), entry("conv2d", channels=2, kernel=3))}
    )
    assert "vnode a (sequential), fed by @x:0: a.1 (conv2d): slot 0 gets f32[8], but it takes channels" in told(
        chain(block)
    )


@pytest.mark.parametrize(
    ("vnode", "fault"),
    [
        (
            VNodeSpec("a", "embedding", {"vocabulary": 5, "features": 5}),
            "slot 0 gets f32[16], but it takes i64 or i32",
        ),
        (VNodeSpec("a", "group_norm", {"groups": 5}), "whose channels do not split into 5 groups"),
        (VNodeSpec("a", "reshape", {"shape": (3, 5)}), "with 16 numbers, but config.shape holds 15"),
        (VNodeSpec("a", "transpose", {"dims": (0, 3)}), "which has no dimension 3"),
        (VNodeSpec("a", "transformer", {"heads": 2, "hidden": 8}), "but it takes positions and features"),
        (VNodeSpec("a", "residual", {"blocks": (entry("linear", features=9),)}), "f32[16] comes in, but the inner"),
        (VNodeSpec("a", "batch_norm", {"eps": 0}), "config.eps is 0; it must be between 1e-12 and 1.0"),
        (VNodeSpec("a", "linear"), "config.features is missing; it is a whole number"),
        (VNodeSpec("a", "linear", {"features": 0}), "config.features is 0; it must be between 1 and"),
        (VNodeSpec("a", "linear", {"features": 1.5}), "config.features is 1.5; it must be a whole number"),
        (VNodeSpec("a", "linear", {"features": True}), "config.features is True; it must be a whole number"),
        (VNodeSpec("a", "linear", {"features": 4, "bais": True}), "config.bais is unknown; did you mean bias?"),
        (VNodeSpec("a", "dropout", {"p": 1.0}), "config.p is 1.0; it must be between 0.0 and"),
        (VNodeSpec("a", "gelu", {"approximate": "a bit"}), "config.approximate is 'a bit'; it is one of none, tanh"),
        (VNodeSpec("a", "mlp", {"hidden": (3, 0), "features": 4}), "config.hidden is 0; it must be between 1 and"),
        (VNodeSpec("a", "sequential", {"blocks": ()}), "config.blocks is empty"),
        (VNodeSpec("a", "sequential", {"blocks": (3,)}), "config.blocks must be a list of blocks"),
        (VNodeSpec("a", "sequential", {"blocks": (entry("mse"),)}), "a.0: mse is a loss; give it a VNode of its own"),
        (VNodeSpec("a", "residual", {"blocks": (entry("add"),)}), "a.0: add takes 2 inputs or more"),
        (VNodeSpec("a", "sequential", {"blocks": (entry("relu", path="a..b"),)}), "config.blocks[0].path is 'a..b'"),
        (VNodeSpec("a", "sequential", {"blocks": ({"blok": "relu"},)}), "config.blocks[0] must have a block"),
        (VNodeSpec("a", "sequential", {"blocks": (entry("warp"),)}), "a.0: block 'warp' is unknown"),
        (VNodeSpec("a", "reshape", {"shape": (1,) * 9}), "config.shape has 9 entries; it takes 1 to 8"),
        (VNodeSpec("a", "reshape", {"shape": tuple(range(1, 30_000))}), "bytes; 65,536 are allowed: cut the VNode"),
    ],
)
def test_a_block_that_cannot_be_is_told_by_its_vnode(vnode: VNodeSpec, fault: str) -> None:
    found = [each for each in list_spec_faults(chain(vnode)) if fault in each]
    assert found
    assert found[0].startswith("vnode a")


def test_blocks_are_not_nested_without_end() -> None:
    inner = entry("relu")
    for _ in range(12):
        inner = {"block": "sequential", "config": {"blocks": (inner,)}}
    assert "nested deeper than 8" in told(chain(VNodeSpec("a", "sequential", {"blocks": (inner,)})))


def test_slots_that_nobody_feeds_or_two_feed_are_told() -> None:
    spec = chain(linear("a"), VNodeSpec("sum", "add"))
    assert "vnode sum (add): slot 1 is not fed; add an edge to it" in told(spec)
    twice = replace(spec, edges=(*spec.edges, Edge("@x", "sum"), Edge("a", "sum", target_slot=1)))
    assert "vnode sum (add): slot 0 is fed 2 times, by @x, a; join them with add or concat" in told(twice)
    far = replace(spec, edges=(*spec.edges, Edge("a", "sum", target_slot=3)))
    assert "slot 1 is not fed" in told(far)
    assert "slot 2 is not fed" in told(far)
    beyond = replace(spec, edges=(*spec.edges, Edge("a", "loss", target_slot=10**9)))
    assert "vnode loss (cross_entropy): there is no slot 1000000000, which a feeds; it has slots 0 to 1" in told(
        beyond
    )


def test_edges_to_and_from_nowhere_are_told() -> None:
    spec = chain(linear("a"))
    edges = (*spec.edges, Edge("ghost", "a"), Edge("a", "ghost"), Edge("@z", "a"), Edge("a", "loss", source_slot=1))
    found = told(replace(spec, edges=edges))
    assert "edge ghost:0 -> a:0: there is no 'ghost'" in found
    assert "edge a:0 -> ghost:0: there is no VNode 'ghost' to feed" in found
    assert "edge @z:0 -> a:0: there is no '@z'" in found
    assert "edge a:1 -> loss:0: a has one output, slot 0" in found


def test_a_source_that_feeds_nobody_is_told() -> None:
    spec = chain(linear("a"), sources=(X, Y, Source("z", TensorType((3,)))))
    assert list_spec_faults(spec) == ["source z feeds no VNode: add an edge from @z, or leave it out"]


def test_two_losses_are_told_by_name() -> None:
    spec = chain(linear("a"))
    more = (*spec.vnodes, VNodeSpec("other", "mse"))
    spec = replace(spec, vnodes=more, edges=(*spec.edges, Edge("a", "other"), Edge("a", "other", target_slot=1)))
    assert "there are 2 losses, loss, other; a network has one" in told(spec)


def test_the_loss_must_be_a_loss_and_the_end() -> None:
    assert "loss names a, which is linear; it must be one of cross_entropy, mse, bce" in told(
        replace(chain(linear("a")), loss="a")
    )
    assert "loss names 'ghost', which is no VNode" in told(replace(chain(linear("a")), loss="ghost"))
    spec = chain(linear("a"), VNodeSpec("b", "add"))
    spec = replace(spec, edges=(*spec.edges, Edge("loss", "b", target_slot=1)))
    assert "edge loss:0 -> b:1: a loss feeds nobody" in told(spec)


def test_a_vnode_that_does_not_lead_to_the_loss_is_told() -> None:
    spec = chain(linear("a"))
    spec = replace(spec, vnodes=(*spec.vnodes, linear("aside")), edges=(*spec.edges, Edge("a", "aside")))
    assert list_spec_faults(spec) == ["vnode aside does not lead to the loss: connect it, or leave it out"]


@pytest.mark.parametrize(
    ("output", "fault"),
    [(("ghost", 0), "output names 'ghost'"), (("loss", 0), "which is the loss"), (("a", 1), "which has one output")],
)
def test_an_output_that_is_not_there_is_told(output: tuple[str, int], fault: str) -> None:
    assert fault in told(replace(chain(linear("a")), output=output))


def test_weights_of_two_vnodes_are_never_one() -> None:
    spec = chain(linear("a"), VNodeSpec("b", "linear", {"features": 8}, path="a"))
    assert "vnode b: its path a is also that of vnode a; tied weights are not supported" in told(spec)
    below = chain(linear("a"), VNodeSpec("b", "linear", {"features": 8}, path="a.b"))
    assert "vnode b: its path a.b lies below a of vnode a" in told(below)
    inner = chain(linear("a"), VNodeSpec("b", "sequential", {"blocks": (entry("linear", "a", features=8),)}))
    assert "vnode b: its path a is also that of vnode a" in told(inner)


def test_paths_that_only_look_alike_are_not_one_below_the_other() -> None:
    assert list_spec_faults(chain(VNodeSpec("a", "relu", path="1"), VNodeSpec("b", "relu", path="10"))) == []


def test_batch_norm_goes_with_one_replica_only() -> None:
    assert list_spec_faults(make_conv()) == []
    assert "vnode conv1: batch_norm at 1 keeps figures of its own batches" in told(make_conv(replicas=2))
    assert list_spec_faults(make_mlp(replicas=2)) == []


def test_batch_norm_needs_more_than_one_number() -> None:
    norm = VNodeSpec("a", "batch_norm")
    assert "vnode a: batch_norm at a sees one number per channel" in told(chain(norm, micro_batches=16))
    assert list_spec_faults(chain(norm, micro_batches=8)) == []


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"micro_batches": 3}, "batch_size 16 does not split into 3 micro_batches: take 15 samples, or fewer parts"),
        ({"micro_batches": 0}, "micro_batches is 0; it must be between 1 and 1,024"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 1 << 63}, "seed is 9223372036854775808"),
        ({"replicas": 5}, "there are 5 replicas but 4 micro_batches"),
        ({"replicas": 65}, "replicas is 65"),
        ({"checkpoint_every": 0}, "checkpoint_every is 0"),
        ({"local_steps": 10}, "local_steps needs 2 replicas or more"),
        ({"wire": Dtype.F16}, "wire is f16; it is one of f32, bf16"),
        ({"name": ""}, "name must be 1 to 200 printable characters"),
        ({"name": "a\nb"}, "name must be 1 to 200 printable characters"),
        ({"sources": (X, X, Y)}, "source x is given twice"),
        (
            {"sources": (X, Source("y", TensorType((), Dtype.BOOL)))},
            "source y is bool[]; sources are of f32, i64, i32",
        ),
        (
            {"sources": (Source("x", TensorType((0,))), Y)},
            "source x is f32[0]; it has up to 8 dimensions of 1 or more",
        ),
        ({"sources": (Source("X", TensorType((3,))), Y)}, "source 'X' must be a name"),
    ],
)
def test_figures_out_of_bounds_are_told(change: dict[str, Any], fault: str) -> None:
    assert fault in told(make_mlp(**change))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"lr": -1.0}, "optimizer.lr is -1.0; it must be between 0 and 1e+06"),
        ({"lr": float("nan")}, "optimizer.lr is nan"),
        ({"momentum": 2.0}, "optimizer.momentum is 2.0"),
        ({"betas": (0.9, 1.0)}, "optimizer.betas are (0.9, 1.0)"),
        ({"clip_norm": 0.0}, "optimizer.clip_norm is 0.0; it must be above 0, or absent"),
        ({"clip_norm": float("inf")}, "optimizer.clip_norm is inf"),
        ({"schedule": Schedule.LINEAR}, "optimizer.schedule linear needs schedule_steps"),
        ({"schedule": Schedule.COSINE, "warmup_steps": 9, "schedule_steps": 9}, "above warmup_steps (9)"),
    ],
)
def test_an_optimizer_out_of_bounds_is_told(change: dict[str, Any], fault: str) -> None:
    assert fault in told(make_mlp(optimizer=OptimizerSpec(OptimizerKind.ADAM, **change)))


def test_a_tensor_too_large_for_an_edge_is_told_with_what_to_do() -> None:
    wide = chain(linear("a", 1 << 25))
    assert "a:0 gives f32[33554432], 536.87 MB for a micro-batch of 4; 268.44 MB are allowed: use more micro" in told(
        wide
    )
    assert "536.87" not in told(replace(wide, micro_batches=16))


def test_parameters_too_large_are_told() -> None:
    huge = chain(linear("a", 1 << 20), linear("b", 1 << 20), batch_size=4)
    assert "vnode b: b.weight has 4398.05 GB; a tensor has 8.59 GB at most" in told(huge)
    assert "parameters; 100,000,000,000 are allowed" in told(huge)


def test_too_many_vnodes_are_refused_before_anything_is_read() -> None:
    many = [VNodeSpec(f"v{number}", "warp") for number in range(2_001)]
    assert told(chain(*many)).startswith("there are 2,002 VNodes and 2,003 edges; 2,000 and 20,000 are allowed")


def test_two_thousand_vnodes_are_read_and_more_faults_than_can_be_read_are_not_told() -> None:
    many = [VNodeSpec(f"v{number}", "relu") for number in range(1_999)]
    assert list_spec_faults(chain(*many, sources=(X, Y))) == []
    strange = [VNodeSpec(f"v{number}", "warp") for number in range(500)]
    assert len(list_spec_faults(chain(*strange))) == FAULTS_MAX


def test_names_that_cannot_be_are_told() -> None:
    found = told(chain(VNodeSpec("A b", "relu", path="a"), VNodeSpec("c..d", "relu")))
    assert "vnode 'A b' must be named by 1 to 64 of" in found
    assert "vnode c..d: path 'c..d' must be names of letters" in found
    assert "vnode a is given twice" in told(chain(VNodeSpec("a", "relu"), VNodeSpec("a", "relu", path="b")))


def test_all_faults_are_told_at_once() -> None:
    spec = chain(VNodeSpec("a", "warp"), VNodeSpec("b", "linear"), micro_batches=3, loss="mse")
    spec = replace(spec, sources=(X, Y, Source("z", TensorType(()))), optimizer=OptimizerSpec(lr=-1.0))
    found = told(spec)
    for part in ("block 'warp'", "config.features is missing", "micro_batches", "source z", "optimizer.lr"):
        assert part in found
