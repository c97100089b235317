"""Modules of blocks: what the registry describes is what torch builds, and the start is a function of names alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from computepool.core.networks.block import Init, ParameterSpec
from computepool.core.networks.blocks import BLOCKS, COMPOSITES, read_vnode
from computepool.core.networks.seeds import parameter_seed
from computepool.core.networks.spec import Config, Dtype, NetworkSpec, TensorType, VNodeSpec
from computepool.networks.uncut import UncutNetwork
from computepool.node.vnodes import modules
from computepool.node.vnodes.leaves import BUILDERS
from computepool.node.vnodes.modules import TORCH_DTYPES, build
from computepool.node.vnodes.randomness import SeededDropout, draw_init, draw_mask
from tests.support.network_data import make_dataset, same_bits
from tests.support.networks import chain, entry, make_char_lm, make_mlp

torch.set_num_threads(1)

F, SEQUENCE, PICTURE = TensorType((6,)), TensorType((5, 6)), TensorType((4, 8, 8))
EXAMPLES: list[tuple[str, Config, list[TensorType]]] = [
    ("linear", {"features": 3}, [F]),
    ("linear", {"features": 3, "bias": False}, [SEQUENCE]),
    ("mlp", {"hidden": (7, 5), "features": 3, "activation": "gelu"}, [SEQUENCE]),
    ("layer_norm", {"eps": 1e-6}, [SEQUENCE]),
    ("softmax", {}, [SEQUENCE]),
    ("relu", {}, [F]),
    ("gelu", {"approximate": "tanh"}, [F]),
    ("silu", {}, [F]),
    ("tanh", {}, [F]),
    ("sigmoid", {}, [F]),
    ("leaky_relu", {"slope": 0.2}, [F]),
    ("dropout", {"p": 0.5}, [F]),
    ("identity", {}, [F]),
    ("conv2d", {"channels": 6, "kernel": (3, 2), "stride": 2, "padding": (1, 0), "groups": 2}, [PICTURE]),
    ("conv2d", {"channels": 2, "kernel": 1, "bias": False}, [PICTURE]),
    ("max_pool2d", {"kernel": 2}, [PICTURE]),
    ("max_pool2d", {"kernel": 3, "stride": (1, 2), "padding": 1}, [PICTURE]),
    ("avg_pool2d", {"kernel": (2, 4)}, [PICTURE]),
    ("adaptive_avg_pool2d", {"size": (1, 3)}, [PICTURE]),
    ("batch_norm", {}, [PICTURE]),
    ("batch_norm", {"momentum": 0.3}, [F]),
    ("group_norm", {"groups": 2}, [PICTURE]),
    ("embedding", {"vocabulary": 9, "features": 4}, [TensorType((5,), Dtype.I64)]),
    ("embedding", {"vocabulary": 9, "features": 4}, [TensorType((), Dtype.I32)]),
    ("positional", {}, [SEQUENCE]),
    ("attention", {"heads": 2, "causal": True}, [SEQUENCE]),
    ("attention", {"heads": 3, "dropout": 0.2}, [SEQUENCE]),
    ("transformer", {"heads": 2, "hidden": 8, "dropout": 0.1, "activation": "relu"}, [SEQUENCE]),
    ("rnn", {"features": 4, "layers": 2}, [SEQUENCE]),
    ("lstm", {"features": 4, "sequence": False}, [SEQUENCE]),
    ("gru", {"features": 4}, [SEQUENCE]),
    ("add", {}, [F, F, F]),
    ("mul", {}, [F, F]),
    ("concat", {}, [F, TensorType((2,))]),
    ("concat", {"dim": 0}, [SEQUENCE, TensorType((2, 6))]),
    ("flatten", {}, [PICTURE]),
    ("reshape", {"shape": (8, 32)}, [PICTURE]),
    ("transpose", {"dims": (0, -1)}, [PICTURE]),
    ("cross_entropy", {}, [SEQUENCE, TensorType((5,), Dtype.I64)]),
    ("cross_entropy", {}, [F, TensorType((), Dtype.I32)]),
    ("mse", {}, [SEQUENCE, SEQUENCE]),
    ("bce", {}, [F, F]),
    ("sequential", {"blocks": (entry("linear", features=3), entry("relu"))}, [F]),
    ("sequential", {"blocks": (entry("add"), entry("relu"))}, [F, F]),
    ("residual", {"blocks": (entry("linear", features=6), entry("sequential", blocks=(entry("relu"),)))}, [SEQUENCE]),
]


def draw(given: TensorType, samples: int = 3) -> Tensor:
    shape = (samples, *given.shape)
    if given.dtype is Dtype.F32:
        return torch.rand(shape, generator=torch.Generator().manual_seed(1))
    return torch.arange(TensorType(shape).element_count).remainder(5).reshape(shape).to(TORCH_DTYPES[given.dtype])


def test_every_block_has_an_example_and_every_leaf_a_module() -> None:
    assert {name for name, _, _ in EXAMPLES} == set(BLOCKS)
    assert set(BUILDERS) == set(BLOCKS) - set(COMPOSITES)


@pytest.mark.parametrize(
    ("block", "config", "inputs"), EXAMPLES, ids=[f"{name}-{at}" for at, (name, _, _) in enumerate(EXAMPLES)]
)
def test_a_module_is_what_the_registry_describes(block: str, config: Config, inputs: list[TensorType]) -> None:
    vnode = VNodeSpec("v", block, config, path="at.v")
    part = read_vnode(vnode)
    module = build(vnode, inputs, seed=3)
    assert {name: tuple(each.shape) for name, each in module.named_parameters()} == {
        each.name: each.shape for each in part.parameters(inputs)
    }
    assert {name: (tuple(each.shape), each.dtype) for name, each in module.named_buffers()} == {
        each.name: (each.shape, TORCH_DTYPES[each.dtype]) for each in part.buffers(inputs)
    }
    found = module(*(draw(each) for each in inputs))
    described = part.infer(inputs)
    assert found.dtype == TORCH_DTYPES[described.dtype]
    # A loss is one number for the whole micro-batch.
    assert tuple(found.shape) == (() if part.is_loss else (3, *described.shape))
    assert part.flops(inputs) >= 0
    assert part.kept_bytes(inputs) >= 0


@pytest.mark.parametrize(
    ("block", "config", "inputs"), EXAMPLES, ids=[f"{name}-{at}" for at, (name, _, _) in enumerate(EXAMPLES)]
)
def test_a_module_draws_nothing_from_the_global_generator(
    block: str, config: Config, inputs: list[TensorType]
) -> None:
    before = torch.random.get_rng_state()
    module = build(VNodeSpec("v", block, config), inputs, seed=3)
    module.set_moment(2, 1)
    module(*(draw(each) for each in inputs))
    assert torch.equal(before, torch.random.get_rng_state())


def test_first_values_have_the_spread_of_torchs() -> None:
    """Against torch's own modules: nearly the same deviation, and nothing where they have nothing."""
    pairs: list[tuple[str, Config, TensorType, nn.Module]] = [
        ("linear", {"features": 200}, TensorType((300,)), nn.Linear(300, 200)),
        ("conv2d", {"channels": 64, "kernel": 5}, TensorType((32, 9, 9)), nn.Conv2d(32, 64, 5)),
        ("embedding", {"vocabulary": 300, "features": 200}, TensorType((3,), Dtype.I64), nn.Embedding(300, 200)),
        ("lstm", {"features": 100}, TensorType((3, 50)), nn.LSTM(50, 100)),
        ("attention", {"heads": 2}, TensorType((3, 128)), nn.MultiheadAttention(128, 2)),
    ]
    for block, config, given, torchs in pairs:
        ours = dict(build(VNodeSpec("v", block, config), [given], seed=3).named_parameters())
        for name, theirs in torchs.state_dict().items():
            mine = ours[f"v.{name}"].detach()
            assert mine.shape == theirs.shape
            if theirs.numel() > 1_000:
                assert float(mine.std()) == pytest.approx(float(theirs.std()), rel=0.03)
                assert abs(float(mine.mean())) < 0.02 * float(theirs.std()) + 0.01
            elif theirs.std() == 0:
                assert float(mine.std()) == 0


