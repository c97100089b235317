"""Modules of torch read as networks: the same function, the same names, whatever the split; the rest is refused."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from computepool.core.errors import InvalidSpec
from computepool.core.networks.cost import estimate_vnodes
from computepool.core.networks.spec import NetworkSpec, TensorType
from computepool.networks import Dataset, Network, Positional, Residual, Transformer, reference
from computepool.node.vnodes.modules import VNodeModule
from tests.support.network_data import same_bits

torch.set_num_threads(1)

SOURCES: dict[str, str | TensorType] = {"x": "f32[16]", "y": "i64[]"}
PICTURES: dict[str, str | TensorType] = {"x": "f32[1,8,8]", "y": "i64[]"}
TOKENS: dict[str, str | TensorType] = {"x": "i64[6]", "y": "i64[6]"}


def take(module: nn.Module, sources: dict[str, str | TensorType] = SOURCES, **options: Any) -> Network:
    given = {"batch_size": 8, "micro_batches": 2, **options}
    return Network.from_torch(module, sources=sources, loss="cross_entropy", **given)


def write_mlp() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 24), nn.GELU(), nn.Dropout(0.1), nn.Linear(24, 10)
    )


def write_conv() -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(
            front=nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.LeakyReLU(0.1), nn.MaxPool2d(2)),
            middle=Residual(nn.Conv2d(8, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.SiLU()),
            back=nn.Sequential(nn.AdaptiveAvgPool2d((2, 2)), nn.Flatten(), nn.Linear(32, 10)),
        )
    )


def write_residuals() -> nn.Sequential:
    """A residual that begins with a residual, inside of one: what comes in is used by four."""
    innermost = Residual(nn.Linear(16, 16), nn.Tanh())
    middle = Residual(nn.Sequential(innermost, nn.Linear(16, 16)))
    return nn.Sequential(
        nn.Linear(16, 16), Residual(nn.Sequential(middle, nn.Linear(16, 16), nn.GELU())), nn.ReLU(), nn.Linear(16, 10)
    )


def write_lm() -> nn.Sequential:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, norm_first=True, batch_first=True)
    return nn.Sequential(
        OrderedDict(
            tokens=nn.Embedding(12, 16),
            positions=Positional(6, 16),
            encoder=nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
            causal=Transformer(16, 4, 24, causal=True, dropout=0.2, activation="relu", eps=1e-6),
            wrapped=Residual(Transformer(16, 2, 24)),
            norm=nn.LayerNorm(16),
            head=nn.Linear(16, 12),
        )
    )


def make_data(spec: NetworkSpec) -> Dataset:
    generator = torch.Generator().manual_seed(1)
    shape = (24, *spec.sources[0].type.shape)
    whole = torch.randint(0, 10, shape, generator=generator)
    if str(spec.sources[0].type).startswith("i64"):
        return Dataset(whole, whole.roll(-1, 1))
    return Dataset(torch.randn(shape, generator=generator), whole.reshape(24, -1)[:, 0])


WRITTEN = {
    "mlp": (write_mlp, SOURCES),
    "conv": (write_conv, PICTURES),
    "residuals": (write_residuals, SOURCES),
    "lm": (write_lm, TOKENS),
}


@pytest.mark.parametrize(("write", "sources"), WRITTEN.values(), ids=WRITTEN)
def test_the_network_has_the_modules_names_and_computes_what_it_computes(write: Any, sources: Any) -> None:
    module = write()
    network = take(module, sources, keep_weights=True)
    built = network.to_torch()
    assert same_bits(dict(built.state_dict()), dict(module.state_dict()))
    given = make_data(network.spec).tensors["x"]
    module.eval()
    built.eval()
    assert torch.allclose(built(given), module(given), atol=1e-6)


def test_weights_are_the_seeds_unless_the_modules_are_wanted() -> None:
    module = write_mlp()
    assert take(module).state is None
    assert not same_bits(dict(take(module).to_torch().state_dict()), dict(module.state_dict()))
    kept = take(module, keep_weights=True)
    with torch.no_grad():
        module[0].weight.zero_()
    assert kept.state is not None
    assert float(kept.state["0.weight"].abs().sum()) > 0


SPLITS: dict[str, list[Any]] = {
    "mlp": [1, 2, 3, "auto", ["2"], ["1", "3", "5"]],
    "conv": [1, 3, "auto", ["middle"], ["middle.inner.1"], ["front.1", "middle.inner.0", "back.2"]],
    "residuals": [
        1,
        "auto",
        ["1"],
        ["1.inner.1"],
        ["1.inner.0.inner.1"],
        ["1.inner.0.inner.0.inner.1", "3"],
        ["1.inner.0.inner.0.inner.0", "1.inner.0.inner.1", "1.inner.1", "2"],
    ],
    "lm": [1, 4, "auto", ["encoder.layers.1", "causal"], ["wrapped.inner", "head"]],
}


def curves_agree(name: str) -> bool:
    write, sources = WRITTEN[name]
    module = write()
    runs = []
    for split in SPLITS[name]:
        spec = take(module, sources, split=split).spec
        runs.append(reference(spec, make_data(spec), 6))
    return all(run.losses == runs[0].losses and same_bits(run.state_dict, runs[0].state_dict) for run in runs)


@pytest.mark.parametrize("name", WRITTEN)
def test_however_it_is_split_the_curve_is_the_same(name: str) -> None:
    assert curves_agree(name)


def test_the_control_a_residual_that_does_not_gather_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the view, gradients of a residual within a residual are added in another order than between VNodes."""
    run = VNodeModule._run

    def run_without_views(self: VNodeModule, part: Any, inputs: tuple[Tensor, ...]) -> Tensor:
        with monkeypatch.context() as patch:
            patch.setattr(Tensor, "view_as", lambda tensor, other: tensor)
            return run(self, part, inputs)

    monkeypatch.setattr(VNodeModule, "_run", run_without_views)
    assert not curves_agree("residuals")


