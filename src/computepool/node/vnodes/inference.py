"""Forward only, at a pinned checkpoint: several requests under way at once, apart from any training on this host.

A request is a number. Its inputs come as frames from the sources (`@x`), its answer leaves as a frame to whoever
asked. In its frames `step` is the checkpoint's and `micro_batch` the request's number. Nothing is kept between
requests: if a host is lost, the request is resolved and sent again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from computepool.core.networks.entries import ANSWER, list_entries
from computepool.core.networks.graph import draw_graph
from computepool.core.networks.placement import Placement, SeatId, list_placement_faults
from computepool.core.networks.shapes import infer_shapes, list_inputs
from computepool.core.networks.spec import SOURCE_MARK, Dtype, Edge, NetworkSpec
from computepool.node.vnodes.checkpoints import Checkpoint, CheckpointUnreadable, read_weights
from computepool.node.vnodes.frames import (
    FrameHead,
    FrameKind,
    FrameLimits,
    Outgoing,
    Refusal,
    RefusalCode,
    check_numbers,
    name_dtype,
)
from computepool.node.vnodes.modules import TORCH_DTYPES, VNodeModule, build
from computepool.node.vnodes.seams import leave

REQUESTS_MAX = 64
REQUESTS_BYTES_MAX = 1 << 30


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """This host cannot answer it; others may still be at work on their part."""

    request: int
    vnode_id: str
    message: str


@dataclass(slots=True)
class _Request:
    replica: int
    samples: int
    inputs: dict[Edge, Tensor] = field(default_factory=dict)
    # VNodes of this host that have not computed it yet.
    left: set[str] = field(default_factory=set)


class Inference:
    """One host's part. Driven as an engine is: `receive` from any thread, `run_ready` from one."""

    def __init__(
        self,
        spec: NetworkSpec,
        placement: Placement,
        me: SeatId,
        checkpoint: Checkpoint | None,
        *,
        reply_to: SeatId,
        on_failed: Callable[[RequestFailed], None],
        device: str = "cpu",
        limits: FrameLimits | None = None,
        requests_max: int = REQUESTS_MAX,
        bytes_max: int = REQUESTS_BYTES_MAX,
    ) -> None:
        """Without a checkpoint the weights are those of the seed. Raises CheckpointUnreadable."""
        faults = list_placement_faults(spec, placement)
        if faults:
            raise ValueError(f"the placement of run {placement.run_id} is not whole: {'; '.join(faults)}")
        self._spec = spec
        self._graph = draw_graph(spec)
        self._shapes = infer_shapes(spec)
        self._placement = placement
        self._me = me
        self._reply_to = reply_to
        self._on_failed = on_failed
        self._device = torch.device(device)
        self._limits = limits or FrameLimits()
        self._requests_max = requests_max
        self._bytes_max = bytes_max
        self.step = checkpoint.step if checkpoint is not None else 0
        self._needed = self._graph.ancestors(spec.output[0])
        self._modules = self._build(checkpoint)
        self._expected = self._list_expected()
        self._requests: OrderedDict[int, _Request] = OrderedDict()
        self._ready: deque[tuple[int, str]] = deque()
        self._lock = threading.Lock()
        # Requests given up for newer ones when there were too many: their senders have stopped waiting.
        self.dropped_count = 0

    def receive(self, head: FrameHead, tensor: Tensor) -> Refusal | None:
        refusal = self._check(head, tensor)
        if refusal is not None:
            return refusal
        if tensor.dtype == torch.bfloat16:
            tensor = tensor.to(torch.float32)
        with self._lock:
            request = self._requests.get(head.micro_batch)
            if request is None:
                request = self._open(head)
            edges = self._readers(head.source, request.replica)
            if request.replica != head.replica or request.samples != head.shape[0]:
                return Refusal(RefusalCode.WRONG_SHAPE, f"{head}: its request has {request.samples} samples")
            if any(edge in request.inputs or edge.target not in request.left for edge in edges):
                return Refusal(RefusalCode.REPEATED, f"{head}: it came before")
            self._put(head.micro_batch, request, edges, tensor.to(self._device))
            self._make_room()
        return None

    def run_ready(self) -> list[Outgoing] | None:
        """Computes one VNode for one request, oldest first; None if there is nothing to do."""
        with self._lock:
            if not self._ready:
                return None
            number, vnode_id = self._ready.popleft()
            request = self._requests.get(number)
            if request is None:
                return []
            inputs = [request.inputs[edge] for edge in self._graph.inputs[vnode_id]]
        try:
            output = self._compute(vnode_id, inputs)
        except Exception as error:
            self.forget(number)
            self._on_failed(RequestFailed(number, vnode_id, str(error)))
            return []
        with self._lock:
            return self._hand_on(number, request, vnode_id, output)

    def forget(self, number: int) -> None:
        """Whoever asked does not wait any longer."""
        with self._lock:
            self._requests.pop(number, None)

    @property
    def open_count(self) -> int:
        return len(self._requests)

    @torch.inference_mode()
    def _compute(self, vnode_id: str, inputs: list[Tensor]) -> Tensor:
        output = leave(self._modules[vnode_id](*inputs))
        fault = check_numbers(output, self._limits)
        if fault is not None:
            raise ValueError(f"the output of VNode {vnode_id} is no use: {fault[1]}")
        return output

    def _open(self, head: FrameHead) -> _Request:
        mine = {each for each in self._needed if self._placement.seat_of(each, head.replica) == self._me}
        request = self._requests[head.micro_batch] = _Request(head.replica, head.shape[0], left=mine)
        return request

    def _make_room(self) -> None:
        """The oldest give way: an answer to one that waits so long is not waited for any more."""
        while len(self._requests) > 1 and (
            len(self._requests) > self._requests_max or self._count_bytes() > self._bytes_max
        ):
            self._requests.popitem(last=False)
            self.dropped_count += 1

    def _count_bytes(self) -> int:
        held = (tensor for request in self._requests.values() for tensor in request.inputs.values())
        return sum(tensor.numel() * tensor.element_size() for tensor in held)

    def _readers(self, source: str, replica: int) -> list[Edge]:
        """Of what one frame brings: all edges from its source to VNodes here that take part."""
        return [
            edge
            for edge in self._graph.consumers[source, 0]
            if edge.target in self._modules and self._placement.seat_of(edge.target, replica) == self._me
        ]

    def _put(self, number: int, request: _Request, edges: list[Edge], tensor: Tensor) -> None:
        for edge in edges:
            request.inputs[edge] = tensor
        for vnode_id in dict.fromkeys(edge.target for edge in edges):
            if all(edge in request.inputs for edge in self._graph.inputs[vnode_id]):
                self._ready.append((number, vnode_id))

    def _hand_on(self, number: int, request: _Request, vnode_id: str, output: Tensor) -> list[Outgoing]:
        request.left.discard(vnode_id)
        if not request.left:
            self._requests.pop(number, None)
        found = []
        if vnode_id == self._spec.output[0]:
            found.append(self._frame(self._reply_to, number, request, vnode_id, ANSWER, 0, output))
        local = self._readers(vnode_id, request.replica) if (vnode_id, 0) in self._graph.consumers else []
        self._put(number, request, local, output)
        seats = {self._me}
        for edge in self._graph.consumers.get((vnode_id, 0), ()):
            seat = self._placement.seat_of(edge.target, request.replica)
            if edge.target in self._needed and seat not in seats:
                seats.add(seat)
                found.append(self._frame(seat, number, request, vnode_id, edge.target, edge.target_slot, output))
        return found

    def _frame(
        self, seat: SeatId, number: int, request: _Request, source: str, target: str, slot: int, tensor: Tensor
    ) -> Outgoing:
        if tensor.dtype == torch.float32 and target != ANSWER:
            tensor = tensor.to(TORCH_DTYPES[self._spec.wire])
        head = FrameHead(
            run_id=self._placement.run_id,
            epoch=self._placement.epoch,
            kind=FrameKind.INFERENCE,
            source=source,
            source_slot=0,
            target=target,
            target_slot=slot,
            replica=request.replica,
            incarnation=self._placement.incarnation_of(source, request.replica),
            step=self.step,
            micro_batch=number,
            dtype=name_dtype(tensor),
            shape=tuple(tensor.shape),
        )
        return Outgoing(seat, head, tensor.cpu().contiguous())

    def _check(self, head: FrameHead, tensor: Tensor) -> Refusal | None:
        if head.run_id != self._placement.run_id:
            return Refusal(RefusalCode.FOREIGN_RUN, f"{head}: of run {head.run_id}; this is {self._placement.run_id}")
        if head.epoch != self._placement.epoch or head.step != self.step:
            return Refusal(
                RefusalCode.STALE_EPOCH,
                f"{head}: of epoch {head.epoch} and checkpoint {head.step}; this is epoch {self._placement.epoch} "
                f"and checkpoint {self.step}",
            )
        expected = self._expected.get((head.replica, head.source, head.target, head.target_slot))
        if head.kind is not FrameKind.INFERENCE or expected is None:
            return Refusal(RefusalCode.NO_SUCH_EDGE, f"{head}: nothing like that is sent to {self._me}")
        incarnation, shape, dtype = expected
        if head.incarnation != incarnation:
            return Refusal(
                RefusalCode.STALE_INCARNATION, f"{head}: sent by incarnation {head.incarnation}, not {incarnation}"
            )
        if head.dtype is not dtype or name_dtype(tensor) is not dtype:
            return Refusal(RefusalCode.WRONG_DTYPE, f"{head}: dtype {head.dtype.value}; it should be {dtype.value}")
        if not head.shape or head.shape[0] < 1 or head.shape[1:] != shape or tuple(tensor.shape) != head.shape:
            return Refusal(
                RefusalCode.WRONG_SHAPE, f"{head}: shape {list(head.shape)}; it should be samples by {list(shape)}"
            )
        if tensor.numel() * tensor.element_size() > self._limits.bytes_max:
            return Refusal(RefusalCode.TOO_LARGE, f"{head}: more than {self._limits.bytes_max} bytes; ask in parts")
        fault = check_numbers(tensor, self._limits)
        return Refusal(fault[0], f"{head}: {fault[1]}") if fault is not None else None

    def _list_expected(self) -> Mapping[tuple[int, str, str, int], tuple[int, tuple[int, ...], Dtype]]:
        """By replica, source, target and slot: the sender's incarnation (0 of a source), shape and dtype."""
        found: dict[tuple[int, str, str, int], tuple[int, tuple[int, ...], Dtype]] = {}
        for replica in range(self._spec.replicas):
            for entry in list_entries(self._spec, self._graph, self._placement, replica):
                if entry.seat == self._me:
                    source = SOURCE_MARK + entry.source_name
                    given = self._shapes[source, 0]
                    found[replica, source, entry.target, entry.target_slot] = (0, given.shape, given.dtype)
            for vnode_id in self._needed:
                sender = self._placement.find(vnode_id, replica)
                edges = self._readers(vnode_id, replica) if (vnode_id, 0) in self._graph.consumers else []
                if sender is None or sender.seat == self._me or not edges:
                    continue
                given = self._shapes[vnode_id, 0]
                dtype = self._spec.wire if given.dtype is Dtype.F32 else given.dtype
                key = (replica, vnode_id, edges[0].target, edges[0].target_slot)
                found[key] = (sender.incarnation, given.shape, dtype)
        return found

    def _build(self, checkpoint: Checkpoint | None) -> dict[str, VNodeModule]:
        inputs = list_inputs(self._spec, self._shapes)
        modules = {}
        for vnode_id in dict.fromkeys(location.vnode_id for location in self._placement.at(self._me)):
            if vnode_id not in self._needed:
                continue
            module = build(self._spec.vnode(vnode_id), inputs[vnode_id], seed=self._spec.seed)
            if checkpoint is not None:
                _load(module, vnode_id, checkpoint)
            modules[vnode_id] = module.eval().to(self._device)
        return modules


def _load(module: VNodeModule, vnode_id: str, checkpoint: Checkpoint) -> None:
    if vnode_id not in checkpoint.contents:
        raise CheckpointUnreadable(f"the checkpoint lacks VNode {vnode_id}")
    try:
        module.load_state_dict(read_weights(checkpoint.contents[vnode_id], vnode_id))
    except RuntimeError as error:
        raise CheckpointUnreadable(f"the checkpoint of VNode {vnode_id} does not fit it: {error}") from error
