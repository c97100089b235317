"""What this process has of networks: the runs that it owns, and the sessions of their hosts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from computepool import entropy
from computepool.core.ids import AttemptId, NodeId
from computepool.core.networks.placement import Location
from computepool.core.networks.run import SendDrop, SendProbe, SendRun
from computepool.hub.blobs.fetch import Fetcher
from computepool.hub.blobs.local import LocalBlobs
from computepool.hub.config import HubSettings
from computepool.hub.rpc.reach import Reach
from computepool.hub.services.inference import AskOrder, InferenceDesk, OpenOrder, TensorBytes
from computepool.hub.services.keyring import Keyring
from computepool.hub.services.market import follow
from computepool.hub.services.owners import Order, PrepareOrder, RunOwner
from computepool.hub.services.plugs import Plugs
from computepool.hub.services.prices import PriceBook, read_rate_card
from computepool.hub.services.run_audits import AuditOrder, ReplayOrder, ShowOrder
from computepool.hub.services.seat_tokens import issue_seat_token
from computepool.hub.store.connect import Pool
from computepool.hub.store.runs import DataItem, Part
from computepool.wire.pb.computepool.v1 import networks_pb2 as pb

log = logging.getLogger("computepool.rpc")

# Orders that wait for a host to read them; one that reads none for so long has lost its session.
ORDERS_MAX = 64


class Session:
    """One host's stream, from its hello to its end."""

    def __init__(self, attempt_id: AttemptId) -> None:
        self.attempt_id = attempt_id
        self.orders: asyncio.Queue[pb.HubMessage] = asyncio.Queue(ORDERS_MAX)
        # Set when this process has nothing more to say to it.
        self.ended = asyncio.Event()


class Sessions:
    """Where a run's owner sends its orders."""

    def __init__(self, keyring: Keyring, settings: HubSettings) -> None:
        self._keyring = keyring
        self._settings = settings
        self._open: dict[AttemptId, Session] = {}

    def open(self, attempt_id: AttemptId) -> Session:
        """A host that calls again has lost its old stream, whether we have noticed or not."""
        self.close(attempt_id)
        session = self._open[attempt_id] = Session(attempt_id)
        return session

    def leave(self, session: Session) -> bool:
        """False: a newer one of the same host is open."""
        if self._open.get(session.attempt_id) is not session:
            return False
        del self._open[session.attempt_id]
        return True

    def close(self, attempt_id: AttemptId) -> None:
        session = self._open.get(attempt_id)
        if session is not None:
            session.ended.set()

    def send(self, attempt_id: AttemptId, order: Order) -> bool:
        session = self._open.get(attempt_id)
        if session is None or session.ended.is_set():
            return False
        try:
            session.orders.put_nowait(self._word(order))
        except asyncio.QueueFull:
            log.warning("host_reads_nothing attempt_id=%s", attempt_id)
            session.ended.set()
            return False
        return True

    def offer(self, attempt_id: AttemptId, order: OpenOrder | AskOrder) -> bool:
        """What may wait must not be what fills a host's orders up."""
        session = self._open.get(attempt_id)
        if session is None or session.ended.is_set() or session.orders.qsize() >= ORDERS_MAX // 2:
            return False
        session.orders.put_nowait(_word_request(order))
        return True

    def _word(self, order: Order) -> pb.HubMessage:
        if isinstance(order, PrepareOrder):
            return pb.HubMessage(prepare=self._word_prepare(order))
        if isinstance(order, SendRun):
            run = pb.RunOrder(epoch=order.epoch, from_step=order.from_step, until_step=order.until_step)
            return pb.HubMessage(run=run)
        if isinstance(order, SendDrop):
            return pb.HubMessage(drop=pb.Drop(epoch=order.epoch))
        if isinstance(order, ShowOrder | ReplayOrder):
            return pb.HubMessage(audit=_word_audit(order))
        assert isinstance(order, SendProbe)
        return pb.HubMessage(probe=pb.Probe(nonce=entropy.new_id().int & 0xFFFFFFFF))

    def _word_prepare(self, order: PrepareOrder) -> pb.Prepare:
        seconds = self._settings.seat_token_seconds
        token = issue_seat_token(
            self._keyring, run_id=str(order.run_id), seat=order.seat, epoch=order.epoch, seconds=seconds
        )
        return pb.Prepare(
            epoch=order.epoch,
            spec_json=order.spec,
            placement=[to_location(each) for each in order.locations],
            checkpoint_step=order.checkpoint_step,
            checkpoints=[to_part(part) for part in order.parts],
            data=_word_data(order.data),
            mode="train",
            seat_token=token,
            seat_token_seconds=seconds,
            relay_address=self._settings.rpc_address,
        )


