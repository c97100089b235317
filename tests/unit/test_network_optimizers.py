"""Updates and clipping against torch.optim, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from math import cos, pi
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from computepool.core.networks.schedules import rate_at, total_loss
from computepool.core.networks.spec import OptimizerKind, OptimizerSpec, Schedule
from computepool.node.vnodes.optimizers import LocalOptimizer, clip_scale
from tests.support.network_data import same_bits

torch.set_num_threads(1)

SHAPES = [(33, 17), (33,), (5, 3, 3, 3), (), (1001,)]
STEPS = 12
SPECS = {
    "sgd": OptimizerSpec(OptimizerKind.SGD, lr=0.1),
    "sgd_decay": OptimizerSpec(OptimizerKind.SGD, lr=0.1, weight_decay=0.02),
    "momentum": OptimizerSpec(OptimizerKind.SGD, lr=0.1, momentum=0.9, weight_decay=0.02),
    "adam": OptimizerSpec(OptimizerKind.ADAM, lr=3e-3),
    "adam_decay": OptimizerSpec(OptimizerKind.ADAM, lr=3e-3, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1),
    "adamw": OptimizerSpec(OptimizerKind.ADAMW, lr=3e-3, weight_decay=0.1),
    "clipped": OptimizerSpec(OptimizerKind.ADAMW, lr=3e-3, weight_decay=0.1, clip_norm=0.7),
    "loosely_clipped": OptimizerSpec(OptimizerKind.SGD, lr=0.1, clip_norm=1e6),
    "scheduled": OptimizerSpec(
        OptimizerKind.ADAM, lr=3e-3, schedule=Schedule.COSINE, warmup_steps=3, schedule_steps=9, clip_norm=1.0
    ),
}


def make_torch_optimizer(spec: OptimizerSpec, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    given: dict[str, Any] = {"lr": spec.lr, "weight_decay": spec.weight_decay, "foreach": False}
    if spec.kind is OptimizerKind.SGD:
        return torch.optim.SGD(parameters, momentum=spec.momentum, **given)
    cls = torch.optim.Adam if spec.kind is OptimizerKind.ADAM else torch.optim.AdamW
    return cls(parameters, betas=spec.betas, eps=spec.eps, **given)


def draw(shapes: list[tuple[int, ...]], seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def gradients(step: int) -> list[Tensor]:
    return draw(SHAPES, 100 + step)


def parameters() -> list[nn.Parameter]:
    return [nn.Parameter(each) for each in draw(SHAPES, 1)]


def name(values: list[nn.Parameter]) -> dict[str, nn.Parameter]:
    return {f"{number}.weight": each for number, each in enumerate(values)}


def run_torch(spec: OptimizerSpec) -> Iterator[dict[str, Tensor]]:
    """As people write it: torch's optimizer, torch's clipping, the rate set by hand."""
    held = parameters()
    optimizer = make_torch_optimizer(spec, held)
    for step in range(STEPS):
        for parameter, gradient in zip(held, gradients(step), strict=True):
            parameter.grad = gradient
        if spec.clip_norm is not None:
            nn.utils.clip_grad_norm_(held, spec.clip_norm, foreach=False)
        optimizer.param_groups[0]["lr"] = rate_at(spec, step)
        optimizer.step()
        yield {key: value.detach().clone() for key, value in name(held).items()}


def run_ours(spec: OptimizerSpec, *, hosts: int = 1) -> Iterator[dict[str, Tensor]]:
    """With the parameters dealt to several optimizers, as they are when hosts hold them."""
    held = name(parameters())
    names = list(held)
    optimizers = [LocalOptimizer(spec, [(key, held[key]) for key in names[host::hosts]]) for host in range(hosts)]
    for step in range(STEPS):
        for key, gradient in zip(names, gradients(step), strict=True):
            held[key].grad = gradient
        norms = {key: norm for optimizer in optimizers for key, norm in optimizer.norms()}
        scale = clip_scale(spec, [norms[key] for key in names])
        for optimizer in optimizers:
            optimizer.step(step, scale)
            optimizer.zero_grad()
        assert all(parameter.grad is None for parameter in held.values())
        yield {key: value.detach().clone() for key, value in held.items()}


def is_torchs(spec: OptimizerSpec, *, hosts: int = 1) -> bool:
    return all(same_bits(one, two) for one, two in zip(run_ours(spec, hosts=hosts), run_torch(spec), strict=True))


@pytest.mark.parametrize("hosts", [1, 3])
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_every_update_has_the_bits_of_torchs(spec: OptimizerSpec, hosts: int) -> None:
    assert is_torchs(spec, hosts=hosts)


def test_the_control_a_formula_that_is_only_nearly_torchs_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean by a product and a sum instead of a step towards the gradient: the same but for rounding."""

    def lerp(mean: Tensor, gradient: Tensor, weight: float) -> Tensor:
        return mean.mul_(1 - weight).add_(gradient, alpha=weight)

    expected = list(run_torch(SPECS["adam"]))
    monkeypatch.setattr(Tensor, "lerp_", lerp)
    found = list(run_ours(SPECS["adam"]))
    assert not all(same_bits(one, two) for one, two in zip(found, expected, strict=True))
    assert all(torch.allclose(found[-1][key], expected[-1][key], atol=1e-4) for key in found[-1])


CLIPPING = OptimizerSpec(clip_norm=1.0)