def test_first_values_never_change() -> None:
    """Golden bits: a network of today starts tomorrow, and on another machine, as it started today."""
    found = draw_init(Init(bound=0.5), (2, 3), parameter_seed(7, "0.weight"))
    assert [value.hex() for value in found.flatten().tolist()] == GOLDEN
    constant = draw_init(Init(center=1.0), (2,), 5)
    assert constant.tolist() == [1.0, 1.0]


GOLDEN = [
    "0x1.4867740000000p-2",
    "0x1.af63800000000p-5",
    "-0x1.675fc40000000p-2",
    "-0x1.022a7c0000000p-2",
    "0x1.a995080000000p-2",
    "0x1.cf88d80000000p-3",
]


def test_a_large_parameter_is_drawn_in_pieces_that_join() -> None:
    whole = draw_init(Init(bound=1.0), ((1 << 20) + 5,), 9)
    assert torch.equal(whole[:7], draw_init(Init(bound=1.0), (7,), 9))
    assert len(torch.unique(whole[-1000:])) > 990


def cut_differently(spec: NetworkSpec) -> NetworkSpec:
    """The network of `make_mlp` with its five layers in two VNodes instead of three."""
    blocks = (
        entry("linear", "0", features=24),
        entry("relu", "1"),
        entry("linear", "2", features=24),
        entry("relu", "3"),
        entry("linear", "4", features=10),
    )
    front = VNodeSpec("front", "sequential", {"blocks": blocks[:1]})
    back = VNodeSpec("back", "sequential", {"blocks": blocks[1:]})
    return replace(chain(front, back), optimizer=spec.optimizer, seed=spec.seed)


