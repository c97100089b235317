"""The registry of blocks, and how a VNode's block is read: a tree of parts, as some blocks hold others.

A VNode is made of names found here and of figures; no code of strangers travels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from reprlib import repr as shorten
from types import MappingProxyType

from computepool.core.networks.block import Block, Misfit, ParameterSpec, fields_of
from computepool.core.networks.blocks_dense import DENSE
from computepool.core.networks.blocks_joins import JOINS
from computepool.core.networks.blocks_sequence import SEQUENCE
from computepool.core.networks.blocks_spatial import SPATIAL
from computepool.core.networks.fields import Field, FieldKind, Values, read_config
from computepool.core.networks.spec import LAYERS_MAX, NESTING_MAX, Config, TensorType, VNodeSpec, is_path

_INNER_KEYS = ("block", "config", "path")


class Sequential(Block):
    """Inner blocks one after the other. Those without a path are named by their number, as in torch."""

    name = "sequential"
    fields = fields_of(blocks=Field(FieldKind.BLOCKS))


class Residual(Block):
    """What came in, plus what the inner blocks make of it."""

    name = "residual"
    fields = fields_of(blocks=Field(FieldKind.BLOCKS))


BLOCKS: Mapping[str, Block] = MappingProxyType(
    {block.name: block for block in (*DENSE, *SPATIAL, *SEQUENCE, *JOINS, Sequential(), Residual())}
)
COMPOSITES = (Sequential.name, Residual.name)


@dataclass(frozen=True, slots=True)
class Part:
    """A block at its place in the uncut network, with its config read."""

    path: str
    block: Block
    values: Values
    inner: tuple[Part, ...] = ()

    @property
    def slots(self) -> tuple[int, int]:
        """How many inputs, least and most. A sequential takes what its first block takes."""
        if self.block.name == Sequential.name:
            return self.inner[0].slots
        return self.block.slots_min, self.block.slots_max

    @property
    def is_loss(self) -> bool:
        return self.block.is_loss

    def leaves(self) -> Iterator[Part]:
        """Blocks that hold no others, in forward order."""
        if not self.inner:
            yield self
        for part in self.inner:
            yield from part.leaves()

    def infer(self, inputs: Sequence[TensorType]) -> TensorType:
        """What the one output slot gives; raises Misfit, which names the path of an inner block."""
        if not self.inner:
            return self.block.infer(self.values, inputs)
        found = self._infer_inner(inputs)
        if self.block.name == Residual.name and found != inputs[0]:
            raise Misfit(f"{inputs[0]} comes in, but the inner blocks give {found}: a residual adds the two")
        return found

    def _infer_inner(self, inputs: Sequence[TensorType]) -> TensorType:
        given = tuple(inputs)
        for part in self.inner:
            try:
                given = (part.infer(given),)
            except Misfit as misfit:
                text = str(misfit)
                raise Misfit(text if part.inner else f"{part.path} ({part.block.name}): {text}") from None
        return given[0]

    def walk(self, inputs: Sequence[TensorType]) -> Iterator[tuple[Part, Sequence[TensorType]]]:
        """Leaves with what they are fed, in forward order; for inputs that fit."""
        if not self.inner:
            yield self, inputs
        for part in self.inner:
            yield from part.walk(inputs)
            inputs = (part.infer(inputs),)

    def parameters(self, inputs: Sequence[TensorType]) -> list[ParameterSpec]:
        """By their names in the uncut network, in its order."""
        return [
            parameter.place(leaf.path)
            for leaf, given in self.walk(inputs)
            for parameter in leaf.block.parameters(leaf.values, given)
        ]

    def buffers(self, inputs: Sequence[TensorType]) -> list[ParameterSpec]:
        return [
            buffer.place(leaf.path)
            for leaf, given in self.walk(inputs)
            for buffer in leaf.block.buffers(leaf.values, given)
        ]

    def flops(self, inputs: Sequence[TensorType]) -> int:
        """Of the forward pass of one sample."""
        return sum(leaf.block.flops(leaf.values, given) for leaf, given in self.walk(inputs))

    def calls(self, inputs: Sequence[TensorType]) -> int:
        """Of the array library, forward and backward."""
        return sum(leaf.block.calls(leaf.values, given) for leaf, given in self.walk(inputs))

    def kept_bytes(self, inputs: Sequence[TensorType]) -> int:
        """Of one sample, from forward to backward, without the inputs."""
        return sum(leaf.block.kept_bytes(leaf.values, given) for leaf, given in self.walk(inputs))


def read_vnode(vnode: VNodeSpec) -> Part:
    """For a VNode without faults."""
    part, faults = find_part(vnode)
    if part is None:
        raise ValueError(f"vnode {vnode.id}: {'; '.join(faults)}")
    return part


def find_part(vnode: VNodeSpec) -> tuple[Part | None, list[str]]:
    """The VNode's block read, or None and everything that is wrong with what it says."""
    return _read_part(vnode.path, vnode.block, vnode.config, depth=0)


def _read_part(path: str, name: str, config: Config, *, depth: int) -> tuple[Part | None, list[str]]:
    block = BLOCKS.get(name)
    if block is None:
        close = get_close_matches(name, list(BLOCKS), n=1)
        hint = f"did you mean {close[0]}?" if close else f"known are: {', '.join(BLOCKS)}"
        return None, [f"block {shorten(name)} is unknown; {hint}"]
    values, faults = read_config(block.fields, config)
    if faults:
        return None, faults
    if name not in COMPOSITES:
        return Part(path, block, values), []
    if depth == NESTING_MAX:
        return None, [f"blocks are nested deeper than {NESTING_MAX}; cut the network into more VNodes"]
    inner, faults = _read_inner(path, values.blocks("blocks"), depth=depth + 1)
    if not inner and not faults:
        faults = ["config.blocks is empty; give at least one block"]
    faults += _inner_slot_faults(name, inner)
    return (None, faults) if faults else (Part(path, block, values, tuple(inner)), [])


def _read_inner(path: str, entries: Sequence[Config], *, depth: int) -> tuple[list[Part], list[str]]:
    if len(entries) > LAYERS_MAX:
        return [], [f"config.blocks holds {len(entries):,} blocks; {LAYERS_MAX:,} are allowed"]
    parts, faults = [], []
    for number, entry in enumerate(entries):
        where = entry.get("path", f"{path}.{number}")
        name, config = entry.get("block"), entry.get("config", {})
        strange = [key for key in entry if key not in _INNER_KEYS]
        if strange or not isinstance(name, str) or not isinstance(config, Mapping):
            faults.append(f"config.blocks[{number}] must have a block (a name), and may have a config and a path")
        elif not isinstance(where, str) or not is_path(where):
            faults.append(f"config.blocks[{number}].path is {shorten(where)}; it is names with dots between them")
        else:
            part, found = _read_part(where, name, config, depth=depth)
            parts += [part] if part else []
            faults += [f"{where}: {fault}" for fault in found]
    return parts, faults


def _inner_slot_faults(name: str, inner: Sequence[Part]) -> list[str]:
    """Only the first block of a sequential may take several inputs, and none may be a loss."""
    faults = [
        f"{part.path}: {part.block.name} is a loss; give it a VNode of its own" for part in inner if part.is_loss
    ]
    chained = inner if name == Residual.name else inner[1:]
    return faults + [
        f"{part.path}: {part.block.name} takes {part.slots[0]} inputs or more; give it a VNode of its own"
        for part in chained
        if part.slots[0] > 1 and not part.is_loss
    ]
