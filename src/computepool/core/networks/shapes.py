"""What flows along every edge, found out before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from computepool.core.errors import InvalidSpec
from computepool.core.networks.block import Misfit, ParameterSpec
from computepool.core.networks.blocks import Part, find_part, read_vnode
from computepool.core.networks.graph import order_forward
from computepool.core.networks.spec import SOURCE_MARK, Edge, NetworkSpec, TensorType

# By VNode (or source, with its mark) and output slot.
Shapes = Mapping[tuple[str, int], TensorType]


def infer_shapes(spec: NetworkSpec) -> Shapes:
    """What every slot gives, for one sample; refuses a spec whose parts do not fit."""
    parts = {}
    faults = []
    for vnode in spec.vnodes:
        part, found = find_part(vnode)
        faults += [f"vnode {vnode.id}: {fault}" for fault in found]
        if part is not None:
            parts[vnode.id] = part
    shapes, misfits = find_shapes(spec, parts)
    if faults or misfits:
        raise InvalidSpec("The network does not fit together: " + "; ".join([*faults, *misfits]) + ".")
    return shapes


def find_shapes(spec: NetworkSpec, parts: Mapping[str, Part]) -> tuple[dict[tuple[str, int], TensorType], list[str]]:
    """As far as they can be known, and where they do not fit. What lies behind a misfit is left open, not blamed."""
    shapes = {
        (SOURCE_MARK + source.name, 0): source.type
        for source in spec.sources
        if all(size >= 1 for size in source.type.shape)
    }
    feeds: dict[str, list[Edge]] = {}
    for edge in sorted(spec.edges, key=lambda edge: edge.target_slot):
        feeds.setdefault(edge.target, []).append(edge)
    misfits = []
    for vnode_id in order_forward(spec):
        part = parts.get(vnode_id)
        edges = feeds.get(vnode_id, [])
        inputs = [shapes.get((edge.source, edge.source_slot)) for edge in edges]
        known = [given for given in inputs if given is not None]
        complete = [edge.target_slot for edge in edges] == list(range(len(edges))) and len(known) == len(edges)
        if part is None or not complete or not part.slots[0] <= len(edges) <= part.slots[1]:
            continue
        try:
            shapes[vnode_id, 0] = part.infer(known)
        except Misfit as misfit:
            fed_by = ", ".join(f"{edge.source}:{edge.source_slot}" for edge in edges)
            misfits.append(f"vnode {vnode_id} ({part.block.name}), fed by {fed_by}: {misfit}")
    return shapes, misfits


def list_inputs(
    spec: NetworkSpec, shapes: Shapes, *, edges: Sequence[Edge] | None = None
) -> dict[str, tuple[TensorType, ...]]:
    """What every VNode is fed, by slot."""
    found: dict[str, list[TensorType]] = {vnode.id: [] for vnode in spec.vnodes}
    for edge in sorted(spec.edges if edges is None else edges, key=lambda edge: edge.target_slot):
        found[edge.target].append(shapes[edge.source, edge.source_slot])
    return {vnode_id: tuple(inputs) for vnode_id, inputs in found.items()}


def list_parameters(spec: NetworkSpec, shapes: Shapes | None = None) -> dict[str, list[ParameterSpec]]:
    """By VNode in forward order, by their names in the uncut network: the order in which norms are totalled."""
    shapes = infer_shapes(spec) if shapes is None else shapes
    inputs = list_inputs(spec, shapes)
    vnodes = {vnode.id: vnode for vnode in spec.vnodes}
    return {vnode_id: read_vnode(vnodes[vnode_id]).parameters(inputs[vnode_id]) for vnode_id in order_forward(spec)}


def list_buffers(spec: NetworkSpec, shapes: Shapes | None = None) -> dict[str, list[ParameterSpec]]:
    """As `list_parameters`: what belongs to a checkpoint and is not trained."""
    shapes = infer_shapes(spec) if shapes is None else shapes
    inputs = list_inputs(spec, shapes)
    vnodes = {vnode.id: vnode for vnode in spec.vnodes}
    return {vnode_id: read_vnode(vnodes[vnode_id]).buffers(inputs[vnode_id]) for vnode_id in order_forward(spec)}


def list_gradient_edges(spec: NetworkSpec, shapes: Shapes | None = None) -> set[Edge]:
    """Edges along which a gradient comes back: whole numbers have none, nor has what needs no weight to compute."""
    parameters = list_parameters(spec, shapes)
    trained: set[str] = set()
    found = set()
    feeds: dict[str, list[Edge]] = {}
    for edge in spec.edges:
        feeds.setdefault(edge.target, []).append(edge)
    for vnode_id in order_forward(spec):
        back = [edge for edge in feeds.get(vnode_id, ()) if edge.source in trained]
        found.update(back)
        if parameters[vnode_id] or back:
            trained.add(vnode_id)
    return found