def clips_as_torch(total: Any, cases: int = 60) -> bool:
    """Scaled gradients against torch's, over draws of forty parameters of very different sizes."""
    for case in range(cases):
        given = [
            each * 10.0 ** (number % 5 - 2)
            for number, each in enumerate(draw([(number + 2,) for number in range(40)], case))
        ]
        held = [nn.Parameter(torch.zeros_like(each)) for each in given]
        for parameter, gradient in zip(held, given, strict=True):
            parameter.grad = gradient.clone()
        norms = [norm for _, norm in LocalOptimizer(CLIPPING, name(held).items()).norms()]
        nn.utils.clip_grad_norm_(held, 1.0, foreach=False)
        scale = total(norms)
        if not all(torch.equal(each.mul(scale), parameter.grad) for each, parameter in zip(given, held, strict=True)):
            return False
    return True


def test_clipping_has_the_bits_of_torchs() -> None:
    assert clips_as_torch(lambda norms: clip_scale(CLIPPING, norms))


def test_the_control_norms_totalled_in_another_order_are_caught() -> None:
    assert not clips_as_torch(lambda norms: clip_scale(CLIPPING, norms[::-1]))
    assert not clips_as_torch(lambda norms: clip_scale(CLIPPING, sorted(norms)))


def test_the_control_hosts_that_total_their_own_norms_first_are_caught() -> None:
    def by_host(norms: list[float]) -> float:
        halves = [float(torch.linalg.vector_norm(torch.tensor(half))) for half in (norms[:20], norms[20:])]
        return clip_scale(CLIPPING, halves)

    assert not clips_as_torch(by_host)


def test_without_clipping_nothing_is_scaled() -> None:
    assert clip_scale(OptimizerSpec(), [1e9]) == 1.0
    assert clip_scale(CLIPPING, []) == 1.0
    assert clip_scale(CLIPPING, [0.1]) == 1.0


@pytest.mark.parametrize(
    "spec", [SPECS["momentum"], SPECS["adamw"], SPECS["scheduled"]], ids=["momentum", "adamw", "scheduled"]
)
def test_an_optimizer_goes_on_from_its_state_as_if_nothing_had_happened(spec: OptimizerSpec) -> None:
    whole = list(run_ours(spec))
    held = name(parameters())
    optimizer = LocalOptimizer(spec, held.items())
    for step in range(STEPS):
        if step == 5:
            state = {key: value.clone() for key, value in optimizer.state().items()}
            held = {key: nn.Parameter(value.detach().clone()) for key, value in held.items()}
            optimizer = LocalOptimizer(spec, held.items())
            optimizer.load(state)
        for key, gradient in zip(held, gradients(step), strict=True):
            held[key].grad = gradient
        optimizer.step(step, clip_scale(spec, [norm for _, norm in optimizer.norms()]))
        assert same_bits({key: value.detach() for key, value in held.items()}, whole[step])


def test_a_loaded_state_is_a_copy() -> None:
    optimizer = LocalOptimizer(SPECS["adam"], name(parameters()).items())
    state = {"1.weight.exp_avg": torch.zeros(33)}
    optimizer.load(state)
    state["1.weight.exp_avg"].add_(1)
    assert float(optimizer.state()["1.weight.exp_avg"].sum()) == 0


def test_a_state_that_fits_no_parameter_is_refused() -> None:
    optimizer = LocalOptimizer(SPECS["adam"], name(parameters()).items())
    for strange in ("9.weight.exp_avg", "1.weight.momentum_buffer", "1.weight"):
        with pytest.raises(ValueError, match="there is no parameter for"):
            optimizer.load({strange: torch.zeros(33)})
    with pytest.raises(ValueError, match=r"1.weight.exp_avg has the shape \[2\], its parameter \[33\]"):
        optimizer.load({"1.weight.exp_avg": torch.zeros(2)})


def test_a_vnode_without_weights_has_nothing_to_do() -> None:
    optimizer = LocalOptimizer(SPECS["adam"], [])
    optimizer.step(0)
    optimizer.load({})
    assert (optimizer.norms(), optimizer.state()) == ([], {})


def test_a_parameter_without_a_gradient_stays_as_it_is() -> None:
    held = name(parameters())
    before = {key: value.detach().clone() for key, value in held.items()}
    optimizer = LocalOptimizer(SPECS["adamw"], held.items())
    held["0.weight"].grad = torch.ones(33, 17)
    assert [key for key, _ in optimizer.norms()] == ["0.weight"]
    optimizer.step(0)
    changed = [key for key, value in held.items() if not torch.equal(value, before[key])]
    assert changed == ["0.weight"]


def test_the_rate_is_a_function_of_the_step() -> None:
    constant = OptimizerSpec(lr=0.5, warmup_steps=4)
    assert [rate_at(constant, step) for step in range(6)] == [0.125, 0.25, 0.375, 0.5, 0.5, 0.5]
    linear = OptimizerSpec(lr=1.0, schedule=Schedule.LINEAR, warmup_steps=2, schedule_steps=6, lr_end_ratio=0.2)
    assert [rate_at(linear, step) for step in range(9)] == pytest.approx([0.5, 1, 1, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2])
    cosine = OptimizerSpec(lr=2.0, schedule=Schedule.COSINE, schedule_steps=8)
    expected = [1.0 + cos(pi * step / 8) for step in range(9)]
    assert [rate_at(cosine, step) for step in range(9)] == pytest.approx(expected)
    assert rate_at(cosine, 1000) == 0.0


def test_the_loss_of_a_step_does_not_depend_on_who_told_first() -> None:
    parts = [float(value) for value in draw([(64,)], 3)[0].double() ** 7]
    assert total_loss(parts) == total_loss(parts[::-1]) == total_loss(sorted(parts))
    assert sum(parts) != sum(sorted(parts))
