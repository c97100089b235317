"""What a request for inference must look like, found out before anything of it travels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from computepool.core.errors import InvalidRequest, PayloadTooLarge
from computepool.core.networks.entries import Entry, list_entries
from computepool.core.networks.graph import draw_graph
from computepool.core.networks.placement import Placement, SeatId
from computepool.core.networks.shapes import infer_shapes
from computepool.core.networks.spec import EDGE_BYTES_MAX, RANK_MAX, SOURCE_MARK, Dtype, NetworkSpec, TensorType

# Of all inputs of one request, and of its answer: each travels as one message.
REQUEST_BYTES_MAX = 4 << 20
_NAMES_SHOWN_MAX = 8


@dataclass(frozen=True, slots=True)
class Given:
    """A tensor that somebody sent, as it describes itself. The first dimension counts samples."""

    dtype: str
    shape: tuple[int, ...]
    size_bytes: int


class RequestForm:
    """Of one network: which inputs its output needs, and what they weigh on the way."""

    def __init__(self, spec: NetworkSpec) -> None:
        """For a spec without faults."""
        self._spec = spec
        self._graph = draw_graph(spec)
        shapes = infer_shapes(spec)
        # VNodes that take part.
        self.needed = self._graph.ancestors(spec.output[0])
        self.inputs = {name: shapes[SOURCE_MARK + name, 0] for name in self._graph.source_names(self.needed)}
        self.output: TensorType = shapes[spec.output]
        # Per sample, the most that any VNode on the way puts out.
        self._widest = max(self.needed, key=lambda vnode_id: _weigh(shapes[vnode_id, 0]))
        self._widest_bytes = _weigh(shapes[self._widest, 0])

    def list_faults(self, given: Mapping[str, Given]) -> list[str]:
        """All that is wrong at once; empty if it can be asked."""
        faults = [f"input {name} is missing: {_say(self.inputs[name])}" for name in self.inputs if name not in given]
        strange = sorted(name for name in given if name not in self.inputs)
        known = ", ".join(self.inputs)
        faults += [f"input {name[:32]!r} is not one of: {known}" for name in strange[:_NAMES_SHOWN_MAX]]
        for name, wanted in self.inputs.items():
            if name in given:
                faults += [f"input {name}: {fault}" for fault in _list_tensor_faults(given[name], wanted)]
        counts = {given[name].shape[0] for name in self.inputs if name in given and given[name].shape}
        if not faults and len(counts) > 1:
            faults.append(f"the inputs have different numbers of samples: {', '.join(map(str, sorted(counts)))}")
        return faults

    def find_excess(self, given: Mapping[str, Given]) -> str:
        """What is too large about a request that is otherwise right, in words; empty if nothing is."""
        inputs_bytes = sum(each.size_bytes for each in given.values())
        samples = self.count_samples(given)
        answer_bytes = samples * _weigh(self.output)
        parts = "; ask in parts"
        if inputs_bytes > REQUEST_BYTES_MAX:
            return f"its inputs have {inputs_bytes:,} bytes and may have {REQUEST_BYTES_MAX:,}{parts}"
        if answer_bytes > REQUEST_BYTES_MAX:
            return f"its answer would have {answer_bytes:,} bytes and may have {REQUEST_BYTES_MAX:,}{parts}"
        if samples * self._widest_bytes > EDGE_BYTES_MAX:
            crossing_bytes = samples * self._widest_bytes
            return f"VNode {self._widest} would put out {crossing_bytes:,} bytes and may {EDGE_BYTES_MAX:,}{parts}"
        return ""

    def check(self, given: Mapping[str, Given]) -> None:
        """Raises InvalidRequest with all faults, or PayloadTooLarge."""
        faults = self.list_faults(given)
        if faults:
            raise InvalidRequest("The network cannot be asked this: " + "; ".join(faults) + ".", faults=faults)
        excess = self.find_excess(given)
        if excess:
            raise PayloadTooLarge(f"The request is too large: {excess}.")

    @staticmethod
    def count_samples(given: Mapping[str, Given]) -> int:
        return next((each.shape[0] for each in given.values() if each.shape), 0)

    def list_entries(self, placement: Placement, replica: int) -> list[Entry]:
        return list_entries(self._spec, self._graph, placement, replica)

    def list_seats(self, placement: Placement, replica: int | None = None) -> list[SeatId]:
        """Where something is computed for an answer, in this replica or in any, in the order of the network."""
        replicas = range(self._spec.replicas) if replica is None else (replica,)
        order = [vnode_id for vnode_id in self._graph.order if vnode_id in self.needed]
        return list(dict.fromkeys(placement.seat_of(vnode_id, each) for each in replicas for vnode_id in order))

    def find_output_seat(self, placement: Placement, replica: int) -> SeatId:
        return placement.seat_of(self._spec.output[0], replica)

    def find_answer_fault(self, answer: Given, *, samples: int) -> str:
        """What a host says is a claim."""
        wanted = (samples, *self.output.shape)
        if answer.dtype != self.output.dtype.value or answer.shape != wanted:
            return f"it answers with {answer.dtype[:8]}{list(answer.shape)[:RANK_MAX]} instead of {list(wanted)}"
        if answer.size_bytes != samples * _weigh(self.output):
            return f"it answers with {answer.size_bytes:,} bytes instead of {samples * _weigh(self.output):,}"
        return ""


def _list_tensor_faults(given: Given, wanted: TensorType) -> list[str]:
    if given.dtype != wanted.dtype.value:
        return [f"dtype {given.dtype[:16]!r}; it should be {wanted.dtype.value}"]
    if given.shape[1:] != wanted.shape or not given.shape or given.shape[0] < 1:
        shown = list(given.shape)[: RANK_MAX + 1]
        return [f"shape {shown}; it should be {_say_shape(wanted)}, with at least one sample"]
    expected_bytes = prod(given.shape) * Dtype(given.dtype).size_bytes
    if given.size_bytes != expected_bytes:
        return [f"{given.size_bytes:,} bytes; a tensor of this shape has {expected_bytes:,}"]
    return []


def _weigh(tensor: TensorType) -> int:
    return prod(tensor.shape) * tensor.dtype.size_bytes


def _say(tensor: TensorType) -> str:
    return f"give {tensor.dtype.value}{_say_shape(tensor)}"


def _say_shape(tensor: TensorType) -> str:
    return "[" + ", ".join(["samples", *map(str, tensor.shape)]) + "]"