def start_is_free_of_the_cut() -> bool:
    spec = make_mlp()
    return same_bits(UncutNetwork(spec).state_dict(), UncutNetwork(cut_differently(spec)).state_dict())


def start_is_free_of_the_order_of_building() -> bool:
    """Whatever was built before, in whatever order, a VNode starts the same."""
    vnode, inputs = VNodeSpec("v", "linear", {"features": 3}), [F]
    torch.manual_seed(98)
    first = build(vnode, inputs, seed=3).state_dict()
    build(VNodeSpec("w", "linear", {"features": 30}), inputs, seed=3)
    torch.manual_seed(99)
    return same_bits(first, build(vnode, inputs, seed=3).state_dict())


def test_the_start_depends_neither_on_the_cut_nor_on_the_order_of_building() -> None:
    assert start_is_free_of_the_cut()
    assert start_is_free_of_the_order_of_building()


def _fill_by_global_generator(
    root: nn.Module, empty: Iterable[str], described: list[ParameterSpec], seed: int, *, reseed: bool
) -> None:
    """Planted: draws in the order of building, as torch does; with `reseed`, anew from the seed for each VNode."""
    if reseed:
        torch.manual_seed(seed)
    for each in described:
        path, _, name = each.name.rpartition(".")
        values = torch.empty(each.shape).uniform_(-1, 1) * each.init.bound + each.init.center
        setattr(root.get_submodule(path), name, nn.Parameter(values))


def test_the_control_an_init_in_order_of_building_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "_fill", lambda *given: _fill_by_global_generator(*given, reseed=False))
    assert not start_is_free_of_the_order_of_building()
    assert not start_is_free_of_the_cut()


def test_the_control_an_init_by_vnode_instead_of_path_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "_fill", lambda *given: _fill_by_global_generator(*given, reseed=True))
    assert start_is_free_of_the_order_of_building()
    assert not start_is_free_of_the_cut()


def test_seeds_paths_and_names_each_make_another_start() -> None:
    def weights(seed: int, path: str) -> Tensor:
        return build(VNodeSpec("v", "linear", {"features": 6}, path=path), [F], seed=seed).state_dict()[
            f"{path}.weight"
        ]

    assert not torch.equal(weights(3, "a"), weights(4, "a"))
    assert not torch.equal(weights(3, "a"), weights(3, "b"))
    module = build(VNodeSpec("v", "lstm", {"features": 6}), [SEQUENCE], seed=3).state_dict()
    assert not torch.equal(module["v.weight_ih_l0"], module["v.weight_hh_l0"])


