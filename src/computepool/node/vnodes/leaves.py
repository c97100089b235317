"""The torch module of every block that holds no others. `modules.py` gives them their first values.

Those that torch does not have, people use in their own modules too: there they start as torch's do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional

from computepool.core.networks.blocks_dense import Mlp
from computepool.core.networks.blocks_joins import count_dim
from computepool.core.networks.fields import Values
from computepool.core.networks.spec import TensorType
from computepool.node.vnodes.randomness import SeededDropout

Builder = Callable[[Values, Sequence[TensorType]], nn.Module]


class Positional(nn.Module):
    def __init__(self, positions: int, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(positions, features))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, given: Tensor) -> Tensor:
        return given + self.weight


class Attention(nn.Module):
    """Of a sequence to itself, with the names of torch's MultiheadAttention."""

    def __init__(self, features: int, heads: int, *, causal: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.in_proj_weight = nn.Parameter(torch.empty(3 * features, features))
        self.in_proj_bias = nn.Parameter(torch.empty(3 * features))
        self.out_proj = nn.Linear(features, features)
        self.dropout = SeededDropout(dropout)
        self.heads = heads
        self.causal = causal
        nn.init.xavier_uniform_(self.in_proj_weight)
        nn.init.zeros_(self.in_proj_bias)
        nn.init.zeros_(self.out_proj.bias)

    def forward(self, given: Tensor) -> Tensor:
        batch, positions, features = given.shape
        joined = functional.linear(given, self.in_proj_weight, self.in_proj_bias)
        split = joined.view(batch, positions, 3, self.heads, features // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = self._attend(query, key, value).transpose(1, 2).reshape(batch, positions, features)
        return functional.linear(mixed, self.out_proj.weight, self.out_proj.bias)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if not self.dropout.is_active:
            return functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        # Torch would draw this mask from its global generator.
        scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
        if self.causal:
            ahead = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(ahead, float("-inf"))
        weights: Tensor = self.dropout(scores.softmax(-1))
        return weights @ value


class Transformer(nn.Module):
    """Norm before each half, with the names of torch's TransformerEncoderLayer."""

    def __init__(
        self,
        features: int,
        heads: int,
        hidden: int,
        *,
        causal: bool = False,
        dropout: float = 0.0,
        activation: str = "gelu",
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.self_attn = Attention(features, heads, causal=causal, dropout=dropout)
        self.linear1 = nn.Linear(features, hidden)
        self.dropout = SeededDropout(dropout)
        self.linear2 = nn.Linear(hidden, features)
        self.norm1 = nn.LayerNorm(features, eps=eps)
        self.norm2 = nn.LayerNorm(features, eps=eps)
        self.dropout1 = SeededDropout(dropout)
        self.dropout2 = SeededDropout(dropout)
        self.activation = activation
        self._activate = functional.gelu if activation == "gelu" else functional.relu

    def forward(self, given: Tensor) -> Tensor:
        given = given + self.dropout1(self.self_attn(self.norm1(given)))
        inner: Tensor = self.dropout(self._activate(self.linear1(self.norm2(given))))
        outer: Tensor = self.dropout2(self.linear2(inner))
        return given + outer


class _Recurrent(nn.Module):
    """Narrows a recurrent module of torch's to the output that is wanted, so that its names stay as they are."""

    sequence: bool

    def forward(self, given: Tensor) -> Tensor:
        states: Tensor = super().forward(given)[0]
        return states if self.sequence else states[:, -1]


class Rnn(_Recurrent, nn.RNN):  # type: ignore[misc]
    pass


class Lstm(_Recurrent, nn.LSTM):  # type: ignore[misc]
    pass


class Gru(_Recurrent, nn.GRU):  # type: ignore[misc]
    pass


class Add(nn.Module):
    def forward(self, *given: Tensor) -> Tensor:
        total = given[0]
        for each in given[1:]:
            total = total + each
        return total


class Mul(nn.Module):
    def forward(self, *given: Tensor) -> Tensor:
        product = given[0]
        for each in given[1:]:
            product = product * each
        return product


class Concat(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self._dim = dim

    def forward(self, *given: Tensor) -> Tensor:
        return torch.cat(given, dim=self._dim)


class Reshape(nn.Module):
    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self._shape = shape

    def forward(self, given: Tensor) -> Tensor:
        return given.reshape(given.shape[0], *self._shape)


class Transpose(nn.Module):
    def __init__(self, first: int, second: int) -> None:
        super().__init__()
        self._first, self._second = first, second

    def forward(self, given: Tensor) -> Tensor:
        return given.transpose(self._first, self._second)


class CrossEntropy(nn.Module):
    def forward(self, scores: Tensor, wanted: Tensor) -> Tensor:
        return functional.cross_entropy(scores.reshape(-1, scores.shape[-1]), wanted.reshape(-1).long())


class Mse(nn.Module):
    def forward(self, given: Tensor, wanted: Tensor) -> Tensor:
        return functional.mse_loss(given, wanted)


class Bce(nn.Module):
    def forward(self, scores: Tensor, wanted: Tensor) -> Tensor:
        return functional.binary_cross_entropy_with_logits(scores, wanted)


_ACTIVATIONS: Mapping[str, Callable[[], nn.Module]] = MappingProxyType(
    {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid}
)


def _build_linear(values: Values, inputs: Sequence[TensorType]) -> nn.Module:
    return nn.Linear(inputs[0].shape[-1], values.whole("features"), bias=values.flag("bias"))


def _build_mlp(values: Values, inputs: Sequence[TensorType]) -> nn.Module:
    widths = Mlp.widths(values, inputs[0])
    layers: list[nn.Module] = []
    for narrow, wide in pairwise(widths):
        layers += [nn.Linear(narrow, wide), _ACTIVATIONS[values.text("activation")]()]
    return nn.Sequential(*layers[:-1])


def _build_conv2d(values: Values, inputs: Sequence[TensorType]) -> nn.Module:
    return nn.Conv2d(
        inputs[0].shape[0],
        values.whole("channels"),
        values.pair("kernel"),
        stride=values.pair("stride"),
        padding=values.pair("padding"),
        groups=values.whole("groups"),
        bias=values.flag("bias"),
    )


def _build_pool(cls: type[nn.MaxPool2d] | type[nn.AvgPool2d]) -> Builder:
    def build_pool(values: Values, inputs: Sequence[TensorType]) -> nn.Module:
        kernel = values.pair("kernel")
        height, width = (stride or size for stride, size in zip(values.pair("stride"), kernel, strict=True))
        return cls(kernel, stride=(height, width), padding=values.pair("padding"))

    return build_pool


def _build_batch_norm(values: Values, inputs: Sequence[TensorType]) -> nn.Module:
    cls = nn.BatchNorm2d if len(inputs[0].shape) == 3 else nn.BatchNorm1d
    return cls(inputs[0].shape[0], eps=values.number("eps"), momentum=values.number("momentum"))


def _build_attention(values: Values, inputs: Sequence[TensorType]) -> nn.Module:
    return Attention(
        inputs[0].shape[-1], values.whole("heads"), causal=values.flag("causal"), dropout=values.number("dropout")
    )


def _build_transformer(values: Values, inputs: Sequence[TensorType]) -> nn.Module:
    return Transformer(
        inputs[0].shape[-1],
        values.whole("heads"),
        values.whole("hidden"),
        causal=values.flag("causal"),
        dropout=values.number("dropout"),
        activation=values.text("activation"),
        eps=values.number("eps"),
    )


def _build_recurrent(cls: type[Rnn] | type[Lstm] | type[Gru]) -> Builder:
    def build_recurrent(values: Values, inputs: Sequence[TensorType]) -> nn.Module:
        module = cls(
            inputs[0].shape[-1], values.whole("features"), num_layers=values.whole("layers"), batch_first=True
        )
        module.sequence = values.flag("sequence")
        return module

    return build_recurrent


def _build_transpose(values: Values, inputs: Sequence[TensorType]) -> nn.Module:
    first, second = (count_dim(dim, inputs[0]) + 1 for dim in values.pair("dims"))
    return Transpose(first, second)


BUILDERS: Mapping[str, Builder] = MappingProxyType(
    {
        "linear": _build_linear,
        "mlp": _build_mlp,
        "layer_norm": lambda values, inputs: nn.LayerNorm(inputs[0].shape[-1], eps=values.number("eps")),
        "softmax": lambda values, inputs: nn.Softmax(dim=-1),
        "relu": lambda values, inputs: nn.ReLU(),
        "gelu": lambda values, inputs: nn.GELU(approximate=values.text("approximate")),
        "silu": lambda values, inputs: nn.SiLU(),
        "tanh": lambda values, inputs: nn.Tanh(),
        "sigmoid": lambda values, inputs: nn.Sigmoid(),
        "leaky_relu": lambda values, inputs: nn.LeakyReLU(values.number("slope")),
        "dropout": lambda values, inputs: SeededDropout(values.number("p")),
        "identity": lambda values, inputs: nn.Identity(),
        "conv2d": _build_conv2d,
        "max_pool2d": _build_pool(nn.MaxPool2d),
        "avg_pool2d": _build_pool(nn.AvgPool2d),
        "adaptive_avg_pool2d": lambda values, inputs: nn.AdaptiveAvgPool2d(values.pair("size")),
        "batch_norm": _build_batch_norm,
        "group_norm": lambda values, inputs: nn.GroupNorm(
            values.whole("groups"), inputs[0].shape[0], eps=values.number("eps")
        ),
        "embedding": lambda values, inputs: nn.Embedding(values.whole("vocabulary"), values.whole("features")),
        "positional": lambda values, inputs: Positional(*inputs[0].shape),
        "attention": _build_attention,
        "transformer": _build_transformer,
        "rnn": _build_recurrent(Rnn),
        "lstm": _build_recurrent(Lstm),
        "gru": _build_recurrent(Gru),
        "add": lambda values, inputs: Add(),
        "mul": lambda values, inputs: Mul(),
        "concat": lambda values, inputs: Concat(count_dim(values.whole("dim"), inputs[0]) + 1),
        "flatten": lambda values, inputs: nn.Flatten(),
        "reshape": lambda values, inputs: Reshape(values.ints("shape")),
        "transpose": _build_transpose,
        "cross_entropy": lambda values, inputs: CrossEntropy(),
        "mse": lambda values, inputs: Mse(),
        "bce": lambda values, inputs: Bce(),
    }
)
