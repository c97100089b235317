"""Small networks and made-up data for tests of the engine: chains, branches, convolutions and a character model."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import torch

from computepool.core.networks.placement import Location, Placement, SeatId
from computepool.core.networks.spec import (
    Dtype,
    Edge,
    NetworkSpec,
    OptimizerKind,
    OptimizerSpec,
    Source,
    TensorType,
    VNodeSpec,
)
from computepool.node.vnodes.data import Dataset

RUN_ID = "run-1"
SAMPLES = 40


def make_net(kind: str, **overrides: Any) -> NetworkSpec:
    return replace(_NETS[kind](), **overrides)


def make_samples(spec: NetworkSpec, *, seed: int = 0, samples: int = SAMPLES) -> Dataset:
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for source in spec.sources:
        shape = (samples, *source.type.shape)
        if source.type.dtype is Dtype.F32:
            tensors[source.name] = torch.randn(shape, generator=generator)
        else:
            tensors[source.name] = torch.randint(0, CLASSES, shape, generator=generator)
    return Dataset.from_tensors(tensors)


def place_all(spec: NetworkSpec, seats: int, *, seed: int | None = None, epoch: int = 1) -> Placement:
    """Contiguous parts of the list of VNodes; with a seed every VNode goes where it falls."""
    random = Random(seed)
    locations = []
    for replica in range(spec.replicas):
        for number, vnode in enumerate(spec.vnodes):
            seat = number * seats // len(spec.vnodes) if seed is None else random.randrange(seats)
            apart = f"{replica}-" if seed is None and spec.replicas > 1 else ""
            locations.append(Location(vnode.id, SeatId(f"seat-{apart}{seat}"), replica))
    return Placement(RUN_ID, epoch, tuple(locations))


CLASSES = 5
ADAMW = OptimizerSpec(OptimizerKind.ADAMW, lr=0.01, weight_decay=0.1)
MOMENTUM = OptimizerSpec(OptimizerKind.SGD, lr=0.05, momentum=0.9)


def chain(*vnodes: VNodeSpec, source: str = "@x", loss: str = "loss") -> tuple[Edge, ...]:
    """Edges along a list of VNodes, from a source, with the targets at the loss."""
    names = [source, *(vnode.id for vnode in vnodes)]
    edges = [Edge(one, two) for one, two in pairwise(names)]
    return (*edges, Edge("@y", loss, target_slot=1))


def _v(name: str, block: str, **config: Any) -> VNodeSpec:
    return VNodeSpec(name, block, config)


def _net(name: str, vnodes: tuple[VNodeSpec, ...], edges: tuple[Edge, ...], **more: Any) -> NetworkSpec:
    filled = {
        "sources": (Source("x", TensorType((6,))), Source("y", TensorType((), Dtype.I64))),
        "loss": "loss",
        "output": (vnodes[-2].id, 0),
        "seed": 7,
        "optimizer": MOMENTUM,
        "batch_size": 8,
        "micro_batches": 4,
        "checkpoint_every": 3,
    } | more
    return NetworkSpec(name, vnodes, edges, **filled)


def _mlp() -> NetworkSpec:
    vnodes = (
        _v("a", "linear", features=16),
        _v("b", "relu"),
        _v("c", "linear", features=12),
        _v("d", "tanh"),
        _v("e", "linear", features=CLASSES),
        _v("loss", "cross_entropy"),
    )
    return _net("mlp", vnodes, chain(*vnodes))


def _conv() -> NetworkSpec:
    vnodes = (
        _v("c1", "conv2d", channels=6, kernel=3, padding=1),
        _v("n1", "batch_norm"),
        _v("r1", "relu"),
        _v("p1", "max_pool2d", kernel=2),
        _v("c2", "conv2d", channels=8, kernel=3),
        _v("r2", "relu"),
        _v("flat", "flatten"),
        _v("head", "linear", features=CLASSES),
        _v("loss", "cross_entropy"),
    )
    sources = (Source("x", TensorType((1, 8, 8))), Source("y", TensorType((), Dtype.I64)))
    return _net("conv", vnodes, chain(*vnodes), sources=sources, optimizer=ADAMW)


def _residual() -> NetworkSpec:
    """Tensors with three readers, one of which uses it twice inside; an addition of a tensor to itself."""
    vnodes = (
        _v("a", "linear", features=12),
        _v("b", "linear", features=12),
        _v("c", "residual", blocks=({"block": "linear", "config": {"features": 12}}, {"block": "gelu"})),
        _v("d", "linear", features=12),
        _v("sum", "add"),
        _v("twice", "add"),
        _v("e", "layer_norm"),
        _v("gate", "sigmoid"),
        _v("times", "mul"),
        _v("head", "linear", features=CLASSES),
        _v("loss", "cross_entropy"),
    )
    edges = (
        Edge("@x", "a"),
        Edge("a", "b"),
        Edge("a", "c"),
        Edge("a", "sum", target_slot=0),
        Edge("b", "d"),
        Edge("d", "sum", target_slot=1),
        Edge("c", "sum", target_slot=2),
        Edge("sum", "twice", target_slot=0),
        Edge("sum", "twice", target_slot=1),
        Edge("sum", "e"),
        Edge("sum", "gate"),
        Edge("e", "times", target_slot=0),
        Edge("gate", "times", target_slot=1),
        Edge("twice", "times", target_slot=2),
        Edge("times", "head"),
        Edge("head", "loss"),
        Edge("@y", "loss", target_slot=1),
    )
    clipped = replace(ADAMW, clip_norm=0.5)
    return _net("residual", vnodes, edges, optimizer=clipped)


def _towers() -> NetworkSpec:
    """Two inputs, two towers, strided tensors between VNodes, a VNode without weights at the very front."""
    vnodes = (
        _v("turn", "transpose", dims=(0, 1)),
        _v("l1", "linear", features=7),
        _v("lt", "transpose", dims=(0, 1)),
        _v("l2", "linear", features=6),
        _v("r1", "linear", features=6),
        _v("r2", "gelu"),
        _v("lf", "flatten"),
        _v("both", "concat"),
        _v("top", "linear", features=4),
        _v("loss", "mse"),
    )
    edges = (
        Edge("@x", "turn"),
        Edge("turn", "l1"),
        Edge("l1", "lt"),
        Edge("lt", "l2"),
        Edge("l2", "lf"),
        Edge("@z", "r1"),
        Edge("r1", "r2"),
        Edge("lf", "both", target_slot=0),
        Edge("r2", "both", target_slot=1),
        Edge("both", "top"),
        Edge("top", "loss"),
        Edge("@y", "loss", target_slot=1),
    )
    sources = (
        Source("x", TensorType((3, 5))),
        Source("z", TensorType((4,))),
        Source("y", TensorType((4,))),
    )
    return _net("towers", vnodes, edges, sources=sources, output=("top", 0))


def _chars() -> NetworkSpec:
    vnodes = (
        _v("embed", "embedding", vocabulary=CLASSES, features=16),
        _v("place", "positional"),
        _v("t1", "transformer", heads=2, hidden=24, causal=True, dropout=0.1),
        _v("t2", "transformer", heads=2, hidden=24, causal=True, dropout=0.1),
        _v("norm", "layer_norm"),
        _v("head", "linear", features=CLASSES),
        _v("loss", "cross_entropy"),
    )
    sources = (Source("x", TensorType((6,), Dtype.I64)), Source("y", TensorType((6,), Dtype.I64)))
    clipped = replace(ADAMW, clip_norm=0.3)
    return _net("chars", vnodes, chain(*vnodes), sources=sources, optimizer=clipped)


_NETS = {"mlp": _mlp, "conv": _conv, "residual": _residual, "towers": _towers, "chars": _chars}
KINDS = tuple(_NETS)
