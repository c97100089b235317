"""What a host does for audits beside its own work: it keeps what it sent, shows it when asked, and replays others.

One order at a time, and never in the way of training: a host that cannot says so, and somebody else is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from computepool.core.networks.audit import SpanDigest
from computepool.core.networks.placement import Placement, SeatId
from computepool.core.networks.spec import NetworkSpec
from computepool.core.networks.spec_json import from_json
from computepool.node import journal
from computepool.node.vnodes.checkpoints import Checkpoint, digest_content
from computepool.node.vnodes.data import Dataset
from computepool.node.vnodes.frame_log import FrameLog, pack_log, unpack_log
from computepool.node.vnodes.frames import Outgoing
from computepool.node.vnodes.hub_session import HubSession
from computepool.node.vnodes.memory import MemoryBook, count_training_bytes
from computepool.node.vnodes.placements import read_placement
from computepool.node.vnodes.replay import Frames, digest_frames, measure_deviation, replay
from computepool.wire.pb.computepool.v1 import networks_pb2 as pb

# The hub asks for a few at a time; one that asks for more is not obeyed.
ORDERS_MAX = 64

# The samples that a seat's VNodes read, if they read any.
LoadData = Callable[[NetworkSpec, Sequence[Any], Placement, SeatId], Awaitable[Dataset | None]]


class Auditor:
    def __init__(
        self,
        session: HubSession,
        *,
        run_id: str,
        seat: SeatId,
        memory: MemoryBook,
        device: str,
        load_data: LoadData,
    ) -> None:
        self.log = FrameLog()
        self._session = session
        self._run_id = run_id
        self._seat = seat
        self._memory = memory
        self._device = device
        self._load_data = load_data
        self._orders: asyncio.Queue[pb.AuditOrder] = asyncio.Queue(ORDERS_MAX)
        self._task: asyncio.Task[None] | None = None

    def record(self, frame: Outgoing) -> None:
        try:
            self.log.record(frame)
        except OSError as error:
            # No room on this machine: what is missing is said when it is asked for.
            journal.warning("frame_not_kept", reason=str(error))
            self.log.miss(frame.head)

    def obey(self, order: pb.AuditOrder) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._work())
        try:
            self._orders.put_nowait(order)
        except asyncio.QueueFull:
            self._refuse(order, "too many audits wait here")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self.log.close()

    async def _work(self) -> None:
        while True:
            order = await self._orders.get()
            try:
                if order.HasField("replay"):
                    await self._replay(order)
                else:
                    await self._show(order)
            except Exception as error:
                # Whatever is wrong with one, the next may be done; and the host's own work goes on.
                self._refuse(order, str(error) or type(error).__name__)

    def _refuse(self, order: pb.AuditOrder, why: str) -> None:
        journal.warning("audit_refused", audit_id=order.audit_id, reason=why)
        if order.HasField("replay"):
            self._session.say(pb.HostMessage(audit_result=pb.AuditResult(audit_id=order.audit_id, message=why[:300])))
        else:
            self._session.say(pb.HostMessage(audit_log=pb.AuditLog(audit_id=order.audit_id, message=why[:300])))

    async def _show(self, order: pb.AuditOrder) -> None:
        seat = SeatId(order.seat)
        frames = self.log.list_frames(
            order.epoch, order.from_step, order.until_step, to=None if seat == self._seat else seat
        )
        content = await asyncio.to_thread(pack_log, frames)
        sha256 = hashlib.sha256(content).hexdigest()
        await self._session.write_blob(sha256, content)
        shown = pb.AuditLog(audit_id=order.audit_id, sha256=sha256, size_bytes=len(content))
        self._session.say(pb.HostMessage(audit_log=shown))

    async def _replay(self, order: pb.AuditOrder) -> None:
        wanted, seat = order.replay, SeatId(order.seat)
        spec = from_json(wanted.spec_json)
        placement = read_placement(self._run_id, order.epoch, wanted.placement)
        with self._memory.holding("a replay", count_training_bytes(spec, placement, seat)):
            await self._replay_seat(order, spec, placement)

    async def _replay_seat(self, order: pb.AuditOrder, spec: NetworkSpec, placement: Placement) -> None:
        wanted, seat = order.replay, SeatId(order.seat)
        dataset = await self._load_data(spec, wanted.data, placement, seat)
        checkpoint = (
            Checkpoint(order.from_step, await self._read_all(wanted.checkpoints)) if order.from_step else None
        )
        logs = {
            SeatId(by): await asyncio.to_thread(unpack_log, await self._session.read_blob(sha256))
            for by, sha256 in wanted.logs.items()
        }
        received = [(by, head, tensor) for by, log in logs.items() if by != seat for _, head, tensor in log]
        if wanted.tolerant:
            work = asyncio.to_thread(
                self._compare, spec, placement, order, received, logs.get(seat, []), dataset, checkpoint
            )
            self._session.say(pb.HostMessage(audit_result=await work))
            return
        stored = await self._read_all(wanted.stored)
        result = await asyncio.to_thread(self._compute, spec, placement, order, received, dataset, checkpoint, stored)
        self._session.say(pb.HostMessage(audit_result=result))

    def _compute(
        self,
        spec: NetworkSpec,
        placement: Placement,
        order: pb.AuditOrder,
        received: Frames,
        dataset: Dataset | None,
        checkpoint: Checkpoint | None,
        stored: Mapping[str, bytes],
    ) -> pb.AuditResult:
        found = replay(
            spec,
            placement,
            SeatId(order.seat),
            [(head, tensor) for _, head, tensor in received],
            dataset,
            checkpoint=checkpoint,
            until_step=order.until_step,
            device=self._device,
        )
        states = [
            pb.VNodeState(
                vnode_id=vnode_id,
                digest=digest,
                stored=digest_content(stored[vnode_id], vnode_id) if vnode_id in stored else b"",
            )
            for vnode_id, digest in sorted(found.states.items())
        ]
        return pb.AuditResult(
            audit_id=order.audit_id, peers=to_peers(found.span), losses=found.span.losses, states=states
        )

    def _compare(
        self,
        spec: NetworkSpec,
        placement: Placement,
        order: pb.AuditOrder,
        received: Frames,
        sent: Frames,
        dataset: Dataset | None,
        checkpoint: Checkpoint | None,
    ) -> pb.AuditResult:
        """Only the step after the checkpoint: later ones begin with weights that differ by what noise has become."""
        found = replay(
            spec,
            placement,
            SeatId(order.seat),
            [(head, tensor) for _, head, tensor in received if head.step == order.from_step],
            dataset,
            checkpoint=checkpoint,
            until_step=order.from_step + 1,
            device=self._device,
            keeps_frames=True,
        )
        shown = digest_frames(
            sent, received, epoch=order.epoch, from_step=order.from_step, until_step=order.until_step
        )
        deviation = measure_deviation(found.sent, sent, step=order.from_step)
        return pb.AuditResult(audit_id=order.audit_id, peers=to_peers(shown), deviation=deviation)

    async def _read_all(self, wanted: Sequence[Any]) -> dict[str, bytes]:
        return {each.vnode_id: await self._session.read_blob(each.sha256) for each in wanted}


def to_peers(span: SpanDigest) -> list[pb.PeerDigest]:
    return [
        pb.PeerDigest(seat=seat, sent=digests.sent, received=digests.received)
        for seat, digests in sorted(span.peers.items())
    ]