def test_a_plain_loop_over_the_module_itself_has_the_same_curve() -> None:
    module = write_residuals()
    network = take(module, keep_weights=True, split=["1.inner.0.inner.1"], seed=5)
    data = make_data(network.spec)
    optimizer = torch.optim.SGD(module.parameters(), lr=network.spec.optimizer.lr, foreach=False)
    losses = []
    for step in range(6):
        total = 0.0
        for number in range(2):
            batch = data.batch(network.spec, step, number)
            loss = nn.functional.cross_entropy(module(batch["x"]), batch["y"]) / 2
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    found = network.reference(data, 6)
    assert found.losses == losses
    assert same_bits(found.state_dict, dict(module.state_dict()))


def test_a_split_is_balanced() -> None:
    layers: list[nn.Module] = []
    for _ in range(16):
        layers += [nn.Linear(64, 64), nn.ReLU()]
    module = nn.Sequential(*layers, nn.Linear(64, 10))
    sources: dict[str, str | TensorType] = {"x": "f32[64]", "y": "i64[]"}
    for count in (1, 2, 4, 8):
        network = take(module, sources, split=count)
        costs = [cost.flops for name, cost in estimate_vnodes(network.spec).items() if name != "loss"]
        assert len(costs) == count
        assert max(costs) <= 1.3 * sum(costs) / count
    assert len(take(module, sources).spec.vnodes) == 9


def test_activations_stay_with_the_layer_before_them() -> None:
    spec = take(write_mlp(), split=3).spec
    assert [vnode.block for vnode in spec.vnodes] == ["sequential", "sequential", "linear", "cross_entropy"]
    paths = [[str(inner["path"]) for inner in vnode.config["blocks"]] for vnode in spec.vnodes[:2]]  # type: ignore[index, union-attr]
    assert paths == [["0", "1"], ["2", "3", "4"]]


def test_a_heavy_residual_is_taken_apart_into_branches() -> None:
    module = nn.Sequential(nn.Linear(16, 16), Residual(*(nn.Linear(16, 16) for _ in range(8))), nn.Linear(16, 10))
    spec = take(module, split=4).spec
    fed = [edge.source for edge in spec.edges]
    assert any(fed.count(name) == 2 for name in fed)


