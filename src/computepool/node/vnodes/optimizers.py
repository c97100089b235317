"""Updates of the parameters that live here, bit for bit those of torch.optim over the uncut network.

An update looks at one parameter only, so it does not matter where the others are; but for the norm of all gradients,
which is totalled from the norms of each in the order of the uncut network, wherever they were computed. The
operations are those of torch.optim one tensor at a time (foreach=False). They are written out here because the first
use of torch.optim itself loads torch's compiler: seconds and tens of megabytes, at every start of a host.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from computepool.core.networks.schedules import rate_at
from computepool.core.networks.spec import OptimizerKind, OptimizerSpec

# What torch adds to a norm before it divides by it.
_NORM_EPS = 1e-6


class LocalOptimizer:
    def __init__(self, spec: OptimizerSpec, named_parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
        self._spec = spec
        self._parameters = dict(named_parameters)
        # By the parameter's name and torch's word for it: `3.weight.exp_avg`. Empty before the first step.
        self._state: dict[str, Tensor] = {}

    def norms(self) -> list[tuple[str, float]]:
        """Of the gradient of every parameter that has one. A float holds the 32 bits exactly."""
        return [
            (name, float(torch.linalg.vector_norm(parameter.grad, 2.0)))
            for name, parameter in self._parameters.items()
            if parameter.grad is not None
        ]

    @torch.no_grad()
    def step(self, step: int, scale: float = 1.0) -> None:
        """Takes the gradients, scaled; `scale` comes from `clip_scale`, and without clipping it is 1.

        Steps count from 0; Adam's own count is one more.
        """
        rate = rate_at(self._spec, step)
        for name, parameter in self._parameters.items():
            if parameter.grad is None:
                continue
            if self._spec.clip_norm is not None:
                parameter.grad.mul_(scale)
            if self._spec.kind is OptimizerKind.SGD:
                self._update_sgd(name, parameter, parameter.grad, rate)
            else:
                self._update_adam(name, parameter, parameter.grad, rate, count=step + 1)

    def zero_grad(self) -> None:
        for parameter in self._parameters.values():
            parameter.grad = None

    def state(self) -> dict[str, Tensor]:
        """What must be kept beside the weights. The tensors are the live ones: whoever keeps them copies them."""
        return dict(self._state)

    def load(self, state: Mapping[str, Tensor]) -> None:
        """What `state` gave after the same step; it is copied. Entries that fit no parameter are refused."""
        for key, value in state.items():
            name, _, kind = key.rpartition(".")
            if kind not in _STATE_KINDS[self._spec.kind] or name not in self._parameters:
                raise ValueError(f"there is no parameter for {key}")
            if value.shape != self._parameters[name].shape:
                raise ValueError(f"{key} has the shape {list(value.shape)}, its parameter {self._shape(name)}")
        self._state = {key: value.detach().clone() for key, value in state.items()}

    def _shape(self, name: str) -> list[int]:
        return list(self._parameters[name].shape)

    def _update_sgd(self, name: str, parameter: Tensor, gradient: Tensor, rate: float) -> None:
        if self._spec.weight_decay != 0:
            gradient = gradient.add(parameter, alpha=self._spec.weight_decay)
        if self._spec.momentum != 0:
            key = f"{name}.momentum_buffer"
            if key in self._state:
                self._state[key].mul_(self._spec.momentum).add_(gradient, alpha=1)
            else:
                self._state[key] = gradient.detach().clone()
            gradient = self._state[key]
        parameter.add_(gradient, alpha=-rate)

    def _update_adam(self, name: str, parameter: Tensor, gradient: Tensor, rate: float, *, count: int) -> None:
        first, second = self._spec.betas
        mean = self._find_or_zeros(f"{name}.exp_avg", parameter)
        square = self._find_or_zeros(f"{name}.exp_avg_sq", parameter)
        if self._spec.weight_decay != 0 and self._spec.kind is OptimizerKind.ADAMW:
            parameter.mul_(1 - rate * self._spec.weight_decay)
        elif self._spec.weight_decay != 0:
            gradient = gradient.add(parameter, alpha=self._spec.weight_decay)
        mean.lerp_(gradient, 1 - first)
        square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        correction = (1 - second**count) ** 0.5
        divisor = (square.sqrt() / correction).add_(self._spec.eps)
        parameter.addcdiv_(mean, divisor, value=-(rate / (1 - first**count)))

    def _find_or_zeros(self, key: str, parameter: Tensor) -> Tensor:
        if key not in self._state:
            self._state[key] = torch.zeros_like(parameter)
        return self._state[key]


_STATE_KINDS = {
    OptimizerKind.SGD: ("momentum_buffer",),
    OptimizerKind.ADAM: ("exp_avg", "exp_avg_sq"),
    OptimizerKind.ADAMW: ("exp_avg", "exp_avg_sq"),
}


def clip_scale(spec: OptimizerSpec, norms: Sequence[float]) -> float:
    """What every gradient is multiplied with, from the norms of all parameters in the order of the uncut network.

    That order is part of the result: a total of the same norms in another one may be another float.
    """
    if spec.clip_norm is None or not norms:
        return 1.0
    total = torch.linalg.vector_norm(torch.tensor(norms, dtype=torch.float32), 2.0)
    return float(torch.clamp(spec.clip_norm / (total + _NORM_EPS), max=1.0))
