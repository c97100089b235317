"""Reads a torch module as blocks. Modules are known by their exact class: a subclass may compute something else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from computepool.core.errors import InvalidSpec
from computepool.core.networks.faults import list_spec_faults
from computepool.core.networks.shapes import list_buffers, list_parameters
from computepool.core.networks.spec import (
    SOURCE_MARK,
    Config,
    Edge,
    NetworkSpec,
    Source,
    TensorType,
    VNodeSpec,
    find_tensor_type,
)
from computepool.networks.residual import Residual
from computepool.networks.splitting import Piece, Split, split_pieces
from computepool.node.vnodes.leaves import Attention, Positional, Transformer
from computepool.node.vnodes.modules import TORCH_DTYPES
from computepool.node.vnodes.randomness import SeededDropout

LOSS_ID = "loss"


class Unsupported(ValueError):
    """A setting of a module that no block has."""


def describe_module(
    module: nn.Module,
    *,
    sources: Mapping[str, str | TensorType],
    loss: str,
    split: Split = "auto",
    name: str = "network",
    **options: Any,
) -> NetworkSpec:
    """The spec of a module; refuses, all at once, what it cannot take over."""
    pieces, faults = read_module(module)
    faults += [*_tie_faults(module), *_frozen_faults(module)]
    found_sources = _read_sources(sources, faults)
    if faults or not pieces or len(found_sources) < 2:
        faults += [] if pieces or faults else ["the module is empty"]
        faults += (
            [] if len(found_sources) >= 2 or faults else ["give two sources: what goes in, and what is compared"]
        )
        raise InvalidSpec("The module cannot be taken over: " + "; ".join(faults) + ".", faults=faults)
    first, last = found_sources[0], found_sources[-1]
    vnodes, edges = split_pieces(pieces, split, front=SOURCE_MARK + first.name, given=first.type)
    output = vnodes[-1].id
    spec = NetworkSpec(
        name=name,
        vnodes=(*vnodes, VNodeSpec(LOSS_ID, loss)),
        edges=(*edges, Edge(output, LOSS_ID), Edge(SOURCE_MARK + last.name, LOSS_ID, target_slot=1)),
        sources=tuple(found_sources),
        loss=LOSS_ID,
        output=(output, 0),
        **options,
    )
    faults = list_spec_faults(spec) or _name_faults(spec, module)
    if faults:
        raise InvalidSpec("The module cannot be taken over: " + "; ".join(faults) + ".", faults=faults)
    return spec


def read_module(module: nn.Module, path: str = "") -> tuple[list[Piece], list[str]]:
    """The module as a chain of pieces, each at its path, and what is not supported."""
    if type(module) in (nn.Sequential, nn.TransformerEncoder):
        return _read_chain(module, path)
    if type(module) is Residual:
        inner, faults = read_module(module.inner, _join(path, "inner"))
        return [Piece(path or "residual", "residual", {}, tuple(inner))], faults
    reader = _READERS.get(type(module))
    if not path:
        return [], [f"it is a {type(module).__name__}: put it into an nn.Sequential, so that its parts have names"]
    if reader is None:
        known = ", ".join(sorted({cls.__name__ for cls in (*_READERS, nn.Sequential, Residual)}))
        return [], [f"{path} is a {type(module).__name__}, which is not supported; supported: {known}"]
    try:
        block, config = reader(module)
    except Unsupported as reason:
        return [], [f"{path} ({type(module).__name__}): {reason}"]
    return [Piece(path, block, config)], []


def _read_chain(module: nn.Module, path: str) -> tuple[list[Piece], list[str]]:
    pieces, faults = [], []
    for name, child in _list_chain(module):
        found, wrong = read_module(child, _join(path, name))
        pieces += found
        faults += wrong
    return pieces, faults


def _list_chain(module: nn.Module) -> list[tuple[str, nn.Module]]:
    if isinstance(module, nn.TransformerEncoder):
        layers = [(f"layers.{number}", layer) for number, layer in enumerate(module.layers)]
        return layers if module.norm is None else [*layers, ("norm", module.norm)]
    # Not by `named_children`, which leaves out a module that stands there twice.
    return [(name, child) for name, child in module._modules.items() if child is not None]


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _need(holds: bool, wish: str) -> None:
    if not holds:
        raise Unsupported(wish)


def _pair(value: Any, name: str) -> tuple[int, int]:
    _need(not isinstance(value, str), f"{name} must be given as numbers, not as {value!r}")
    first, second = value if isinstance(value, tuple) else (value, value)
    return int(first), int(second)


def _read_conv2d(module: nn.Conv2d) -> tuple[str, Config]:
    _need(module.padding_mode == "zeros", "only padding_mode zeros is supported")
    _need(_pair(module.dilation, "dilation") == (1, 1), "only dilation 1 is supported")
    return "conv2d", {
        "channels": module.out_channels,
        "kernel": _pair(module.kernel_size, "kernel_size"),
        "stride": _pair(module.stride, "stride"),
        "padding": _pair(module.padding, "padding"),
        "groups": module.groups,
        "bias": module.bias is not None,
    }


def _read_pool(module: nn.MaxPool2d | nn.AvgPool2d) -> tuple[str, Config]:
    _need(not module.ceil_mode, "only ceil_mode False is supported")
    if isinstance(module, nn.MaxPool2d):
        _need(_pair(module.dilation, "dilation") == (1, 1) and not module.return_indices, "no dilation, no indices")
    else:
        _need(
            module.count_include_pad and module.divisor_override is None, "only torch's default divisor is supported"
        )
    return "max_pool2d" if isinstance(module, nn.MaxPool2d) else "avg_pool2d", {
        "kernel": _pair(module.kernel_size, "kernel_size"),
        "stride": _pair(module.stride, "stride"),
        "padding": _pair(module.padding, "padding"),
    }


def _read_adaptive(module: nn.AdaptiveAvgPool2d) -> tuple[str, Config]:
    size = module.output_size
    _need(size is not None and (not isinstance(size, tuple) or None not in size), "its output size must be given")
    return "adaptive_avg_pool2d", {"size": _pair(size, "output_size")}


def _read_batch_norm(module: nn.BatchNorm1d | nn.BatchNorm2d) -> tuple[str, Config]:
    _need(
        module.affine and module.track_running_stats and module.momentum is not None,
        "build it with affine, track_running_stats and a momentum",
    )
    return "batch_norm", {"eps": module.eps, "momentum": float(module.momentum or 0.0)}


def _read_layer_norm(module: nn.LayerNorm) -> tuple[str, Config]:
    _need(len(module.normalized_shape) == 1, "only a norm over the last dimension is supported")
    _need(module.elementwise_affine and module.bias is not None, "only with weight and bias is it supported")
    return "layer_norm", {"eps": module.eps}


def _read_group_norm(module: nn.GroupNorm) -> tuple[str, Config]:
    _need(module.affine, "only with weight and bias is it supported")
    return "group_norm", {"groups": module.num_groups, "eps": module.eps}


def _read_embedding(module: nn.Embedding) -> tuple[str, Config]:
    plain = module.padding_idx is None and module.max_norm is None and not module.sparse
    _need(
        plain and not module.scale_grad_by_freq,
        "padding_idx, max_norm, sparse and scale_grad_by_freq are not supported",
    )
    return "embedding", {"vocabulary": module.num_embeddings, "features": module.embedding_dim}


def _read_flatten(module: nn.Flatten) -> tuple[str, Config]:
    _need(module.start_dim == 1 and module.end_dim == -1, "only start_dim 1 and end_dim -1 are supported")
    return "flatten", {}


def _read_unflatten(module: nn.Unflatten) -> tuple[str, Config]:
    _need(
        module.dim == 1 and all(isinstance(size, int) and size > 0 for size in module.unflattened_size),
        "only dim 1 and a size in numbers above 0 are supported",
    )
    return "reshape", {"shape": tuple(int(size) for size in module.unflattened_size)}


def _read_softmax(module: nn.Softmax) -> tuple[str, Config]:
    _need(module.dim == -1, "only dim -1 is supported")
    return "softmax", {}


def _read_encoder_layer(module: nn.TransformerEncoderLayer) -> tuple[str, Config]:
    _need(module.norm_first and module.self_attn.batch_first, "build it with norm_first=True and batch_first=True")
    _need(module.self_attn.in_proj_bias is not None and module.linear1.bias is not None, "build it with bias=True")
    rates = {module.self_attn.dropout, module.dropout.p, module.dropout1.p, module.dropout2.p}
    _need(len(rates) == 1, "its dropouts must have one probability")
    is_gelu = module.activation is nn.functional.gelu
    _need(is_gelu or module.activation is nn.functional.relu, "its activation must be relu or gelu")
    return "transformer", {
        "heads": module.self_attn.num_heads,
        "hidden": module.linear1.out_features,
        "dropout": module.dropout.p,
        "activation": "gelu" if is_gelu else "relu",
        "eps": module.norm1.eps,
    }


def _read_transformer(module: Transformer) -> tuple[str, Config]:
    return "transformer", {
        "heads": module.self_attn.heads,
        "hidden": module.linear1.out_features,
        "causal": module.self_attn.causal,
        "dropout": module.dropout.p,
        "activation": module.activation,
        "eps": module.norm1.eps,
    }


def _read_attention(module: Attention) -> tuple[str, Config]:
    return "attention", {"heads": module.heads, "causal": module.causal, "dropout": module.dropout.p}


def _read_dropout(module: nn.Dropout | SeededDropout) -> tuple[str, Config]:
    return "dropout", {"p": float(module.p)}


_READERS: Mapping[type[nn.Module], Callable[[Any], tuple[str, Config]]] = {
    nn.Linear: lambda module: ("linear", {"features": module.out_features, "bias": module.bias is not None}),
    nn.Conv2d: _read_conv2d,
    nn.MaxPool2d: _read_pool,
    nn.AvgPool2d: _read_pool,
    nn.AdaptiveAvgPool2d: _read_adaptive,
    nn.BatchNorm1d: _read_batch_norm,
    nn.BatchNorm2d: _read_batch_norm,
    nn.LayerNorm: _read_layer_norm,
    nn.GroupNorm: _read_group_norm,
    nn.Embedding: _read_embedding,
    nn.Flatten: _read_flatten,
    nn.Unflatten: _read_unflatten,
    nn.Softmax: _read_softmax,
    nn.ReLU: lambda module: ("relu", {}),
    nn.GELU: lambda module: ("gelu", {"approximate": module.approximate}),
    nn.SiLU: lambda module: ("silu", {}),
    nn.Tanh: lambda module: ("tanh", {}),
    nn.Sigmoid: lambda module: ("sigmoid", {}),
    nn.LeakyReLU: lambda module: ("leaky_relu", {"slope": module.negative_slope}),
    nn.Identity: lambda module: ("identity", {}),
    nn.Dropout: _read_dropout,
    SeededDropout: _read_dropout,
    nn.TransformerEncoderLayer: _read_encoder_layer,
    Transformer: _read_transformer,
    Attention: _read_attention,
    Positional: lambda module: ("positional", {}),
}


def _tie_faults(module: nn.Module) -> list[str]:
    """Weights that two modules share, by their names."""
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [
        f"{' and '.join(shared)} are one tensor; tied weights are not supported: give each its own"
        for shared in names.values()
        if len(shared) > 1
    ]


def _frozen_faults(module: nn.Module) -> list[str]:
    """What a block would do otherwise, without a word: train what is frozen, or leave out what a hook adds."""
    frozen = [name for name, parameter in module.named_parameters() if not parameter.requires_grad]
    hooked = [name for name, each in module.named_modules() if each._forward_hooks or each._forward_pre_hooks]
    faults = [f"{name} is frozen, which is not supported: let it require a gradient" for name in frozen]
    return faults + [f"{name or 'the module'} has hooks, which are not taken over: remove them" for name in hooked]


def _read_sources(sources: Mapping[str, str | TensorType], faults: list[str]) -> list[Source]:
    found = []
    for name, given in sources.items():
        kind = find_tensor_type(given) if isinstance(given, str) else given
        if kind is None:
            faults.append(f"source {name} is {given!r}; write its type as f32[3,8,8] or i64[]")
        else:
            found.append(Source(name, kind))
    return found


def _name_faults(spec: NetworkSpec, module: nn.Module) -> list[str]:
    """Whether the blocks have just the tensors that the module has: weights must go both ways."""
    described = {
        each.name: f"{each.dtype.value}{list(each.shape)}"
        for listed in (list_parameters(spec), list_buffers(spec))
        for found in listed.values()
        for each in found
    }
    words = {dtype: word.value for word, dtype in TORCH_DTYPES.items()}
    given = {
        name: f"{words.get(tensor.dtype, tensor.dtype)}{list(tensor.shape)}"
        for name, tensor in module.state_dict().items()
    }
    strange = sorted(name for name in given.keys() | described.keys() if given.get(name) != described.get(name))
    return [
        f"{name} is {given.get(name, 'absent')} in the module, {described.get(name, 'absent')} as a block"
        for name in strange
    ]
