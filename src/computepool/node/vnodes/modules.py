"""The torch module of a VNode: a function of the spec's seed and of paths in the uncut network, whatever the cut."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from computepool.core.networks.block import ParameterSpec
from computepool.core.networks.blocks import Part, Residual, read_vnode
from computepool.core.networks.seeds import parameter_seed
from computepool.core.networks.spec import Dtype, TensorType, VNodeSpec
from computepool.node.vnodes.leaves import BUILDERS
from computepool.node.vnodes.randomness import Moment, SeededDropout, draw_init

TORCH_DTYPES = {
    Dtype.F32: torch.float32,
    Dtype.F16: torch.float16,
    Dtype.BF16: torch.bfloat16,
    Dtype.I64: torch.int64,
    Dtype.I32: torch.int32,
    Dtype.BOOL: torch.bool,
}


class VNodeModule(nn.Module):
    """Its parameters and buffers have their names of the uncut network: `state_dict` is a part of the whole one."""

    def __init__(self, part: Part, inputs: Sequence[TensorType], *, seed: int) -> None:
        super().__init__()
        self._part = part
        self._moment = Moment()
        # By path. Torch does not see them here: it sees them in the tree of names.
        self._leaves: dict[str, nn.Module] = {}
        for leaf, given in part.walk(inputs):
            with torch.device("meta"):
                module = BUILDERS[leaf.block.name](leaf.values, given)
            self._leaves[leaf.path] = module
        plant(self, self._leaves.items())
        _fill(self, dict(self.named_parameters()), part.parameters(inputs), seed)
        _fill(self, dict(self.named_buffers()), part.buffers(inputs), seed)
        for name, module in self.named_modules():
            if isinstance(module, SeededDropout):
                module.place(seed, name, self._moment)

    def set_moment(self, step: int, micro_batch: int) -> None:
        """Before every forward pass of training: what dropout draws depends on it."""
        self._moment.step, self._moment.micro_batch = step, micro_batch

    def forward(self, *inputs: Tensor) -> Tensor:
        return self._run(self._part, inputs)

    def leaves(self) -> Iterator[tuple[str, nn.Module]]:
        """Modules by their paths, in forward order."""
        yield from self._leaves.items()

    def _run(self, part: Part, inputs: tuple[Tensor, ...]) -> Tensor:
        if not part.inner:
            found: Tensor = self._leaves[part.path](*inputs)
            return found
        is_residual = part.block.name == Residual.name
        # A view of its own gathers what the inner blocks give back before the other way round them is added to it:
        # as it is when they are VNodes on another machine.
        given = (inputs[0].view_as(inputs[0]),) if is_residual else inputs
        for inner in part.inner:
            given = (self._run(inner, given),)
        return inputs[0] + given[0] if is_residual else given[0]


def build(vnode: VNodeSpec, inputs: Sequence[TensorType], *, seed: int) -> VNodeModule:
    """In training mode. `inputs` is what each slot is fed, for one sample; `seed` is the network's."""
    return VNodeModule(read_vnode(vnode), inputs, seed=seed)


def plant(root: nn.Module, leaves: Iterable[tuple[str, nn.Module]]) -> None:
    """Makes a tree of names, so that torch names every leaf by its path."""
    for path, module in leaves:
        *parents, name = path.split(".")
        at = root
        for parent in parents:
            # By the dict: `add_module` refuses names that Module uses itself, such as `type`.
            at = at._modules.setdefault(parent, nn.Module())  # type: ignore[assignment]
        at._modules[name] = module


def _fill(root: nn.Module, empty: Mapping[str, Tensor], described: Sequence[ParameterSpec], seed: int) -> None:
    """Gives every tensor its first values, by its name alone: in which order they are built does not matter."""
    shapes = {name: tuple(tensor.shape) for name, tensor in empty.items()}
    if shapes != {each.name: each.shape for each in described}:
        raise RuntimeError(f"torch builds {shapes}, but the registry describes {described}")
    # Not by `get_submodule`, which looks at a module's own names first.
    owners = dict(root.named_modules())
    for each in described:
        path, _, name = each.name.rpartition(".")
        values = draw_init(each.init, each.shape, parameter_seed(seed, each.name)).to(TORCH_DTYPES[each.dtype])
        is_parameter = isinstance(empty[each.name], nn.Parameter)
        setattr(owners[path], name, nn.Parameter(values) if is_parameter else values)
