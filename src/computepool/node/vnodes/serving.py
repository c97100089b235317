"""A host's answers: checkpoints that are kept open beside the training, requests for them, and what comes of those.

The hub opens a checkpoint at every host that takes part before it sends the first request. Whatever goes wrong here
is told to whoever asked; training neither waits for it nor ends by it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable

from computepool import clock
from computepool.core.errors import ComputePoolError
from computepool.core.networks.entries import list_entries
from computepool.core.networks.graph import Graph, draw_graph
from computepool.core.networks.placement import Placement, SeatId
from computepool.core.networks.shapes import list_buffers, list_parameters
from computepool.core.networks.spec import SOURCE_MARK, Dtype, NetworkSpec
from computepool.node import journal
from computepool.node.vnodes.checkpoints import Checkpoint, CheckpointUnreadable
from computepool.node.vnodes.frames import (
    FrameHead,
    FrameKind,
    FrameLimits,
    Outgoing,
    Refusal,
    RefusalCode,
    find_tensor_fault,
    to_bytes,
    to_tensor,
)
from computepool.node.vnodes.inference import REQUESTS_BYTES_MAX, Inference, RequestFailed
from computepool.node.vnodes.memory import MemoryBook
from computepool.wire.pb.computepool.v1 import networks_pb2 as pb

# Answers leave through the session, whichever seat they are computed on.
HUB = SeatId("")
# Kept open at a time, whatever the hub says.
OPEN_MAX = 8
OPENING_MAX = 16
# Of the memory that VNodes may take: so much of it at most is held by requests of one checkpoint.
REQUESTS_SHARE = 8
MESSAGE_LENGTH_MAX = 500
# Said instead of an answer; the hub knows what follows.
NOT_OPEN = "not_open"
FAILED = "failed"
OUT_OF_MEMORY = "out_of_memory"
CHECKPOINT_UNREADABLE = "checkpoint_unreadable"

# The bytes of one VNode's checkpoint: which VNode, of which step, by which hash.
LoadPart = Callable[[str, int, str], Awaitable[bytes]]
Say = Callable[[pb.HostMessage], None]


class Serving:
    """Orders and answers on the event loop that it was made on; `receive` and `run_ready` from any thread."""

    def __init__(
        self,
        me: SeatId,
        *,
        load_part: LoadPart,
        say: Say,
        on_work: Callable[[], None],
        memory: MemoryBook,
        device: str = "cpu",
        limits: FrameLimits | None = None,
    ) -> None:
        """`on_work` is called whenever there may be something to compute."""
        self._loop = asyncio.get_running_loop()
        self._me = me
        self._load_part = load_part
        self._say = say
        self._on_work = on_work
        self._memory = memory
        self._device = device
        self._limits = limits or FrameLimits()
        self._spec: NetworkSpec | None = None
        self._placement: Placement | None = None
        self._graph: Graph | None = None
        self._epoch = 0
        self._open: OrderedDict[int, Inference] = OrderedDict()
        # The same for the thread that computes, which must not see a change half made.
        self._at_work: tuple[Inference, ...] = ()
        self._opening: dict[int, asyncio.Task[None]] = {}
        self._pieces = 0
        self._is_computing = False

    @property
    def mark(self) -> int:
        """Grows with every piece of work for requests, and while a long one takes the processor."""
        is_busy = self._is_computing or bool(self._opening)
        return self._pieces + (int(clock.cpu_seconds()) if is_busy else 0)

    # Orders

    def enter(self, spec: NetworkSpec, placement: Placement) -> None:
        """A new epoch: what was asked in the one before is asked again by whoever still wants it."""
        self.leave()
        self._spec, self._placement, self._epoch = spec, placement, placement.epoch
        self._graph = draw_graph(spec)

    def leave(self) -> None:
        """Nothing is kept."""
        for task in self._opening.values():
            task.cancel()
        self._close([*self._open, *self._opening])
        self._opening = {}
        self._spec = self._placement = None

    def open(self, order: pb.OpenCheckpoint) -> None:
        step = order.checkpoint_step
        self._close(each for each in self._open if each != step and each not in order.kept_steps)
        if order.epoch != self._epoch or self._spec is None:
            return
        if step in self._open:
            self._say_opened(order.epoch, step)
        elif step not in self._opening and len(self._opening) < OPENING_MAX:
            task = self._opening[step] = asyncio.create_task(self._open_one(order))
            task.add_done_callback(lambda done: self._end_opening(step, done))

    def ask(self, order: pb.InferOrder) -> None:
        if order.epoch != self._epoch or self._spec is None or self._placement is None:
            return
        inference = self._open.get(order.checkpoint_step)
        if inference is None:
            self._say_failed(order.number, NOT_OPEN, f"checkpoint {order.checkpoint_step} is not open here")
            return
        fault = self._feed(inference, order) if order.replica < self._spec.replicas else None
        if fault is not None:
            inference.forget(order.number)
            self._say_failed(order.number, fault.code.value, fault.message)
        self._on_work()

    # Frames and work

    def receive(self, head: FrameHead, tensor_bytes: bytearray) -> Refusal | None:
        """A frame of another host, whose dtype, shape and size were found to agree."""
        inference = self._open.get(head.step)
        if inference is None or head.epoch != self._epoch:
            # Harmless: whoever asked has gone on, or asks again.
            return Refusal(RefusalCode.STALE_EPOCH, f"{head}: checkpoint {head.step} is not open here")
        refusal = inference.receive(head, to_tensor(tensor_bytes, head.dtype, head.shape))
        self._on_work()
        return refusal

    def run_ready(self) -> list[Outgoing] | None:
        """As an engine's: one VNode for one request. None: there is nothing to do."""
        for inference in self._at_work:
            self._is_computing = True
            try:
                frames = inference.run_ready()
            finally:
                self._is_computing = False
            if frames is not None:
                self._pieces += 1
                return frames
        return None

    # What came of requests

    def answer(self, frame: Outgoing) -> None:
        head = frame.head
        if head.epoch != self._epoch:
            return
        output = pb.Tensor(dtype=head.dtype.value, shape=head.shape, content=bytes(to_bytes(frame.tensor)))
        answer = pb.InferAnswer(epoch=head.epoch, number=head.micro_batch, output=output)
        self._say(pb.HostMessage(answer=answer))

    def give_up(self, head: FrameHead, message: str) -> None:
        """Another host will not have what was sent to it for a request."""
        if head.epoch == self._epoch:
            self._say_failed(head.micro_batch, FAILED, message, vnode_id=head.source)

    # Inside

    async def _open_one(self, order: pb.OpenCheckpoint) -> None:
        spec, placement, step = self._spec, self._placement, order.checkpoint_step
        assert spec is not None
        assert placement is not None
        try:
            # Before anything is fetched or built.
            self._memory.take(_name_open(step), self._count_weights(spec, placement))
            contents = {each.vnode_id: await self._load(each, step) for each in order.checkpoints}
            checkpoint = Checkpoint(step, contents) if step else None
            inference = await asyncio.to_thread(self._build, spec, placement, checkpoint)
        except (ComputePoolError, CheckpointUnreadable, ValueError, RuntimeError, MemoryError) as error:
            if order.epoch == self._epoch:
                self._close([step])
            journal.warning("checkpoint_not_opened", step=step, reason=str(error))
            self._say_opened(order.epoch, step, code=_name_code(error), message=str(error))
            return
        if order.epoch != self._epoch:
            return
        self._close(list(self._open)[: max(0, len(self._open) + 1 - OPEN_MAX)])
        self._open[step] = inference
        self._at_work = tuple(self._open.values())
        self._say_opened(order.epoch, step)

    async def _load(self, part: pb.VNodeCheckpoint, step: int) -> bytes:
        return await self._load_part(part.vnode_id, step, part.sha256)

    def _build(self, spec: NetworkSpec, placement: Placement, checkpoint: Checkpoint | None) -> Inference:
        return Inference(
            spec,
            placement,
            self._me,
            checkpoint,
            reply_to=HUB,
            on_failed=self._hear_failed,
            device=self._device,
            limits=self._limits,
            bytes_max=min(REQUESTS_BYTES_MAX, self._memory.bytes_max // REQUESTS_SHARE),
        )

    def _count_weights(self, spec: NetworkSpec, placement: Placement) -> int:
        """Of one checkpoint, beside those that are trained."""
        names = {each.vnode_id for each in placement.at(self._me)}
        held = (list_parameters(spec), list_buffers(spec))
        return sum(each.size_bytes for found in held for name in names for each in found[name])

    def _close(self, steps: Iterable[int]) -> None:
        for step in list(steps):
            self._open.pop(step, None)
            self._memory.give_back([_name_open(step)])
        self._at_work = tuple(self._open.values())

    def _feed(self, inference: Inference, order: pb.InferOrder) -> Refusal | None:
        """The inputs that enter here, as the frames that another host would have sent."""
        assert self._spec is not None
        assert self._placement is not None
        assert self._graph is not None
        for entry in list_entries(self._spec, self._graph, self._placement, order.replica):
            if entry.seat != self._me:
                continue
            given = order.inputs[entry.source_name]
            fault = find_tensor_fault(given.dtype, given.shape, len(given.content), self._limits)
            if fault is not None:
                return fault
            head = FrameHead(
                run_id=self._placement.run_id,
                epoch=self._epoch,
                kind=FrameKind.INFERENCE,
                source=SOURCE_MARK + entry.source_name,
                source_slot=0,
                target=entry.target,
                target_slot=entry.target_slot,
                replica=order.replica,
                incarnation=0,
                step=order.checkpoint_step,
                micro_batch=order.number,
                dtype=Dtype(given.dtype),
                shape=tuple(given.shape),
            )
            fault = inference.receive(head, to_tensor(given.content, head.dtype, head.shape))
            if fault is not None:
                return fault
        return None

    def _hear_failed(self, failed: RequestFailed) -> None:
        """From the thread that computes."""
        try:
            self._loop.call_soon_threadsafe(
                lambda: self._say_failed(failed.request, FAILED, failed.message, vnode_id=failed.vnode_id)
            )
        except RuntimeError:
            # The loop is closed: the process ends.
            journal.debug("loop_closed")

    def _end_opening(self, step: int, task: asyncio.Task[None]) -> None:
        if self._opening.get(step) is task:
            del self._opening[step]

    def _say_opened(self, epoch: int, step: int, *, code: str = "", message: str = "") -> None:
        opened = pb.CheckpointOpened(
            epoch=epoch, checkpoint_step=step, code=code, message=message[:MESSAGE_LENGTH_MAX]
        )
        self._say(pb.HostMessage(opened=opened))

    def _say_failed(self, number: int, code: str, message: str, *, vnode_id: str = "") -> None:
        answer = pb.InferAnswer(
            epoch=self._epoch, number=number, code=code, message=message[:MESSAGE_LENGTH_MAX], vnode_id=vnode_id
        )
        self._say(pb.HostMessage(answer=answer))


def _name_open(step: int) -> str:
    return f"open checkpoint {step}"


def _name_code(error: Exception) -> str:
    if isinstance(error, MemoryError) or "not enough memory" in str(error):
        return OUT_OF_MEMORY
    return CHECKPOINT_UNREADABLE if isinstance(error, CheckpointUnreadable) else FAILED
