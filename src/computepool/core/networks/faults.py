"""Everything that is wrong with a network, at once, before anything runs: each fault names its VNode and its slot."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import pairwise
from math import isfinite

from computepool.core.networks.blocks import BLOCKS, Part, find_part
from computepool.core.networks.graph import find_cycle
from computepool.core.networks.shapes import find_shapes, list_inputs
from computepool.core.networks.spec import (
    BATCH_SIZE_MAX,
    CHECKPOINT_EVERY_MAX,
    CONFIG_BYTES_MAX,
    DIMENSION_MAX,
    EDGE_BYTES_MAX,
    EDGES_MAX,
    LOCAL_STEPS_MAX,
    MICRO_BATCHES_MAX,
    NAME_LENGTH_MAX,
    PARAMETER_BYTES_MAX,
    PARAMETERS_MAX,
    PATH_LENGTH_MAX,
    RANK_MAX,
    REPLICAS_MAX,
    SEED_MAX,
    SOURCE_MARK,
    SOURCES_MAX,
    STEPS_MAX,
    VNODES_MAX,
    Dtype,
    Edge,
    NetworkSpec,
    OptimizerSpec,
    Schedule,
    TensorType,
    VNodeSpec,
    is_path,
    is_source_name,
    is_vnode_id,
)
from computepool.core.networks.spec_json import to_plain_value
from computepool.core.words import say_bytes

FAULTS_MAX = 100
_SOURCE_DTYPES = (Dtype.F32, Dtype.I64, Dtype.I32)
_WIRE_DTYPES = (Dtype.F32, Dtype.BF16)


def list_spec_faults(spec: NetworkSpec) -> list[str]:
    """Empty if the network can be built and trained. At most FAULTS_MAX are told."""
    if len(spec.vnodes) > VNODES_MAX or len(spec.edges) > EDGES_MAX:
        return [
            f"there are {len(spec.vnodes):,} VNodes and {len(spec.edges):,} edges; {VNODES_MAX:,} and {EDGES_MAX:,} "
            "are allowed: make a VNode a block of several layers (sequential)"
        ]
    parts, block_faults = _read_parts(spec)
    shapes, misfits = find_shapes(spec, parts)
    faults = [
        *_figure_faults(spec),
        *_optimizer_faults(spec.optimizer),
        *_source_faults(spec),
        *_name_faults(spec),
        *block_faults,
        *_path_faults(parts),
        *_edge_faults(spec, parts),
        *_cycle_faults(spec),
        *misfits,
        *_loss_faults(spec, parts),
        *_replica_faults(spec, parts),
        *_size_faults(spec, parts, shapes),
    ]
    return faults[:FAULTS_MAX]


def _figure_faults(spec: NetworkSpec) -> list[str]:
    faults = []
    if not 1 <= len(spec.name) <= NAME_LENGTH_MAX or not spec.name.isprintable():
        faults.append(f"name must be 1 to {NAME_LENGTH_MAX} printable characters")
    bounds = {
        "seed": (0, SEED_MAX),
        "batch_size": (1, BATCH_SIZE_MAX),
        "micro_batches": (1, MICRO_BATCHES_MAX),
        "replicas": (1, REPLICAS_MAX),
        "checkpoint_every": (1, CHECKPOINT_EVERY_MAX),
        "local_steps": (0, LOCAL_STEPS_MAX),
    }
    for name, (low, high) in bounds.items():
        if not low <= getattr(spec, name) <= high:
            faults.append(f"{name} is {getattr(spec, name)}; it must be between {low:,} and {high:,}")
    if spec.micro_batches >= 1 and spec.batch_size % spec.micro_batches:
        faults.append(
            f"batch_size {spec.batch_size} does not split into {spec.micro_batches} micro_batches: take "
            f"{spec.batch_size - spec.batch_size % spec.micro_batches or spec.micro_batches} samples, or fewer parts"
        )
    if spec.wire not in _WIRE_DTYPES:
        faults.append(f"wire is {spec.wire.value}; it is one of {', '.join(dtype.value for dtype in _WIRE_DTYPES)}")
    return faults


def _optimizer_faults(optimizer: OptimizerSpec) -> list[str]:
    bounds: dict[str, tuple[float, float]] = {
        "lr": (0.0, 1e6),
        "momentum": (0.0, 1.0),
        "eps": (0.0, 1.0),
        "weight_decay": (0.0, 1e6),
        "lr_end_ratio": (0.0, 1.0),
        "warmup_steps": (0, STEPS_MAX),
        "schedule_steps": (0, STEPS_MAX),
    }
    faults = [
        f"optimizer.{name} is {getattr(optimizer, name)}; it must be between {low:g} and {high:g}"
        for name, (low, high) in bounds.items()
        if not low <= getattr(optimizer, name) <= high
    ]
    if not all(0.0 <= beta < 1.0 for beta in optimizer.betas):
        faults.append(f"optimizer.betas are {optimizer.betas}; both must be from 0 up to, but without, 1")
    if optimizer.clip_norm is not None and not (isfinite(optimizer.clip_norm) and optimizer.clip_norm > 0):
        faults.append(f"optimizer.clip_norm is {optimizer.clip_norm}; it must be above 0, or absent for no clipping")
    if optimizer.schedule is not Schedule.CONSTANT and optimizer.schedule_steps <= optimizer.warmup_steps:
        faults.append(
            f"optimizer.schedule {optimizer.schedule.value} needs schedule_steps, the step at which it has come "
            f"down, above warmup_steps ({optimizer.warmup_steps})"
        )
    return faults


def _source_faults(spec: NetworkSpec) -> list[str]:
    faults = []
    if not 1 <= len(spec.sources) <= SOURCES_MAX:
        faults.append(f"there are {len(spec.sources)} sources; 1 to {SOURCES_MAX} are allowed")
    for source in spec.sources:
        if not is_source_name(source.name):
            faults.append(f"source {source.name!r} must be a name of up to 32 of a-z, 0-9 and _, such as x")
        if source.type.dtype not in _SOURCE_DTYPES:
            names = ", ".join(dtype.value for dtype in _SOURCE_DTYPES)
            faults.append(f"source {source.name} is {source.type}; sources are of {names}")
        if len(source.type.shape) > RANK_MAX or not all(1 <= size <= DIMENSION_MAX for size in source.type.shape):
            faults.append(f"source {source.name} is {source.type}; it has up to {RANK_MAX} dimensions of 1 or more")
    return faults + [f"source {name} is given twice" for name in _doubles(source.name for source in spec.sources)]


def _name_faults(spec: NetworkSpec) -> list[str]:
    faults = [] if spec.vnodes else ["there are no VNodes: give at least one block and a loss"]
    for vnode in spec.vnodes:
        if not is_vnode_id(vnode.id):
            faults.append(f"vnode {vnode.id!r} must be named by 1 to 64 of a-z, 0-9, _, . and -")
        if not is_path(vnode.path):
            faults.append(
                f"vnode {vnode.id}: path {vnode.path!r} must be names of letters, digits, _ and - with dots between "
                f"them, up to {PATH_LENGTH_MAX} characters"
            )
    return faults + [f"vnode {name} is given twice" for name in _doubles(vnode.id for vnode in spec.vnodes)]


def _read_parts(spec: NetworkSpec) -> tuple[dict[str, Part], list[str]]:
    parts, faults = {}, []
    for vnode in spec.vnodes:
        oversize = _oversize_config(vnode)
        part, found = (None, [oversize]) if oversize else find_part(vnode)
        faults += [f"vnode {vnode.id}: {fault}" for fault in found]
        if part is not None:
            parts[vnode.id] = part
    return parts, faults


def _oversize_config(vnode: VNodeSpec) -> str | None:
    size_bytes = len(json.dumps(to_plain_value(vnode.config), default=str))
    if size_bytes <= CONFIG_BYTES_MAX:
        return None
    return f"config has {size_bytes:,} bytes; {CONFIG_BYTES_MAX:,} are allowed: cut the VNode into several"


def _path_faults(parts: Mapping[str, Part]) -> list[str]:
    """Two modules at one path would share their weights, and one below another would mix their names."""
    places = sorted(
        (leaf.path.split("."), leaf.path, vnode_id) for vnode_id, part in parts.items() for leaf in part.leaves()
    )
    faults = []
    for (_, path, vnode_id), (_, following, other) in pairwise(places):
        if path == following:
            faults.append(
                f"vnode {other}: its path {path} is also that of vnode {vnode_id}; tied weights are not supported: "
                "give each a path of its own"
            )
        elif following.startswith(path + "."):
            faults.append(
                f"vnode {other}: its path {following} lies below {path} of vnode {vnode_id}; choose another"
            )
    return faults


def _edge_faults(spec: NetworkSpec, parts: Mapping[str, Part]) -> list[str]:
    vnode_ids = {vnode.id for vnode in spec.vnodes}
    feeders = vnode_ids | {SOURCE_MARK + source.name for source in spec.sources}
    faults = []
    fed: dict[str, dict[int, list[Edge]]] = {vnode.id: {} for vnode in spec.vnodes}
    for edge in spec.edges:
        if edge.source not in feeders:
            faults.append(f"edge {edge}: there is no {edge.source!r}; name a VNode, or a source with its mark, as @x")
        elif edge.source_slot != 0:
            faults.append(f"edge {edge}: {edge.source} has one output, slot 0")
        if edge.target not in vnode_ids:
            faults.append(f"edge {edge}: there is no VNode {edge.target!r} to feed")
        else:
            fed[edge.target].setdefault(edge.target_slot, []).append(edge)
    for vnode_id, part in parts.items():
        faults += _slot_faults(vnode_id, part, fed[vnode_id])
    used = {edge.source for edge in spec.edges}
    unused = [source.name for source in spec.sources if SOURCE_MARK + source.name not in used]
    return faults + [f"source {name} feeds no VNode: add an edge from @{name}, or leave it out" for name in unused]


def _slot_faults(vnode_id: str, part: Part, fed: Mapping[int, list[Edge]]) -> list[str]:
    least, most = part.slots
    name = f"vnode {vnode_id} ({part.block.name})"
    faults = []
    for slot, edges in sorted(fed.items()):
        if not 0 <= slot < most:
            faults.append(
                f"{name}: there is no slot {slot}, which {edges[0].source} feeds; it has slots 0 to {most - 1}"
            )
        elif len(edges) > 1:
            sources = ", ".join(edge.source for edge in edges)
            faults.append(
                f"{name}: slot {slot} is fed {len(edges)} times, by {sources}; join them with add or concat"
            )
    count = max(least, min(max(fed, default=-1), most - 1) + 1)
    return faults + [f"{name}: slot {slot} is not fed; add an edge to it" for slot in range(count) if slot not in fed]


def _cycle_faults(spec: NetworkSpec) -> list[str]:
    cycle = find_cycle(spec)
    return [f"the VNodes {' -> '.join(cycle)} form a cycle: take one of their edges out"] if cycle else []


def _loss_faults(spec: NetworkSpec, parts: Mapping[str, Part]) -> list[str]:
    heads = [vnode_id for vnode_id, part in parts.items() if part.is_loss]
    known = {vnode.id for vnode in spec.vnodes}
    losses = ", ".join(name for name, block in BLOCKS.items() if block.is_loss)
    faults = []
    if spec.loss not in known:
        faults.append(f"loss names {spec.loss!r}, which is no VNode; name the VNode that is one of {losses}")
    elif spec.loss in parts and spec.loss not in heads:
        faults.append(f"loss names {spec.loss}, which is {parts[spec.loss].block.name}; it must be one of {losses}")
    if len(heads) > 1:
        faults.append(f"there are {len(heads)} losses, {', '.join(heads)}; a network has one")
    fed_by_loss = [edge for edge in spec.edges if edge.source in heads]
    faults += [f"edge {edge}: a loss feeds nobody" for edge in fed_by_loss]
    faults += _output_faults(spec, known, heads)
    if faults:
        return faults
    return [
        f"vnode {vnode_id} does not lead to the loss: connect it, or leave it out"
        for vnode_id in sorted(known - _leading_to(spec.loss, spec))
    ]


def _output_faults(spec: NetworkSpec, known: set[str], heads: list[str]) -> list[str]:
    vnode_id, slot = spec.output
    if vnode_id not in known:
        return [f"output names {vnode_id!r}, which is no VNode"]
    if vnode_id in heads:
        return [f"output names {vnode_id}, which is the loss; name the VNode before it"]
    return [] if slot == 0 else [f"output names slot {slot} of {vnode_id}, which has one output, slot 0"]


def _leading_to(loss: str, spec: NetworkSpec) -> set[str]:
    feeding: dict[str, list[str]] = {}
    for edge in spec.edges:
        feeding.setdefault(edge.target, []).append(edge.source)
    found, to_visit = {loss}, [loss]
    while to_visit:
        for source in feeding.get(to_visit.pop(), ()):
            if source not in found:
                found.add(source)
                to_visit.append(source)
    return found


def _replica_faults(spec: NetworkSpec, parts: Mapping[str, Part]) -> list[str]:
    if spec.replicas == 1:
        return ["local_steps needs 2 replicas or more, which average"] if spec.local_steps > 0 else []
    faults = []
    if spec.replicas > spec.micro_batches:
        faults.append(
            f"there are {spec.replicas} replicas but {spec.micro_batches} micro_batches: each replica takes at "
            "least one"
        )
    return faults + [
        f"vnode {vnode_id}: {leaf.block.name} at {leaf.path} keeps figures of its own batches, which replicas would "
        "not share; use layer_norm or group_norm, or replicas: 1"
        for vnode_id, part in parts.items()
        for leaf in part.leaves()
        if leaf.block.keeps_statistics
    ]


def _size_faults(
    spec: NetworkSpec, parts: Mapping[str, Part], shapes: Mapping[tuple[str, int], TensorType]
) -> list[str]:
    if spec.micro_batches < 1 or spec.batch_size < 1:
        return []
    samples = max(1, spec.micro_batch_size)
    faults = []
    for (name, slot), found in shapes.items():
        if found.size_bytes(samples) > EDGE_BYTES_MAX:
            faults.append(
                f"{name}:{slot} gives {found}, {say_bytes(found.size_bytes(samples))} for a micro-batch of "
                f"{samples}; {say_bytes(EDGE_BYTES_MAX)} are allowed: use more micro_batches, or a smaller batch_size"
            )
    return faults + _parameter_faults(spec, parts, shapes, samples)


def _parameter_faults(
    spec: NetworkSpec, parts: Mapping[str, Part], shapes: Mapping[tuple[str, int], TensorType], samples: int
) -> list[str]:
    known = {vnode_id: part for vnode_id, part in parts.items() if (vnode_id, 0) in shapes}
    kept = tuple(edge for edge in spec.edges if edge.target in known)
    inputs = list_inputs(spec, shapes, edges=kept)
    faults, total = [], 0
    for vnode_id, part in known.items():
        parameters = part.parameters(inputs[vnode_id])
        total += sum(parameter.element_count for parameter in parameters)
        faults += [
            f"vnode {vnode_id}: {parameter.name} has {say_bytes(parameter.size_bytes)}; a tensor has "
            f"{say_bytes(PARAMETER_BYTES_MAX)} at most"
            for parameter in parameters
            if parameter.size_bytes > PARAMETER_BYTES_MAX
        ]
        faults += [
            f"vnode {vnode_id}: batch_norm at {leaf.path} sees one number per channel; give it micro-batches of 2 "
            "or more"
            for leaf, given in part.walk(inputs[vnode_id])
            if leaf.block.keeps_statistics and samples * given[0].element_count == given[0].shape[0]
        ]
    if total > PARAMETERS_MAX:
        faults.append(f"the network has {total:,} parameters; {PARAMETERS_MAX:,} are allowed")
    return faults


def _doubles(names: Iterable[str]) -> list[str]:
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return [name for name, count in counts.items() if count > 1]
