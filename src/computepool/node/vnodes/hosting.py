"""One VNode (or one replica of it) as it lives on a host: its module, its optimizer, and all that is kept of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from computepool.core.networks.spec import NetworkSpec, OptimizerKind, TensorType
from computepool.node.vnodes.checkpoints import BUFFER, OPTIMIZER, OUTER, WEIGHT, unpack
from computepool.node.vnodes.gradients import flatten, unflatten
from computepool.node.vnodes.local_steps import OuterStep
from computepool.node.vnodes.modules import build
from computepool.node.vnodes.optimizers import LocalOptimizer


class HostedVNode:
    def __init__(
        self,
        spec: NetworkSpec,
        vnode_id: str,
        inputs: Sequence[TensorType],
        parameter_names: Sequence[str],
        *,
        replica: int,
        device: torch.device,
    ) -> None:
        """`parameter_names`: in the order of the uncut network, which is the order of norms and of sums."""
        self.id = vnode_id
        self.replica = replica
        self.module = build(spec.vnode(vnode_id), inputs, seed=spec.seed).to(device)
        found = dict(self.module.named_parameters())
        self.parameters: list[tuple[str, nn.Parameter]] = [(name, found[name]) for name in parameter_names]
        self._buffers = list(self.module.named_buffers())
        self._optimizer_spec = spec.optimizer
        self.optimizer = LocalOptimizer(spec.optimizer, self.parameters)
        has_rounds = spec.local_steps > 0 and bool(self.parameters)
        self._outer = OuterStep(self.flat_weights()) if has_rounds else None

    def read(self, content: bytes) -> dict[str, Tensor]:
        """What a checkpoint of this VNode holds. Raises CheckpointUnreadable; nothing changes here."""
        return unpack(content, self.id, self._describe())

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Weights, buffers and optimizer state that were read."""
        self.optimizer = LocalOptimizer(self._optimizer_spec, self.parameters)
        self.optimizer.load(_choose(tensors, OPTIMIZER))
        with torch.no_grad():
            for name, tensor in [*self.parameters, *self._buffers]:
                kind = WEIGHT if isinstance(tensor, nn.Parameter) else BUFFER
                tensor.copy_(tensors[kind + name])
        self.optimizer.zero_grad()
        if self._outer is not None:
            self._outer.start, self._outer.momentum = tensors[OUTER + "start"], tensors[OUTER + "momentum"]

    def tensors(self) -> dict[str, Tensor]:
        """All that a checkpoint holds, by kind and name; the live tensors."""
        return {
            **{WEIGHT + name: tensor for name, tensor in self.parameters},
            **{BUFFER + name: tensor for name, tensor in self._buffers},
            **{OPTIMIZER + name: tensor for name, tensor in self.optimizer.state().items()},
            **self._list_outer(),
        }

    def weights(self) -> Iterator[Tensor]:
        """What the update and the forward passes of a step have changed, in a fixed order."""
        yield from (tensor for _, tensor in self.parameters)
        yield from (tensor for _, tensor in self._buffers)

    def gradients(self) -> list[Tensor]:
        """One per parameter. A parameter that no output depends on has none: zeros stand for it."""
        return [
            torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            for _, parameter in self.parameters
        ]

    def set_gradients(self, flat: Tensor) -> None:
        parameters = [parameter for _, parameter in self.parameters]
        for parameter, gradient in zip(parameters, unflatten(flat, parameters), strict=True):
            parameter.grad = gradient

    def flat_weights(self) -> Tensor:
        return flatten([parameter.detach() for _, parameter in self.parameters])

    def set_weights(self, flat: Tensor) -> None:
        parameters = [parameter for _, parameter in self.parameters]
        with torch.no_grad():
            for parameter, weights in zip(parameters, unflatten(flat, parameters), strict=True):
                parameter.copy_(weights)

    def average(self, replicas: Sequence[Tensor]) -> Tensor:
        """What all replicas go on with after a round of local steps. Only replica 0 averages, and is stored."""
        if self._outer is None:
            raise RuntimeError(f"VNode {self.id} has nothing to average")
        return self._outer.average(replicas)

    def _describe(self) -> dict[str, Tensor]:
        """A tensor of the right shape and dtype for everything that a checkpoint must hold."""
        held = {WEIGHT + name: tensor.detach() for name, tensor in self.parameters}
        held |= {BUFFER + name: tensor for name, tensor in self._buffers}
        for name, tensor in self.parameters:
            held |= {f"{OPTIMIZER}{name}.{kind}": tensor.detach() for kind in self._list_moments()}
        return held | self._list_outer()

    def _list_outer(self) -> dict[str, Tensor]:
        if self._outer is None:
            return {}
        return {OUTER + "start": self._outer.start, OUTER + "momentum": self._outer.momentum}

    def _list_moments(self) -> tuple[str, ...]:
        """What the optimizer keeps per parameter in its shape, once it has made an update."""
        if self._optimizer_spec.kind is OptimizerKind.SGD:
            return ("momentum_buffer",) if self._optimizer_spec.momentum else ()
        return ("exp_avg", "exp_avg_sq")


def _choose(tensors: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
    return {name.removeprefix(kind): tensor for name, tensor in tensors.items() if name.startswith(kind)}
