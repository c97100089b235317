"""A host: the process on a PNode that fills one seat of a run, from its first word to the hub to its last.

It does what the hub orders and nothing else: prepare an epoch, run, drop. It ends when it is told to, when the lease
is gone, or when the agent that started it does.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import torch

from computepool import clock
from computepool.core.errors import ComputePoolError, InvalidRequest, InvalidSpec
from computepool.core.networks.audit import SpanDigest
from computepool.core.networks.cost import IN_FLIGHT_PER_CROSSING
from computepool.core.networks.entries import ANSWER
from computepool.core.networks.host_faults import HostFaultCode
from computepool.core.networks.placement import Placement, SeatId
from computepool.core.networks.spec import SOURCE_MARK, NetworkSpec
from computepool.core.networks.spec_json import from_json
from computepool.node import journal
from computepool.node.host_options import PORT, HostOptions
from computepool.node.tokens import find_vouched_keys
from computepool.node.vnodes.auditing import Auditor, to_peers
from computepool.node.vnodes.checkpoints import Checkpoint, CheckpointCache, CheckpointUnreadable, Packed
from computepool.node.vnodes.data import Dataset, list_data_faults
from computepool.node.vnodes.driver import Driver
from computepool.node.vnodes.edges import Edges, Tls
from computepool.node.vnodes.engine import Engine
from computepool.node.vnodes.events import (
    CheckpointReady,
    DigestKnown,
    Event,
    FaultFound,
    LossKnown,
)
from computepool.node.vnodes.frames import HARMLESS, FrameHead, FrameKind, Outgoing, to_bytes
from computepool.node.vnodes.hub_session import HubSession
from computepool.node.vnodes.memory import MemoryBook, count_training_bytes
from computepool.node.vnodes.placements import read_placement
from computepool.node.vnodes.serving import Serving
from computepool.node.vnodes.shelf import DataShelf
from computepool.node.vnodes.wire_frames import Fault
from computepool.wire.nodes import HubKey
from computepool.wire.pb.computepool.v1 import networks_pb2 as pb

# The agent ends us by force soon after.
LEAVE_SECONDS = 1.4
CLOSE_SECONDS = 0.3
# Until the hub has said otherwise.
BEAT_SECONDS = 5.0
TOKEN_SECONDS = 60.0
# Of checkpoints that this host made or fetched, so that it need not fetch them again: at most this, and at most this
# share of what VNodes may take.
CACHED_BYTES_MAX = 1 << 30
CACHED_SHARE = 8


class Host:
    def __init__(self, options: HostOptions) -> None:
        self._options = options
        tls = Tls(options.tls_roots) if options.tls else None
        self._session = HubSession(
            address=options.rpc_address,
            attempt_id=options.attempt_id,
            lease_secret=options.lease_secret,
            tls=tls,
        )
        self._driver = Driver(on_outgoing=self._send, on_event=self._hear)
        self._edges = Edges(
            run_id=options.run_id,
            seat=SeatId(options.seat),
            hub_keys=options.hub_keys,
            on_frame=self._driver.receive,
            on_peer_lost=self._tell_lost,
            on_refused=self._hear_refusal,
            lease_secret=options.lease_secret,
            relay_tls=tls,
        )
        self._shelf = DataShelf(options.data_folder, bytes_max=options.data_bytes_max)
        self._hub_keys: list[HubKey] = list(options.hub_keys)
        memory = self._memory = MemoryBook(options.memory_bytes)
        self._cached = CheckpointCache(min(CACHED_BYTES_MAX, options.memory_bytes // CACHED_SHARE))
        self._serving = Serving(
            SeatId(options.seat),
            load_part=self._read_part,
            say=self._session.say,
            on_work=self._driver.wake,
            memory=memory,
            device=options.device,
        )
        self._driver.set_answering(self._serving)
        self._auditor = Auditor(
            self._session,
            run_id=options.run_id,
            seat=SeatId(options.seat),
            memory=memory,
            device=options.device,
            load_data=self._load_data,
        )
        self._spec: NetworkSpec | None = None
        self._spec_json = ""
        self._epoch = 0
        self._prepared_epoch = 0
        self._preparing = False
        self._order: asyncio.Task[None] | None = None
        self._storing: set[asyncio.Task[None]] = set()
        # A new epoch asks for the same.
        self._dataset: Dataset | None = None
        self._dataset_names: tuple[str, ...] = ()
        self._beats = 0
        self._step_ended_at = 0.0
        self._token_seconds = 0.0
        self._drained = asyncio.Event()

    async def run(self) -> None:
        """Until the hub has no more use for it. Raises what the hub refuses it for."""
        listening = await self._edges.start(self._options.listen)
        address = self._options.advertise.replace(PORT, listening.rpartition(":")[2])
        answer = await self._session.register(
            node_id=self._options.node_id,
            numeric_class=self._options.numeric_class,
            address=address,
            memory_bytes=self._options.memory_bytes,
        )
        journal.info("registered", run_id=answer.run_id, seat=answer.seat, reachable=answer.reachable)
        hello = pb.Hello(
            attempt_id=self._options.attempt_id, lease_secret=self._options.lease_secret, address=address
        )
        chores = [
            asyncio.create_task(self._session.run(hello, self._obey)),
            asyncio.create_task(self._beat(answer.beat_seconds or BEAT_SECONDS)),
            asyncio.create_task(self._renew_token()),
            asyncio.create_task(self._drained.wait()),
        ]
        try:
            ended, _ = await asyncio.wait(chores, return_when=asyncio.FIRST_COMPLETED)
            for chore in ended:
                await chore
        finally:
            for task in (*chores, *([self._order] if self._order else [])):
                task.cancel()
            await asyncio.gather(*chores, return_exceptions=True)

    async def leave(self, reason: str) -> None:
        """While it still works: the hub lets everybody store one step more, if that can be done in time."""
        if self._session.run_id:
            await self._session.leave(reason, seconds=LEAVE_SECONDS)

    async def close(self) -> None:
        closing = asyncio.gather(
            self._edges.close(), self._driver.close(), self._session.close(), self._auditor.close()
        )
        with contextlib.suppress(asyncio.TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await closing

    # Orders

    async def _obey(self, order: pb.HubMessage) -> None:
        """A new order ends the one under way: the hub knows what it has said before."""
        kind = order.WhichOneof("kind")
        if kind == "probe":
            self._say_beat()
        elif kind == "prepare":
            self._begin(self._prepare(order.prepare))
        elif kind == "run":
            await self._run(order.run)
        elif kind == "open_checkpoint":
            self._serving.open(order.open_checkpoint)
        elif kind == "infer":
            self._serving.ask(order.infer)
        elif kind == "drop":
            self._drop(order.drop.epoch)
        elif kind == "audit":
            self._auditor.obey(order.audit)
        elif kind == "drain":
            journal.info("drained", reason=order.drain.reason)
            self._drained.set()
        else:
            journal.warning("order_unknown", kind=kind)

    def _begin(self, doing: Any) -> None:
        if self._order is not None:
            self._order.cancel()
        self._order = asyncio.create_task(doing)

    async def _prepare(self, order: pb.Prepare) -> None:
        if order.epoch < self._epoch:
            return
        if order.epoch > self._epoch:
            self._session.forget()
        self._epoch = order.epoch
        self._token_seconds = order.seat_token_seconds
        self._preparing = True
        try:
            if self._is_prepared(order.epoch):
                # Our answer was lost on its way. What is built may have begun by now, and is not begun anew.
                self._edges.renew(order.seat_token)
            else:
                await self._take_up(order)
        except _PREPARE_FAULTS as error:
            self._say_fault(order.epoch, "", _name_code(error), str(error))
            return
        finally:
            self._preparing = False
        self._prepared_epoch = order.epoch
        mine = [each.vnode_id for each in order.placement if each.seat == self._options.seat]
        self._session.say(pb.HostMessage(prepared=pb.Prepared(epoch=order.epoch, vnode_ids=mine)))

    def _is_prepared(self, epoch: int) -> bool:
        engine = self._driver.engine
        return self._prepared_epoch == epoch and engine is not None and engine.prepared_epoch == epoch

    async def _take_up(self, order: pb.Prepare) -> None:
        spec = self._read_spec(order.spec_json)
        placement = read_placement(self._options.run_id, order.epoch, order.placement)
        # Before anything is fetched or built.
        self._memory.set_own(count_training_bytes(spec, placement, SeatId(self._options.seat)))
        dataset = await self._load_data(spec, order.data, placement, SeatId(self._options.seat))
        checkpoint = await self._load_checkpoint(order, placement)
        engine = self._driver.engine
        if engine is None:
            engine = Engine(
                spec,
                placement,
                SeatId(self._options.seat),
                dataset,
                on_event=self._driver.tell,
                device=self._options.device,
                extra_in_flight=IN_FLIGHT_PER_CROSSING - 1,
            )
        # Frames of this epoch may come as soon as others are prepared; what comes early is kept.
        await asyncio.to_thread(engine.prepare, order.epoch, checkpoint, placement=placement, dataset=dataset)
        if self._driver.engine is None:
            self._driver.set_engine(engine)
        self._serving.enter(spec, placement)
        routes = {SeatId(each.seat): each.address for each in order.placement}
        self._edges.connect(order.epoch, order.seat_token, routes, relay_address=order.relay_address)

    def _read_spec(self, text: str) -> NetworkSpec:
        if self._spec is None or text != self._spec_json:
            self._spec, self._spec_json = from_json(text), text
        return self._spec

    async def _load_data(
        self, spec: NetworkSpec, data: Sequence[Any], placement: Placement, seat: SeatId
    ) -> Dataset | None:
        """None for a seat whose VNodes read none of it: nothing is fetched then."""
        hosted = {each.vnode_id for each in placement.at(seat)}
        if not any(edge.target in hosted and edge.source.startswith(SOURCE_MARK) for edge in spec.edges):
            return None
        names = tuple(each.sha256 for each in data)
        if self._dataset is None or names != self._dataset_names:
            contents = [await self._read_shard(name) for name in names]
            self._dataset, self._dataset_names = await asyncio.to_thread(_join_data, spec, contents), names
        return self._dataset

    async def _read_shard(self, sha256: str) -> bytes:
        """The hub places runs where their data lies already: then it is not fetched."""
        content = await asyncio.to_thread(self._shelf.find, sha256)
        fetched_bytes = 0
        if content is None:
            content = await self._session.read_blob(sha256)
            fetched_bytes = len(content)
            await asyncio.to_thread(self._shelf.put, sha256, content)
        journal.info("shard_read", sha256=sha256, fetched_bytes=fetched_bytes)
        return content

    async def _load_checkpoint(self, order: pb.Prepare, placement: Placement) -> Checkpoint | None:
        if not order.checkpoint_step:
            return None
        mine = {location.vnode_id for location in placement.at(SeatId(self._options.seat))}
        wanted = [each for each in order.checkpoints if each.vnode_id in mine]
        step = order.checkpoint_step
        contents = await asyncio.gather(*(self._read_part(each.vnode_id, step, each.sha256) for each in wanted))
        pairs = zip(wanted, contents, strict=True)
        return Checkpoint(step, {each.vnode_id: content for each, content in pairs})

    async def _read_part(self, vnode_id: str, step: int, sha256: str) -> bytes:
        """Who stays need not fetch what it has made itself."""
        content = self._cached.find(vnode_id, step, sha256)
        if content is None:
            content = await self._session.read_blob(sha256)
            self._cached.put(Packed(vnode_id, step, content, sha256, b""))
        return content

    async def _run(self, order: pb.RunOrder) -> None:
        engine = self._driver.engine
        if engine is None or order.epoch != self._epoch:
            return
        try:
            await asyncio.to_thread(engine.start, order.from_step, order.until_step)
        except ValueError as error:
            # Nobody was prepared for this: the hub must have meant another epoch.
            self._say_fault(order.epoch, "", HostFaultCode.HOST_BROKEN, str(error))
            return
        self._step_ended_at = clock.seconds()
        self._driver.run()

    def _drop(self, epoch: int) -> None:
        if epoch >= self._epoch and self._driver.engine is not None:
            self._driver.engine.drop()
            self._serving.leave()
            self._memory.set_own(0)

    # What the engine and the streams tell

    def _send(self, frame: Outgoing) -> None:
        if frame.head.target == ANSWER:
            self._serving.answer(frame)
            return
        if frame.head.kind is not FrameKind.INFERENCE:
            # Answers are not audited.
            self._auditor.record(frame)
        try:
            self._edges.post(frame.seat, frame.head, to_bytes(frame.tensor))
        except KeyError:
            journal.info("frame_dropped", seat=frame.seat, epoch=frame.head.epoch)

    def _hear_refusal(self, seat: SeatId, head: FrameHead | None, fault: Fault) -> None:
        """Who does not take what we send waits for it all the same: everybody must go back."""
        journal.warning("frame_refused", seat=seat, code=fault.code, message=fault.message)
        if head is not None and head.kind is FrameKind.INFERENCE:
            self._serving.give_up(head, f"seat {seat} refused {head}: {fault.message}")
        elif head is not None and head.epoch == self._epoch and fault.code not in HARMLESS:
            words = f"seat {seat} refused {head}: {fault.message}"
            self._say_fault(head.epoch, head.source, HostFaultCode.FRAME_REFUSED, words)

    def _tell_lost(self, seat: SeatId, reason: str) -> None:
        self._session.say(pb.HostMessage(peer_lost=pb.PeerLost(epoch=self._epoch, seat=seat, reason=reason[:300])))

    def _hear(self, event: Event) -> None:
        if isinstance(event, LossKnown):
            self._say_loss(event)
        elif isinstance(event, CheckpointReady):
            self._store(event)
        elif isinstance(event, DigestKnown):
            self._say_digest(event.span)
        elif isinstance(event, FaultFound):
            self._say_fault(event.epoch, event.vnode_id, event.code, event.message)

    def _say_digest(self, span: SpanDigest) -> None:
        digest = pb.AuditDigest(
            epoch=span.epoch,
            from_step=span.from_step,
            until_step=span.until_step,
            peers=to_peers(span),
            losses=span.losses,
        )
        self._session.say(pb.HostMessage(digest=digest))

    def _say_loss(self, event: LossKnown) -> None:
        before, self._step_ended_at = self._step_ended_at, clock.seconds()
        seconds = max(1e-9, self._step_ended_at - before)
        batch_size = self._spec.batch_size if self._spec is not None else 0
        bits = struct.unpack("<Q", struct.pack("<d", event.loss))[0]
        self._session.say(
            pb.HostMessage(
                event=pb.HostEvent(
                    epoch=event.epoch, step=event.step, loss_bits=bits, samples_per_second=batch_size / seconds
                )
            )
        )

    def _store(self, event: CheckpointReady) -> None:
        self._cached.put(Packed(event.vnode_id, event.step, event.content, event.sha256, event.digest))
        task = asyncio.create_task(self._store_one(event))
        self._storing.add(task)
        task.add_done_callback(self._storing.discard)

    async def _store_one(self, event: CheckpointReady) -> None:
        try:
            await self._session.write_blob(event.sha256, event.content)
        except ComputePoolError as error:
            # The step stays incomplete; the run goes on, and goes back further if it must.
            journal.warning("checkpoint_not_stored", vnode_id=event.vnode_id, step=event.step, reason=str(error))
            return
        stored = pb.CheckpointStored(
            epoch=event.epoch,
            step=event.step,
            vnode_id=event.vnode_id,
            sha256=event.sha256,
            size_bytes=len(event.content),
            digest=event.digest,
        )
        self._session.say(pb.HostMessage(checkpoint=stored))

    def _say_fault(self, epoch: int, vnode_id: str, code: HostFaultCode, message: str) -> None:
        journal.warning("host_fault", epoch=epoch, vnode_id=vnode_id, code=code.value, message=message)
        fault = pb.HostFault(epoch=epoch, vnode_id=vnode_id, code=code.value, message=message[:2_000])
        self._session.say(pb.HostMessage(fault=fault))

    async def _renew_token(self) -> None:
        """Streams that are opened anew late in an epoch need a token that has not run out."""
        while True:
            await asyncio.sleep((self._token_seconds or TOKEN_SECONDS) / 2)
            found = await self._session.resolve()
            if found is not None:
                self._learn_keys(found.hub_keys_signed)
            if found is not None and found.epoch == self._epoch and found.seat_token:
                self._edges.renew(found.seat_token)

    def _learn_keys(self, signed: Sequence[str]) -> None:
        """The hub changes its keys while a run goes on; those that we know vouch for those that come."""
        keys = find_vouched_keys(
            signed, node_id=UUID(self._options.node_id), pinned=self._hub_keys, now_seconds=clock.unix_seconds()
        )
        if keys is not None and keys != self._hub_keys:
            journal.info("hub_keys_changed", count=len(keys))
            self._hub_keys = keys
            self._edges.trust(keys)

    async def _beat(self, beat_seconds: float) -> None:
        while True:
            self._say_beat()
            await asyncio.sleep(beat_seconds)

    def _say_beat(self) -> None:
        self._beats += 1
        engine = self._driver.engine
        answering = self._serving.mark + self._session.pieces_read
        beat = pb.HostBeat(sequence=self._beats, epoch=self._epoch, answering=answering)
        if self._preparing:
            # Whoever fetches or builds gets on; whoever hangs does neither.
            beat.watermark = self._session.pieces_read + int(clock.cpu_seconds())
        elif engine is not None:
            progress = engine.progress
            beat.watermark, beat.step, beat.micro_batch = progress.watermark, progress.step, progress.micro_batch
        self._session.say(pb.HostMessage(beat=beat))


def _join_data(spec: NetworkSpec, contents: Sequence[bytes]) -> Dataset:
    """Shards one after the other, as they are named."""
    parts = [Dataset.from_bytes(content) for content in contents]
    if not parts:
        raise _DataUnfit("the run names no data")
    names = parts[0].tensors
    joined = parts[0]
    if len(parts) > 1:
        if any(part.tensors.keys() != names.keys() for part in parts):
            raise _DataUnfit("the shards of the data hold tensors of different names")
        joined = Dataset.from_tensors({name: torch.cat([part.tensors[name] for part in parts]) for name in names})
    faults = list_data_faults(spec, joined)
    if faults:
        raise _DataUnfit(f"the data does not fit the network: {'; '.join(faults)}")
    return joined


class _DataUnfit(Exception):
    """Not what the network's sources name."""


_PREPARE_FAULTS = (ComputePoolError, CheckpointUnreadable, _DataUnfit, ValueError, RuntimeError, MemoryError)


def _name_code(error: Exception) -> HostFaultCode:
    if isinstance(error, MemoryError) or "not enough memory" in str(error):
        return HostFaultCode.OUT_OF_MEMORY
    if isinstance(error, CheckpointUnreadable):
        return HostFaultCode.CHECKPOINT_UNREADABLE
    if isinstance(error, InvalidSpec):
        return HostFaultCode.SPEC_REFUSED
    if isinstance(error, _DataUnfit | InvalidRequest):
        return HostFaultCode.DATA_INVALID
    return HostFaultCode.HOST_BROKEN


async def run_host(options: HostOptions, ended: asyncio.Event) -> None:
    """Until `ended` is set or the hub has no more use for it."""
    host = Host(options)
    running, stopping = asyncio.create_task(host.run()), asyncio.create_task(ended.wait())
    try:
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            await running
        else:
            await host.leave("its owner wants the machine back")
    finally:
        for task in (running, stopping):
            task.cancel()
        await asyncio.gather(running, stopping, return_exceptions=True)
        await host.close()