def _word_request(order: OpenOrder | AskOrder) -> pb.HubMessage:
    if isinstance(order, AskOrder):
        inputs = {name: to_tensor(tensor) for name, tensor in order.inputs.items()}
        infer = pb.InferOrder(
            checkpoint_step=order.step, epoch=order.epoch, number=order.number, replica=order.replica, inputs=inputs
        )
        return pb.HubMessage(infer=infer)
    opening = pb.OpenCheckpoint(
        epoch=order.epoch,
        checkpoint_step=order.step,
        checkpoints=[to_part(part) for part in order.parts],
        kept_steps=order.kept_steps,
    )
    return pb.HubMessage(open_checkpoint=opening)


def to_tensor(tensor: TensorBytes) -> pb.Tensor:
    return pb.Tensor(dtype=tensor.dtype, shape=tensor.shape, content=tensor.content)


def from_tensor(tensor: pb.Tensor) -> TensorBytes:
    return TensorBytes(tensor.dtype, tuple(tensor.shape), tensor.content)


def to_part(part: Part) -> pb.VNodeCheckpoint:
    return pb.VNodeCheckpoint(vnode_id=part.vnode_id, sha256=part.sha256.hex(), size_bytes=part.size_bytes)


def _word_data(data: Iterable[DataItem]) -> list[pb.DataRef]:
    return [pb.DataRef(sha256=item.sha256, size_bytes=item.size_bytes, format=item.format) for item in data]


def _word_audit(order: AuditOrder) -> pb.AuditOrder:
    told = pb.AuditOrder(
        audit_id=str(order.audit_id),
        epoch=order.epoch,
        seat=order.seat,
        from_step=order.from_step,
        until_step=order.until_step,
    )
    if isinstance(order, ReplayOrder):
        replay = pb.AuditReplay(
            spec_json=order.spec,
            placement=[to_location(each) for each in order.locations],
            checkpoints=[to_part(part) for part in order.parts],
            stored=[to_part(part) for part in order.stored],
            data=_word_data(order.data),
            logs={str(seat): sha256 for seat, sha256 in order.logs.items()},
            tolerant=order.tolerant,
        )
        told.replay.CopyFrom(replay)
    return told


def to_location(each: Location) -> pb.Location:
    return pb.Location(
        vnode_id=each.vnode_id,
        replica=each.replica,
        seat=each.seat,
        node_id=each.node_id,
        incarnation=each.incarnation,
        address=each.address,
    )


@dataclass(slots=True)
class Hosting:
    sessions: Sessions
    owner: RunOwner
    prices: PriceBook
    fetcher: Fetcher
    inference: InferenceDesk

    async def follow_market(self, pool: Pool) -> None:
        await follow(pool, self.prices, ())


def open_hosting(
    settings: HubSettings, pool: Pool, keyring: Keyring, blobs: LocalBlobs, reach: Reach, plugs: Plugs
) -> Hosting:
    card, _ = read_rate_card(settings.rate_card_file)
    prices = PriceBook(card, holdback_seconds=settings.holdback_seconds)
    sessions = Sessions(keyring, settings)

    async def dial(address: str, attempt_id: AttemptId, node_id: NodeId) -> bool:
        if plugs.is_out(node_id):
            # The cable is pulled for both directions: whoever cannot call is not found by a call, either.
            return False
        # The address was proven when the host came: it is the one that it called from.
        peer = address.rpartition(":")[0].strip("[]")
        secret = keyring.lease_secret(attempt_id)
        return bool(await reach.find_address(address, peer=peer, lease_secret=secret))

    owner = RunOwner(
        pool,
        settings,
        prices,
        blobs,
        sessions,
        owner_id=entropy.new_id(),
        address=settings.rpc_address,
        dial=dial,
    )
    return Hosting(sessions, owner, prices, Fetcher(blobs), InferenceDesk(pool, owner, sessions))
