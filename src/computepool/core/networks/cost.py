"""What every VNode and every edge costs: memory, work and traffic. The allocator places by these figures."""

from __future__ import annotations

from dataclasses import dataclass

from computepool.core.networks.blocks import read_vnode
from computepool.core.networks.shapes import Shapes, infer_shapes, list_gradient_edges, list_inputs
from computepool.core.networks.spec import Dtype, Edge, NetworkSpec, OptimizerKind, OptimizerSpec, TensorType

_FLOAT_BYTES = 4
# Gradients with respect to the inputs and to the weights: each about the work of the forward pass.
_BACKWARD_RATIO = 2

# Micro-batches that a host may have under way for each host between it and the loss. One of them is in that host's
# hands; the other is on its way there or back, so that nobody stands still for as long as frames travel.
IN_FLIGHT_PER_CROSSING = 2


@dataclass(frozen=True, slots=True)
class VNodeCost:
    vnode_id: str
    parameter_count: int
    # Weights, gradients, what the optimizer keeps, buffers.
    state_bytes: int
    # The same without gradients.
    checkpoint_bytes: int
    # What one micro-batch keeps from forward to backward, its inputs included.
    kept_bytes: int
    # Of one micro-batch.
    flops_forward: int
    flops_backward: int
    # Of the array library: of one micro-batch, and of the update that ends a step.
    calls: int
    update_calls: int

    def memory_bytes(self, micro_batches_in_flight: int) -> int:
        return self.state_bytes + micro_batches_in_flight * self.kept_bytes

    @property
    def flops(self) -> int:
        return self.flops_forward + self.flops_backward


@dataclass(frozen=True, slots=True)
class EdgeCost:
    """What one micro-batch sends along an edge if its ends are on two machines."""

    edge: Edge
    forward_bytes: int
    # 0: no gradient comes back.
    backward_bytes: int

    @property
    def size_bytes(self) -> int:
        return self.forward_bytes + self.backward_bytes


def estimate_vnodes(spec: NetworkSpec, shapes: Shapes | None = None) -> dict[str, VNodeCost]:
    """For a spec without faults, in its order."""
    shapes = infer_shapes(spec) if shapes is None else shapes
    inputs = list_inputs(spec, shapes)
    samples = spec.micro_batch_size
    kept_per_parameter = optimizer_bytes_per_parameter(spec.optimizer)
    found = {}
    for vnode in spec.vnodes:
        part, given = read_vnode(vnode), inputs[vnode.id]
        parameters = part.parameters(given)
        count = sum(parameter.element_count for parameter in parameters)
        buffer_bytes = sum(buffer.size_bytes for buffer in part.buffers(given))
        flops = samples * part.flops(given)
        found[vnode.id] = VNodeCost(
            vnode_id=vnode.id,
            parameter_count=count,
            state_bytes=count * (2 * _FLOAT_BYTES + kept_per_parameter) + buffer_bytes,
            checkpoint_bytes=count * (_FLOAT_BYTES + kept_per_parameter) + buffer_bytes,
            kept_bytes=samples * part.kept_bytes(given) + sum(each.size_bytes(samples) for each in given),
            flops_forward=flops,
            flops_backward=_BACKWARD_RATIO * flops,
            calls=part.calls(given),
            update_calls=len(parameters) * _count_update_calls(spec.optimizer),
        )
    return found


def estimate_edges(spec: NetworkSpec, shapes: Shapes | None = None) -> dict[Edge, EdgeCost]:
    """Of edges between VNodes. What comes from sources is read where it is needed and crosses no edge."""
    shapes = infer_shapes(spec) if shapes is None else shapes
    trained = list_gradient_edges(spec, shapes)
    found = {}
    for edge in spec.edges:
        if edge.source_name is None:
            size_bytes = _wire_bytes(shapes[edge.source, edge.source_slot], spec)
            found[edge] = EdgeCost(edge, size_bytes, size_bytes if edge in trained else 0)
    return found


def count_parameters(spec: NetworkSpec, shapes: Shapes | None = None) -> int:
    return sum(cost.parameter_count for cost in estimate_vnodes(spec, shapes).values())


def optimizer_bytes_per_parameter(optimizer: OptimizerSpec) -> int:
    if optimizer.kind is OptimizerKind.SGD:
        return _FLOAT_BYTES if optimizer.momentum else 0
    return 2 * _FLOAT_BYTES


def _count_update_calls(optimizer: OptimizerSpec) -> int:
    """Per parameter tensor: its gradient, its share of the norm, and what the optimizer makes of them."""
    return 6 if optimizer.kind is OptimizerKind.SGD else 17


def _wire_bytes(given: TensorType, spec: NetworkSpec) -> int:
    on_wire = TensorType(given.shape, spec.wire) if given.dtype is Dtype.F32 else given
    return on_wire.size_bytes(spec.micro_batch_size)
