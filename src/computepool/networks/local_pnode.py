"""A PNode of a grid on one machine: a child process that computes VNodes and speaks gRPC to the others.

The parent orders, over standard input, what a hub would: join a run, prepare an epoch, run, leave. Answers and events
go out on standard output. One JSON object per line; whatever is large lies in files of the parent's folder.
It ends when its input does: no child outlives the parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

from computepool import clock
from computepool.core.networks.cost import IN_FLIGHT_PER_CROSSING
from computepool.core.networks.host_faults import HostFaultCode
from computepool.core.networks.placement import Location, Placement, SeatId
from computepool.core.networks.spec_json import from_json
from computepool.node import journal
from computepool.node.vnodes.checkpoints import Checkpoint, CheckpointUnreadable
from computepool.node.vnodes.data import Dataset
from computepool.node.vnodes.driver import Driver, take_short_turns
from computepool.node.vnodes.edges import Edges
from computepool.node.vnodes.engine import Engine
from computepool.node.vnodes.events import CheckpointReady, Event, FaultFound, LossKnown
from computepool.node.vnodes.frames import HARMLESS, FrameHead, Outgoing, to_bytes
from computepool.node.vnodes.wire_frames import Fault
from computepool.wire.nodes import HubKey

BEAT_SECONDS = 1.0
# One order: a spec's text is not in it, but the placement of many VNodes is.
LINE_BYTES_MAX = 32 << 20
CLOSE_SECONDS = 2.0


class LocalPNode:
    """What one run needs of this process: at most one run at a time."""

    def __init__(self, order: dict[str, Any], say: Any) -> None:
        self._say_line = say
        self._run_id, self._attempt, self._seat = order["run_id"], order["attempt"], SeatId(order["seat"])
        self._folder = Path(order["folder"])
        self._spec = from_json((self._folder / "spec.json").read_text(encoding="utf-8"))
        self._dataset: Dataset | None = None
        self._epoch = 0
        self._preparing = False
        self._driver = Driver(on_outgoing=self._send, on_event=self._hear)
        self._edges = Edges(
            run_id=self._run_id,
            seat=self._seat,
            hub_keys=[HubKey(**key) for key in order["hub_keys"]],
            on_frame=self._driver.receive,
            on_peer_lost=self._tell_lost,
            on_refused=self._hear_refusal,
        )
        self._beating: asyncio.Task[None] | None = None

    async def join(self) -> None:
        address = await self._edges.start()
        self._say("joined", address=address)
        self._beating = asyncio.create_task(self._beat())

    async def prepare(self, order: dict[str, Any]) -> None:
        self._epoch = order["epoch"]
        placement = Placement(
            self._run_id, self._epoch, tuple(Location(**location) for location in order["placement"])
        )
        self._preparing = True
        try:
            await asyncio.to_thread(self._take_up, placement, order)
        except (CheckpointUnreadable, ValueError, RuntimeError, OSError) as error:
            is_checkpoint = isinstance(error, CheckpointUnreadable)
            code = HostFaultCode.CHECKPOINT_UNREADABLE if is_checkpoint else HostFaultCode.HOST_BROKEN
            self._say_fault("", code, str(error))
            return
        finally:
            self._preparing = False
        routes = {SeatId(seat): address for seat, address in order["routes"].items()}
        self._edges.connect(self._epoch, order["token"], routes)
        self._say("prepared", epoch=self._epoch)

    def run(self, order: dict[str, Any]) -> None:
        engine = self._driver.engine
        if engine is None or order["epoch"] != self._epoch:
            return
        engine.start(order["from_step"], order["until_step"])
        self._driver.run()

    async def close(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
        with contextlib.suppress(asyncio.TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await asyncio.gather(self._edges.close(), self._driver.close())

    def _take_up(self, placement: Placement, order: dict[str, Any]) -> None:
        if self._dataset is None:
            self._dataset = Dataset.from_bytes((self._folder / "data.safetensors").read_bytes())
        checkpoint = None
        if order["checkpoint_step"]:
            names = {location.vnode_id for location in placement.at(self._seat)}
            held = {name: (self._folder / order["checkpoints"][name]).read_bytes() for name in names}
            checkpoint = Checkpoint(order["checkpoint_step"], held)
        engine = self._driver.engine
        if engine is None:
            engine = Engine(
                self._spec,
                placement,
                self._seat,
                self._dataset,
                on_event=self._driver.tell,
                extra_in_flight=IN_FLIGHT_PER_CROSSING - 1,
            )
        engine.prepare(self._epoch, checkpoint, placement=placement, dataset=self._dataset)
        if self._driver.engine is None:
            self._driver.set_engine(engine)

    # What the engine and the streams tell

    def _send(self, frame: Outgoing) -> None:
        # A seat that has no part any more: the frame is of an epoch that is over.
        with contextlib.suppress(KeyError):
            self._edges.post(frame.seat, frame.head, to_bytes(frame.tensor))

    def _hear(self, event: Event) -> None:
        if isinstance(event, LossKnown):
            # As hex: not a bit is lost on the way.
            self._say("loss", epoch=event.epoch, step=event.step, loss=event.loss.hex())
        elif isinstance(event, CheckpointReady):
            self._store(event)
        elif isinstance(event, FaultFound):
            self._say_fault(event.vnode_id, event.code, event.message, epoch=event.epoch)

    def _store(self, event: CheckpointReady) -> None:
        """Whole or not at all, under a name that no other epoch writes to."""
        name = f"{event.vnode_id}-{event.step}-{event.epoch}-{self._seat}"
        draft = self._folder / f".{name}"
        draft.write_bytes(event.content)
        os.replace(draft, self._folder / name)
        self._say("checkpoint", epoch=event.epoch, step=event.step, vnode_id=event.vnode_id, file=name)

    def _hear_refusal(self, seat: SeatId, head: FrameHead | None, fault: Fault) -> None:
        if head is not None and head.epoch == self._epoch and fault.code not in HARMLESS:
            words = f"seat {seat} refused {head}: {fault.message}"
            self._say_fault(head.source, HostFaultCode.FRAME_REFUSED, words)

    def _tell_lost(self, seat: SeatId, reason: str) -> None:
        self._say("peer_lost", epoch=self._epoch, peer=seat, reason=reason[:300])

    def _say_fault(self, vnode_id: str, code: HostFaultCode, message: str, *, epoch: int | None = None) -> None:
        epoch = self._epoch if epoch is None else epoch
        self._say("fault", epoch=epoch, vnode_id=vnode_id, code=code.value, message=message[:2_000])

    async def _beat(self) -> None:
        while True:
            engine = self._driver.engine
            # Whoever builds gets on; whoever hangs does not.
            building = int(clock.cpu_seconds()) if self._preparing else 0
            watermark = engine.progress.watermark if engine is not None else 0
            self._say("beat", epoch=self._epoch, watermark=building or watermark)
            await asyncio.sleep(BEAT_SECONDS)

    def _say(self, kind: str, **words: Any) -> None:
        self._say_line({"kind": kind, "run_id": self._run_id, "attempt": self._attempt, **words})


async def serve(threads: int) -> None:
    torch.set_num_threads(threads)
    take_short_turns()
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    pnode: LocalPNode | None = None
    _say_line({"kind": "ready"})
    try:
        while line := await orders.readline():
            order = json.loads(line)
            kind = order["kind"]
            if kind == "join":
                pnode = LocalPNode(order, _say_line)
                await pnode.join()
            elif pnode is None:
                journal.warning("order_without_run", kind=kind)
            elif kind == "prepare":
                await pnode.prepare(order)
            elif kind == "run":
                await asyncio.to_thread(pnode.run, order)
            elif kind == "leave":
                leaving, pnode = pnode, None
                await leaving.close()
    finally:
        if pnode is not None:
            await pnode.close()


def _say_line(words: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    journal.set_up("warning")
    asyncio.run(serve(int(sys.argv[1])))