def test_dropout_keeps_what_it_should_and_scales_it() -> None:
    mask = draw_mask(torch.Size((300, 300)), 0.3, 5)
    assert set(mask.unique().tolist()) == {0.0, 1.0}
    assert float(mask.mean()) == pytest.approx(0.7, abs=0.01)
    module = build(VNodeSpec("v", "dropout", {"p": 0.25}), [F], seed=3)
    found = module(torch.ones(400, 6))
    assert found.unique().tolist() == pytest.approx([0.0, 4 / 3])
    module.eval()
    assert torch.equal(module(torch.ones(4, 6)), torch.ones(4, 6))


def drawn(
    step: int, micro_batch: int, *, seed: int = 3, path: str = "d", disturb: Callable[[], object] = int
) -> Tensor:
    module = build(VNodeSpec("v", "dropout", {"p": 0.5}, path=path), [F], seed=seed)
    disturb()
    module.set_moment(step, micro_batch)
    found: Tensor = module(torch.ones(50, 6))
    return found


def dropout_is_a_function_of_its_moment() -> bool:
    """Also after a replay, after other draws, and in a module that was built anew."""
    again = drawn(4, 1, disturb=lambda: torch.rand(7))
    module = build(VNodeSpec("v", "dropout", {"p": 0.5}, path="d"), [F], seed=3)
    module.set_moment(5, 0)
    module(torch.ones(50, 6))
    module.set_moment(4, 1)
    return torch.equal(drawn(4, 1), again) and torch.equal(module(torch.ones(50, 6)), again)


def test_dropout_is_a_function_of_seed_path_step_and_micro_batch() -> None:
    assert dropout_is_a_function_of_its_moment()
    others = [drawn(5, 1), drawn(4, 2), drawn(4, 1, seed=4), drawn(4, 1, path="e")]
    assert not any(torch.equal(drawn(4, 1), other) for other in others)


def test_the_control_dropout_by_the_global_generator_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SeededDropout, "forward", lambda self, given: nn.functional.dropout(given, self.p))
    assert not dropout_is_a_function_of_its_moment()


def test_all_dropouts_of_a_transformer_have_masks_of_their_own() -> None:
    network = UncutNetwork(make_char_lm())
    places = {name: module._place for name, module in network.named_modules() if isinstance(module, SeededDropout)}
    assert len(places) == 9
    assert all(place is not None and place[1] == name for name, place in places.items())


def test_a_network_of_vnodes_gives_the_same_whatever_is_in_which() -> None:
    spec = make_mlp()
    sources = make_dataset(spec).batch(spec, 0, 0)
    one, other = UncutNetwork(spec), UncutNetwork(cut_differently(spec))
    assert torch.equal(one.loss(sources), other.loss(sources))
    assert torch.equal(one(sources["x"]), other(x=sources["x"]))
    assert one.input_names == ["x"]


def test_a_module_at_a_path_that_torch_uses_itself_is_named_by_it() -> None:
    module = build(VNodeSpec("v", "linear", {"features": 2}, path="type.forward"), [F], seed=1)
    assert list(module.state_dict()) == ["type.forward.weight", "type.forward.bias"]


def test_a_registry_that_says_otherwise_than_torch_is_found_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "BUILDERS", {"linear": lambda values, inputs: nn.Linear(6, 4)})
    with pytest.raises(RuntimeError, match="torch builds"):
        build(VNodeSpec("v", "linear", {"features": 3}), [F], seed=1)


def test_torch_is_not_loaded_before_it_is_needed() -> None:
    import subprocess
    import sys

    code = "import computepool.networks, computepool.core.networks.faults, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    without = (
        "import sys; sys.modules['torch'] = None\n"
        "from computepool import networks\n"
        "try: networks.reference\n"
        "except ModuleNotFoundError as error: assert \"pip install 'computepool[networks]'\" in str(error), error\n"
        "else: raise AssertionError"
    )
    subprocess.run([sys.executable, "-c", without], check=True, timeout=60)
    lazy = "from computepool import networks; networks.NetworkSpec; import sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", lazy], check=True, timeout=60)
