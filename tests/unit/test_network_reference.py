"""The reference against loops in plain PyTorch: the same losses and the same weights, to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from computepool.core.errors import InvalidSpec
from computepool.core.networks.schedules import total_loss
from computepool.core.networks.spec import Edge, NetworkSpec, VNodeSpec
from computepool.networks import Dataset, Network, reference, reference_run, to_torch
from computepool.networks.uncut import UncutNetwork
from computepool.node.vnodes.randomness import SeededDropout
from tests.support import hand_written
from tests.support.hand_written import Branching, CharLm, train_by_hand, write_conv, write_mlp
from tests.support.network_data import make_dataset, same_bits
from tests.support.networks import entry, make_branching, make_char_lm, make_conv, make_mlp

torch.set_num_threads(1)

STEPS = 25
CASES: dict[str, tuple[NetworkSpec, Callable[[], nn.Module]]] = {
    "mlp": (make_mlp(), write_mlp),
    "conv": (make_conv(), write_conv),
    "branching": (make_branching(), Branching),
    "char_lm": (make_char_lm(), lambda: CharLm(seed=7)),
}


def is_the_hand_written_loop(spec: NetworkSpec, write: Callable[[], nn.Module], steps: int = STEPS) -> bool:
    data = make_dataset(spec)
    model = write()
    model.load_state_dict(to_torch(spec).state_dict())
    losses, state = train_by_hand(model, spec, data.tensors["x"], data.tensors["y"], steps)
    found = reference(spec, data, steps)
    return found.losses == losses and same_bits(found.state_dict, state)


@pytest.mark.parametrize(("spec", "write"), CASES.values(), ids=CASES)
def test_the_reference_is_a_plain_loop_bit_for_bit(spec: NetworkSpec, write: Callable[[], nn.Module]) -> None:
    assert is_the_hand_written_loop(spec, write)


@pytest.mark.parametrize(("spec", "write"), CASES.values(), ids=CASES)
def test_something_is_learned(spec: NetworkSpec, write: Callable[[], nn.Module]) -> None:
    losses = reference(spec, make_dataset(spec), 60).losses
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])


def test_the_control_micro_batches_in_another_order_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference_run, "_accumulate", _accumulate_backwards)
    assert not is_the_hand_written_loop(*CASES["mlp"])


def _accumulate_backwards(spec: NetworkSpec, network: UncutNetwork, data: Dataset, step: int) -> float:
    parts = []
    for micro_batch in reversed(range(spec.micro_batches)):
        loss = network.loss(data.batch(spec, step, micro_batch)) / spec.micro_batches
        loss.backward()
        parts.append(loss.item())
    return total_loss(parts)


def test_the_control_norms_in_another_order_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    clip_scale = reference_run.clip_scale
    monkeypatch.setattr(reference_run, "clip_scale", lambda spec, norms: clip_scale(spec, norms[::-1]))
    assert not is_the_hand_written_loop(*CASES["char_lm"])


def test_the_control_dropout_by_the_global_generator_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SeededDropout, "forward", lambda self, given: nn.functional.dropout(given, self.p))
    assert not is_the_hand_written_loop(*CASES["char_lm"])


def test_the_control_gradients_added_in_order_of_use_are_caught() -> None:
    """The same branches with their readers in another order: equal but for the order of sums."""
    spec = make_branching()
    swapped = replace(spec, vnodes=tuple(spec.vnodes[index] for index in (0, 2, 1, 3, 4, 5)))
    data = make_dataset(spec)
    one, other = reference(spec, data, STEPS), reference(swapped, data, STEPS)
    assert one.losses == pytest.approx(other.losses, rel=1e-3)
    assert not same_bits(one.state_dict, other.state_dict)


def cut_mlp_otherwise() -> NetworkSpec:
    spec = make_mlp()
    blocks = [
        entry("linear", "0", features=24),
        entry("relu", "1"),
        entry("linear", "2", features=24),
        entry("relu", "3"),
        entry("linear", "4", features=10),
    ]
    return replace(
        spec,
        vnodes=(VNodeSpec("all", "sequential", {"blocks": tuple(blocks)}), spec.vnodes[-1]),
        edges=(Edge("@x", "all"), Edge("all", "loss"), Edge("@y", "loss", target_slot=1)),
        output=("all", 0),
    )


def test_the_curve_does_not_depend_on_the_cut() -> None:
    spec = make_mlp()
    one, other = reference(spec, make_dataset(spec), STEPS), reference(cut_mlp_otherwise(), make_dataset(spec), STEPS)
    assert one.losses == other.losses
    assert same_bits(one.state_dict, other.state_dict)


def test_the_seed_decides_the_curve() -> None:
    spec = make_mlp()
    data = make_dataset(spec)
    assert reference(spec, data, 3).losses == reference(spec, data, 3).losses
    assert reference(spec, data, 3).losses != reference(replace(spec, seed=8), data, 3).losses


@pytest.mark.parametrize("name", CASES)
def test_a_run_that_is_taken_up_again_has_the_curve_of_one_that_never_stopped(name: str) -> None:
    spec = CASES[name][0]
    data = make_dataset(spec)
    whole = reference(spec, data, 12)
    first = reference(spec, data, 5)
    second = reference(spec, data, 7, state=first.state_dict, optimizer_state=first.optimizer_state, from_step=5)
    assert first.losses + second.losses == whole.losses
    assert same_bits(second.state_dict, whole.state_dict)
    assert same_bits(second.optimizer_state, whole.optimizer_state)


def test_replicas_are_summed_within_and_then_in_their_order() -> None:
    """Against gradients taken one micro-batch at a time and added by hand in the tree of the spec."""
    spec = make_mlp(replicas=3)
    data = make_dataset(spec)
    model = write_mlp()
    model.load_state_dict(to_torch(spec).state_dict())
    optimizer = hand_written.make_optimizer(spec.optimizer, model)
    losses = []
    for step in range(8):
        each, parts = [], []
        for number in range(4):
            batch = data.batch(spec, step, number)
            loss = nn.functional.cross_entropy(model(batch["x"]), batch["y"]) / 4
            each.append(torch.autograd.grad(loss, list(model.parameters())))
            parts.append(loss.item())
        for number, parameter in enumerate(model.parameters()):
            zero, one, two, three = (gradients[number] for gradients in each)
            parameter.grad = ((zero + three) + one) + two
        optimizer.step()
        losses.append(total_loss(parts))
    found = reference(spec, data, 8)
    assert found.losses == losses
    assert same_bits(found.state_dict, dict(model.state_dict()))
    assert not same_bits(found.state_dict, reference(make_mlp(), data, 8).state_dict)


def test_weights_load_into_the_uncut_network_and_into_modules_written_by_hand() -> None:
    for spec, write in CASES.values():
        data = make_dataset(spec)
        state = reference(spec, data, 3).state_dict
        network, model = to_torch(spec), write()
        network.load_state_dict(state)
        model.load_state_dict(state)
        network.eval()
        model.eval()
        given = data.tensors["x"][:5]
        assert torch.allclose(network(given), model(given), atol=1e-6)


def test_a_transformer_loads_into_torchs_encoder_layer() -> None:
    spec = make_char_lm()
    layer = nn.TransformerEncoderLayer(16, 2, 32, activation="gelu", norm_first=True, batch_first=True)
    module = dict(to_torch(spec).named_modules())["blocks.0"]
    layer.load_state_dict(module.state_dict())
    given = torch.rand(3, 12, 16)
    ahead = nn.Transformer.generate_square_subsequent_mask(12)
    layer.eval()
    module.eval()
    assert torch.allclose(module(given), layer(given, src_mask=ahead, is_causal=True), atol=1e-6)


def test_training_leaves_threads_and_the_global_generator_as_they_were() -> None:
    spec = make_char_lm()
    torch.set_num_threads(2)
    try:
        before = torch.random.get_rng_state()
        reference(spec, make_dataset(spec), 1)
        assert torch.get_num_threads() == 2
        assert torch.equal(before, torch.random.get_rng_state())
    finally:
        torch.set_num_threads(1)


def test_a_start_from_given_weights_is_taken() -> None:
    spec = make_mlp()
    zeros = {name: torch.zeros_like(tensor) for name, tensor in to_torch(spec).state_dict().items()}
    network = Network(spec, state=zeros)
    assert all(float(tensor.abs().sum()) == 0 for tensor in network.to_torch().state_dict().values())
    assert network.reference(make_dataset(spec), 1).losses == [pytest.approx(2.302585, abs=1e-5)]


def test_data_that_does_not_fit_is_refused_by_name() -> None:
    spec = make_mlp()
    with pytest.raises(InvalidSpec) as refused:
        reference(spec, Dataset(torch.zeros(5, 3), torch.zeros(5)), 1)
    assert "a sample of x is float32 [3] in the data, but the network takes f32[16]" in refused.value.message
    assert "a sample of y is float32 [] in the data, but the network takes i64[]" in refused.value.message
    with pytest.raises(InvalidSpec, match="the data has no y; it has x"):
        reference(spec, Dataset(torch.zeros(5, 16)), 1)
    with pytest.raises(InvalidSpec, match="micro_batches"):
        reference(make_mlp(micro_batches=3), make_dataset(spec), 1)


def test_a_tensor_with_several_readers_is_gathered_by_each_before_it_is_summed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reader that uses its input twice gives back one gradient, as it must from another machine."""
    spec = make_branching()
    twice = VNodeSpec(
        "right", "residual", {"blocks": (entry("linear", "right.0", features=24), entry("gelu", "right.1"))}
    )
    spec = replace(spec, vnodes=tuple(twice if vnode.id == "right" else vnode for vnode in spec.vnodes))
    sources = make_dataset(spec).batch(spec, 0, 0)

    def stem_gradient_by_pieces() -> Tensor:
        """Every reader on its own copy of what the stem gives, as on three machines."""
        network = UncutNetwork(spec)
        modules = network._vnodes
        stem = modules["stem"](sources["x"])
        copies = {name: stem.detach().clone().requires_grad_() for name in ("left", "right", "sum")}
        total = modules["sum"](copies["sum"], modules["left"](copies["left"]), modules["right"](copies["right"]))
        modules["loss"](modules["head"](total), sources["y"]).backward()
        gradients = [copies[name].grad for name in ("sum", "right", "left")]
        stem.backward((gradients[0] + gradients[1]) + gradients[2])
        return dict(network.named_parameters())["stem.weight"].grad  # type: ignore[return-value]

    def stem_gradient_uncut() -> Tensor:
        network = UncutNetwork(spec)
        network.loss(sources).backward()
        return dict(network.named_parameters())["stem.weight"].grad  # type: ignore[return-value]

    assert torch.equal(stem_gradient_uncut(), stem_gradient_by_pieces())
    monkeypatch.setattr("computepool.networks.uncut.enter", lambda tensor, is_shared: tensor)
    assert not torch.equal(stem_gradient_uncut(), stem_gradient_by_pieces())
