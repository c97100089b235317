"""Networks for tests: small ones of every kind that the acceptance of networks is about, and data for them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from computepool.core.networks.spec import (
    ConfigValue,
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

X = Source("x", TensorType((16,)))
Y = Source("y", TensorType((), Dtype.I64))
ADAM = OptimizerSpec(kind=OptimizerKind.ADAM, lr=0.01)


def entry(block: str, path: str = "", **config: ConfigValue) -> dict[str, ConfigValue]:
    """An inner block of a sequential or a residual."""
    return {"block": block, "config": config, **({"path": path} if path else {})}


def chain(*vnodes: VNodeSpec, loss: str = "cross_entropy", **options: Any) -> NetworkSpec:
    """VNodes one after the other from @x, and a loss against @y."""
    names = ["@x", *(vnode.id for vnode in vnodes)]
    edges = [Edge(source, target) for source, target in pairwise(names)]
    given: dict[str, Any] = {
        "name": "net",
        "sources": (X, Y),
        "seed": 7,
        "batch_size": 16,
        "micro_batches": 4,
        **options,
    }
    return NetworkSpec(
        vnodes=(*vnodes, VNodeSpec("loss", loss)),
        edges=(*edges, Edge(names[-1], "loss"), Edge("@y", "loss", target_slot=1)),
        loss="loss",
        output=(names[-1], 0),
        **given,
    )


def make_mlp(**options: Any) -> NetworkSpec:
    """Two hidden layers, each a VNode."""
    return chain(
        VNodeSpec("a", "sequential", {"blocks": (entry("linear", "0", features=24), entry("relu", "1"))}),
        VNodeSpec("b", "sequential", {"blocks": (entry("linear", "2", features=24), entry("relu", "3"))}),
        VNodeSpec("head", "linear", {"features": 10}, path="4"),
        **{"optimizer": ADAM, **options},
    )


def make_conv(**options: Any) -> NetworkSpec:
    """Pictures of 1 x 8 x 8, with batch norm."""
    return chain(
        VNodeSpec(
            "conv1",
            "sequential",
            {
                "blocks": (
                    entry("conv2d", "0", channels=6, kernel=3, padding=1),
                    entry("batch_norm", "1"),
                    entry("relu", "2"),
                    entry("max_pool2d", "3", kernel=2),
                )
            },
        ),
        VNodeSpec(
            "conv2",
            "sequential",
            {"blocks": (entry("conv2d", "4", channels=8, kernel=3), entry("relu", "5"), entry("flatten", "6"))},
        ),
        VNodeSpec("head", "linear", {"features": 10}, path="7"),
        **{
            "sources": (Source("x", TensorType((1, 8, 8))), Y),
            "optimizer": OptimizerSpec(kind=OptimizerKind.SGD, lr=0.05, momentum=0.9),
            **options,
        },
    )


def make_branching(**options: Any) -> NetworkSpec:
    """One tensor that three others read: two residuals and a tower of its own."""
    edges = [
        Edge("@x", "stem"),
        Edge("stem", "left"),
        Edge("stem", "right"),
        Edge("stem", "sum"),
        Edge("left", "sum", target_slot=1),
        Edge("right", "sum", target_slot=2),
        Edge("sum", "head"),
        Edge("head", "loss"),
        Edge("@y", "loss", target_slot=1),
    ]
    given: dict[str, Any] = {
        "name": "branches",
        "sources": (X, Y),
        "seed": 7,
        "batch_size": 16,
        "micro_batches": 4,
        "optimizer": ADAM,
        **options,
    }
    return NetworkSpec(
        vnodes=(
            VNodeSpec("stem", "sequential", {"blocks": (entry("linear", "stem", features=24),)}),
            VNodeSpec(
                "left",
                "sequential",
                {
                    "blocks": (
                        entry("layer_norm", "left.0"),
                        entry("linear", "left.1", features=24),
                        entry("tanh", "left.2"),
                    )
                },
            ),
            VNodeSpec(
                "right", "sequential", {"blocks": (entry("linear", "right.0", features=24), entry("gelu", "right.1"))}
            ),
            VNodeSpec("sum", "add"),
            VNodeSpec("head", "linear", {"features": 10}),
            VNodeSpec("loss", "cross_entropy"),
        ),
        edges=tuple(edges),
        loss="loss",
        output=("head", 0),
        **given,
    )


VOCABULARY, POSITIONS, FEATURES = 31, 12, 16


def make_char_lm(**options: Any) -> NetworkSpec:
    """A small causal transformer with dropout, a schedule and clipping."""
    transformer: dict[str, ConfigValue] = {"heads": 2, "hidden": 32, "causal": True, "dropout": 0.1}
    return chain(
        VNodeSpec(
            "embed",
            "sequential",
            {
                "blocks": (
                    entry("embedding", "tokens", vocabulary=VOCABULARY, features=FEATURES),
                    entry("positional", "positions"),
                    entry("dropout", "dropout", p=0.1),
                )
            },
        ),
        VNodeSpec("block0", "transformer", transformer, path="blocks.0"),
        VNodeSpec("block1", "transformer", transformer, path="blocks.1"),
        VNodeSpec(
            "head",
            "sequential",
            {"blocks": (entry("layer_norm", "norm"), entry("linear", "head", features=VOCABULARY))},
        ),
        **{
            "sources": (
                Source("x", TensorType((POSITIONS,), Dtype.I64)),
                Source("y", TensorType((POSITIONS,), Dtype.I64)),
            ),
            "optimizer": OptimizerSpec(
                kind=OptimizerKind.ADAMW,
                lr=3e-3,
                weight_decay=0.01,
                clip_norm=0.5,
                schedule=Schedule.COSINE,
                warmup_steps=3,
                schedule_steps=20,
                lr_end_ratio=0.1,
            ),
            **options,
        },
    )