def test_a_module_that_stands_there_twice_is_read_twice() -> None:
    relu = nn.ReLU()
    spec = take(nn.Sequential(nn.Linear(16, 16), relu, nn.Linear(16, 10), relu), split=1).spec
    assert len(spec.vnodes[0].config["blocks"]) == 4  # type: ignore[arg-type]


class Custom(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


class Doubling(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def tied() -> nn.Module:
    module = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    module[1].weight = module[0].weight
    return module


def frozen() -> nn.Module:
    module = write_mlp()
    module[0].weight.requires_grad = False
    return module


def hooked() -> nn.Module:
    module = write_mlp()
    module[1].register_forward_hook(lambda module, given, found: found * 2)
    return module


def sequence(*modules: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(16, 10), *modules)


REFUSED: list[tuple[nn.Module, str]] = [
    (sequence(Custom()), "1 is a Custom, which is not supported; supported: AdaptiveAvgPool2d, Attention,"),
    (sequence(Doubling(10, 10)), "1 is a Doubling, which is not supported"),
    (nn.Linear(16, 10), "it is a Linear: put it into an nn.Sequential"),
    (Custom(), "it is a Custom: put it into an nn.Sequential"),
    (nn.Sequential(), "the module is empty"),
    (tied(), "0.weight and 1.weight are one tensor; tied weights are not supported"),
    (frozen(), "0.weight is frozen, which is not supported"),
    (hooked(), "1 has hooks, which are not taken over"),
    (sequence(nn.Flatten(0)), "1 (Flatten): only start_dim 1 and end_dim -1 are supported"),
    (sequence(nn.Softmax(1)), "1 (Softmax): only dim -1 is supported"),
    (sequence(nn.Conv2d(1, 1, 3, padding="same")), "1 (Conv2d): padding must be given as numbers, not as 'same'"),
    (sequence(nn.Conv2d(1, 1, 3, dilation=2)), "1 (Conv2d): only dilation 1 is supported"),
    (sequence(nn.LayerNorm((2, 5))), "1 (LayerNorm): only a norm over the last dimension is supported"),
    (sequence(nn.Embedding(3, 3, padding_idx=0)), "1 (Embedding): padding_idx, max_norm"),
    (
        sequence(nn.TransformerEncoderLayer(10, 2, batch_first=True)),
        "build it with norm_first=True and batch_first=True",
    ),
    (nn.Sequential(nn.Linear(17, 10)), "0.weight is f32[10, 17] in the module, f32[10, 16] as a block"),
    (nn.Sequential(nn.Linear(16, 10).double()), "0.weight is torch.float64[10, 16] in the module"),
    (
        nn.Sequential(nn.Conv2d(16, 10, 3)),
        "vnode b0 (conv2d), fed by @x:0: slot 0 gets f32[16], but it takes channels",
    ),
]


@pytest.mark.parametrize(("module", "told"), REFUSED, ids=[str(number) for number in range(len(REFUSED))])
def test_what_cannot_be_taken_over_is_refused_by_name(module: nn.Module, told: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        take(module)
    assert told in refused.value.message


def test_everything_that_cannot_be_taken_over_is_told_at_once() -> None:
    with pytest.raises(InvalidSpec) as refused:
        take(nn.Sequential(Custom(), nn.Sequential(Custom(), nn.Softmax(0))), {"x": "f32", "y": "i64[]"})
    assert len(refused.value.details["faults"]) == 4
    assert "1.0 is a Custom" in refused.value.message


@pytest.mark.parametrize(
    ("split", "told"),
    [
        ("even", "split is 'even'"),
        (0, "split is 0"),
        (99, "split is 99"),
        (["2", "9"], "split names '9'; there are the paths 0, 1, 2, 3, 4, 5"),
    ],
)
def test_a_split_that_cannot_be_is_refused(split: str | int | Sequence[str], told: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        take(write_mlp(), split=split)
    assert told in refused.value.message


def test_one_source_is_too_few() -> None:
    with pytest.raises(InvalidSpec, match="give two sources"):
        take(write_mlp(), {"x": "f32[16]"})
