"""Streams to the other hosts of a run: one for each peer, dialled directly or tied together by the hub's relay.

Knows how to reach a peer, when it is gone, and how to reach it again. Who may speak and what is made of it:
`links.py`; in which order, and how much may be under way: `credits.py`. Runs on one event loop and belongs to it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from computepool import clock, entropy
from computepool.core.errors import VersionMismatch
from computepool.core.networks.placement import SeatId
from computepool.node import journal
from computepool.node.vnodes.credits import WINDOW, WINDOW_MAX, Parcel
from computepool.node.vnodes.frames import FrameHead, FrameLimits
from computepool.node.vnodes.links import Guard, HelloRefused, Link, OnFrame, OnRefused, Peer
from computepool.node.vnodes.wire_frames import PROBE, MalformedFrame, decode_frame, encode_head, key_of
from computepool.wire.grpc_poller import keep_poller
from computepool.wire.nodes import HubKey
from computepool.wire.rpc import CHANNEL_OPTIONS, HELLO_SECONDS, SERVER_OPTIONS, prove_address

SERVICE, OPEN = "computepool.v1.EdgeService", "Open"
# A host that can be dialled is reached sooner; after this the relay is tried.
DIAL_SECONDS = 3.0
# A host that was reached answers once it is prepared itself.
ANSWER_SECONDS = 30.0
# How long a host that is to be dialled waits for that before it goes to the relay, too.
AWAIT_SECONDS = 4.0
WATCH_SECONDS = 1.0
# How often a direct stream is tried while the relay carries.
UPGRADE_SECONDS = 30.0
# After a stream that lasted this long, the next is dialled at once; otherwise after a pause that grows.
SETTLED_SECONDS = 2.0
BACKOFF_SECONDS = 0.1
BACKOFF_SECONDS_MAX = 5.0
# Streams at a time: every peer's, and those that have not yet said who they are.
STREAMS_MAX = 2_048

# A peer's stream has ended though nobody here ended it; the text says how.
OnPeerLost = Callable[[SeatId, str], None]
# A peer can be reached; the second says whether by the relay.
OnPeerJoined = Callable[[SeatId, bool], None]


@dataclass(frozen=True, slots=True)
class Tls:
    """How to know the hub: by these root certificates (PEM), or by those of the machine."""

    roots: bytes | None = None


@dataclass(frozen=True, slots=True)
class PeerView:
    """For beats, logs and people."""

    seat: SeatId
    linked: bool
    relayed: bool
    epoch: int
    sent_bytes: int
    received_bytes: int
    # Why there is no stream, as far as is known.
    trouble: str


def open_channel(address: str, tls: Tls | None = None) -> Any:
    """A connection of its own: a stream that is held up must not hold up another."""
    keep_poller()
    options = (*CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1))
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(tls.roots), options=options)


class Edges:
    def __init__(
        self,
        *,
        run_id: str,
        seat: SeatId,
        hub_keys: Sequence[HubKey],
        on_frame: OnFrame,
        on_peer_lost: OnPeerLost,
        on_peer_joined: OnPeerJoined = lambda seat, relayed: None,
        on_refused: OnRefused = lambda seat, head, fault: None,
        lease_secret: str = "",
        window: int = WINDOW,
        holds_credits: bool = False,
        limits: FrameLimits | None = None,
        relay_tls: Tls | None = None,
    ) -> None:
        """`lease_secret` answers the hub's probes. With `holds_credits`, a tensor's credit goes back when `release`
        is called for it; otherwise as soon as `on_frame` has taken it."""
        self._guard = Guard(run_id, seat, list(hub_keys))
        self._on_frame = on_frame
        self._on_peer_lost = on_peer_lost
        self._on_peer_joined = on_peer_joined
        self._on_refused = on_refused
        self._lease_secret = lease_secret
        self._window = max(1, min(window, WINDOW_MAX))
        self._holds_credits = holds_credits
        self._limits = limits or FrameLimits()
        self._relay_tls = relay_tls
        self._server: Any = None
        self._epoch = 0
        self._entered = asyncio.Event()
        self._token = ""
        self._own_address = ""
        self._relay_address = ""
        self._peers: dict[SeatId, Peer] = {}
        self._keeping: dict[SeatId, asyncio.Task[None]] = {}
        self._conversing: set[asyncio.Task[None]] = set()

    async def start(self, listen: str = "127.0.0.1:0") -> str:
        """Listens for other hosts. Returns the address with the port that it got."""
        keep_poller()
        server = grpc.aio.server(options=SERVER_OPTIONS, maximum_concurrent_rpcs=STREAMS_MAX)
        answer = grpc.stream_stream_rpc_method_handler(self._serve)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {OPEN: answer}),))
        port = server.add_insecure_port(listen)
        await server.start()
        self._server = server
        return f"{listen.rpartition(':')[0]}:{port}"

    def connect(self, epoch: int, token: str, routes: Mapping[SeatId, str], *, relay_address: str = "") -> None:
        """Enters an epoch: who takes part, where each can be dialled (empty: by relay), our own seat among them.

        Streams to those who stay are kept, and told of the new epoch; what was under way in an older one is dropped.
        """
        self._epoch, self._token = epoch, token
        self._entered.set()
        self._own_address = routes.get(self._guard.seat, "")
        self._relay_address = relay_address
        for seat in [seat for seat in self._peers if seat not in routes]:
            self._drop_peer(seat)
        for seat, address in routes.items():
            if seat != self._guard.seat:
                self._refresh_peer(seat, address)

    def renew(self, token: str) -> None:
        """A fresh token for the same epoch."""
        self._token = token

    def trust(self, hub_keys: Sequence[HubKey]) -> None:
        """The hub's keys have changed: tokens that others show are judged by these."""
        self._guard.hub_keys = list(hub_keys)

    def post(self, seat: SeatId, head: FrameHead, content: bytes | bytearray | memoryview) -> None:
        """Puts a tensor on its way, whether or not the peer can be reached now. Raises OutboxFull, or KeyError for a
        seat that has no part in the run. One of an older epoch is dropped: nobody wants it."""
        if head.epoch < self._epoch:
            return
        peer = self._peers[seat]
        prefix = encode_head(head, source_seat=self._guard.seat, target_seat=seat)
        # Copied: whoever computed it may use that memory again, and it may have to be sent twice.
        peer.outbox.post(Parcel(key_of(head), head, prefix, memoryview(bytes(content))))
        peer.wake()

    async def send(self, seat: SeatId, head: FrameHead, content: bytes | bytearray | memoryview) -> None:
        """As `post`, but waits while a window of tensors of this edge and kind waits already."""
        lane = key_of(head).lane
        while (peer := self._peers[seat]).outbox.count_waiting(lane) >= peer.outbox.window:
            peer.room.clear()
            await peer.room.wait()
        self.post(seat, head, content)

    def release(self, seat: SeatId, head: FrameHead) -> None:
        """The engine has used this tensor up; needed only with `holds_credits`."""
        peer = self._peers.get(seat)
        if peer is not None:
            peer.release(key_of(head))

    def describe(self) -> list[PeerView]:
        return [
            PeerView(
                peer.seat,
                linked=peer.link is not None,
                relayed=peer.link is not None and peer.link.relayed,
                epoch=peer.link.hello.epoch if peer.link else 0,
                sent_bytes=peer.sent_bytes,
                received_bytes=peer.received_bytes,
                trouble=peer.trouble,
            )
            for peer in self._peers.values()
        ]

    async def close(self) -> None:
        ending = [*self._keeping.values(), *self._conversing]
        for seat in list(self._peers):
            self._drop_peer(seat)
        await asyncio.gather(*ending, return_exceptions=True)
        if self._server is not None:
            await self._server.stop(0.2)

    # Peers come and go.

    def _refresh_peer(self, seat: SeatId, address: str) -> None:
        peer = self._peers.get(seat) or self._add_peer(seat)
        if peer.address != address:
            # Somebody else has the seat, or it has moved: nobody comes where it was waited for so far.
            peer.address = address
            peer.close_link()
            waiting = self._keeping.pop(seat, None)
            if waiting is not None:
                waiting.cancel()
        peer.enter(self._epoch, self._hello(peer))
        if seat not in self._keeping:
            self._keeping[seat] = asyncio.create_task(self._keep_linked(peer))

    def _add_peer(self, seat: SeatId) -> Peer:
        peer = self._peers[seat] = Peer(
            seat,
            self._guard,
            self._on_frame,
            self._on_refused,
            self._limits,
            window=self._window,
            holds_credits=self._holds_credits,
        )
        return peer

    def _drop_peer(self, seat: SeatId) -> None:
        peer = self._peers.pop(seat)
        peer.close_link()
        peer.room.set()
        keeping = self._keeping.pop(seat, None)
        if keeping is not None:
            keeping.cancel()

    def _hello(self, peer: Peer) -> bytes:
        return peer.words.hello(epoch=self._epoch, token=self._token, window=self._window)

    # Every peer is reached by one way or another.

    async def _keep_linked(self, peer: Peer) -> None:
        """As long as the peer takes part: whenever there is no stream, every way to one, one after the other."""
        pause_seconds = BACKOFF_SECONDS
        while True:
            for way in self._list_ways(peer):
                if peer.link is None:
                    await _until_joined(peer, way(peer))
            began = clock.seconds()
            await self._watch(peer)
            if clock.seconds() - began >= SETTLED_SECONDS:
                pause_seconds = BACKOFF_SECONDS
                continue
            await asyncio.sleep(pause_seconds * (0.5 + entropy.jitter() / 2))
            pause_seconds = min(2 * pause_seconds, BACKOFF_SECONDS_MAX)

    async def _watch(self, peer: Peer) -> None:
        """While there is a stream. One through the relay is given up for a direct one once that works."""
        dial_at = clock.seconds() + UPGRADE_SECONDS
        while (link := peer.link) is not None:
            with contextlib.suppress(asyncio.TimeoutError):
                async with asyncio.timeout(WATCH_SECONDS):
                    await peer.lost.wait()
            if link.relayed and self._dials(peer) and clock.seconds() > dial_at:
                peer.settled.clear()
                try:
                    await self._dial_directly(peer)
                finally:
                    peer.settled.set()
                dial_at = clock.seconds() + UPGRADE_SECONDS

    def _dials(self, peer: Peer) -> bool:
        """Both hosts of a pair know both addresses, so both come to the same: one of them dials."""
        return bool(peer.address) and (not self._own_address or self._guard.seat < peer.seat)

    def _list_ways(self, peer: Peer) -> list[Callable[[Peer], Coroutine[Any, Any, None]]]:
        ways: list[Callable[[Peer], Coroutine[Any, Any, None]]] = []
        if self._dials(peer):
            ways.append(self._dial_directly)
        elif self._own_address:
            ways.append(_await_call)
        if self._relay_address:
            ways.append(self._dial_relay)
        return ways

    async def _dial_directly(self, peer: Peer) -> None:
        await self._dial(peer, open_channel(peer.address), relayed=False)

    async def _dial_relay(self, peer: Peer) -> None:
        await self._dial(peer, open_channel(self._relay_address, self._relay_tls), relayed=True)

    async def _dial(self, peer: Peer, channel: Any, *, relayed: bool) -> None:
        """Returns when both have said hello, or when it came to nothing."""
        link: Link | None = None
        call: Any = None
        try:
            async with asyncio.timeout(DIAL_SECONDS):
                await _connect(channel)
            call = channel.stream_stream(f"/{SERVICE}/{OPEN}")()
            said = self._epoch
            async with asyncio.timeout(ANSWER_SECONDS):
                raw = await _exchange(call, self._hello(peer))
            if raw is grpc.aio.EOF:
                # The status says why.
                raise ConnectionError(f"{(await call.code()).name}: {await call.details()}")
            hello = self._guard.read_hello(raw)
            if hello.seat != peer.seat:
                raise HelloRefused("another seat answers at this address")
            link = Link(_reader(call.read), call.write, relayed, hello)
        except TimeoutError:
            peer.trouble = "no answer in time"
        except (grpc.aio.AioRpcError, ConnectionError, HelloRefused, VersionMismatch) as error:
            peer.trouble = _tell(error)
        finally:
            if link is None:
                journal.info("peer_not_reached", seat=peer.seat, relayed=relayed, reason=peer.trouble)
                if call is not None:
                    call.cancel()
                await channel.close()
        if link is not None:
            if self._epoch > said:
                # It has grown while we said hello.
                link.say(self._hello(peer))
            self._join(peer, link)
            task = asyncio.create_task(self._converse_dialled(peer, link, call, channel))
            self._conversing.add(task)
            task.add_done_callback(self._conversing.discard)

    async def _converse_dialled(self, peer: Peer, link: Link, call: Any, channel: Any) -> None:
        try:
            await self._converse(peer, link)
        finally:
            call.cancel()
            await channel.close()

    async def _serve(self, _: Any, stream: Any) -> None:
        """Whoever dials us: another host, or the hub that wants to know whether we can be dialled."""
        refusal: tuple[grpc.StatusCode, str]
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                raw = await stream.read()
            if raw is grpc.aio.EOF:
                return
            if self._is_probe(raw):
                await stream.write(self._answer_probe(raw))
                return
            # A neighbour may be prepared before us.
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._entered.wait()
            peer, link = self._welcome(raw, stream)
        except TimeoutError:
            refusal = (
                grpc.StatusCode.DEADLINE_EXCEEDED,
                f"no hello within {HELLO_SECONDS:.0f} s, or none to answer it",
            )
        except VersionMismatch as error:
            refusal = (grpc.StatusCode.FAILED_PRECONDITION, error.message)
        except HelloRefused as error:
            refusal = (grpc.StatusCode.PERMISSION_DENIED, str(error))
        else:
            link.say(self._hello(peer))
            self._join(peer, link)
            await self._converse(peer, link)
            return
        journal.warning("stream_refused", peer=stream.peer(), reason=refusal[1])
        await stream.abort(*refusal)

    def _welcome(self, raw: bytes, stream: Any) -> tuple[Peer, Link]:
        hello = self._guard.read_hello(raw)
        peer = self._peers.get(hello.seat)
        if peer is None:
            if hello.epoch <= self._epoch or len(self._peers) >= STREAMS_MAX:
                raise HelloRefused(f"seat {hello.seat} has no part in epoch {self._epoch} of this run")
            # It has heard of the new epoch before us; we shall, too.
            peer = self._add_peer(hello.seat)
        if peer.link is not None and peer.link.hello.epoch > hello.epoch:
            raise HelloRefused(f"seat {hello.seat} is here already, in epoch {peer.link.hello.epoch}")
        return peer, Link(_reader(stream.read), stream.write, relayed=False, hello=hello)

    @staticmethod
    def _is_probe(raw: bytes) -> bool:
        try:
            return decode_frame(raw).kind == PROBE
        except MalformedFrame:
            return False

    def _answer_probe(self, raw: bytes) -> bytes:
        probe = decode_frame(raw)
        probe.token = prove_address(self._lease_secret, probe.token)
        return probe.SerializeToString()

    def _join(self, peer: Peer, link: Link) -> None:
        peer.join(link)
        journal.info("peer_joined", seat=peer.seat, relayed=link.relayed, epoch=link.hello.epoch)
        self._on_peer_joined(peer.seat, link.relayed)

    async def _converse(self, peer: Peer, link: Link) -> None:
        reason = "the stream was cut"
        try:
            reason = await peer.converse(link)
            # The peer leaves the relay as soon as it has our direct call: maybe before we have its answer to that.
            await peer.settled.wait()
        finally:
            if peer.part(link, reason) and not link.closing.is_set():
                journal.warning("peer_lost", seat=peer.seat, reason=reason)
                self._on_peer_lost(peer.seat, reason)


async def _await_call(peer: Peer) -> None:
    """The peer dials us."""
    with contextlib.suppress(asyncio.TimeoutError):
        async with asyncio.timeout(AWAIT_SECONDS):
            await peer.joined.wait()


async def _connect(channel: Any) -> None:
    """Raises ConnectionError as soon as it is clear that nobody can be reached there."""
    state = channel.get_state(try_to_connect=True)
    while state is not grpc.ChannelConnectivity.READY:
        if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
            raise ConnectionError("nobody can be reached at this address")
        await channel.wait_for_state_change(state)
        state = channel.get_state(try_to_connect=True)


async def _exchange(call: Any, hello: bytes) -> Any:
    await call.write(hello)
    return await call.read()


async def _until_joined(peer: Peer, way: Coroutine[Any, Any, None]) -> None:
    """Until this way has come to its end, or the peer has come by another."""
    trying = asyncio.create_task(way)
    joined = asyncio.create_task(peer.joined.wait())
    try:
        await asyncio.wait({trying, joined}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        trying.cancel()
        joined.cancel()
        await asyncio.gather(trying, joined, return_exceptions=True)


def _reader(read: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[bytes | None]]:
    async def read_frame() -> bytes | None:
        try:
            raw = await read()
        except grpc.aio.AioRpcError as error:
            raise ConnectionError(_tell(error)) from None
        return None if raw is grpc.aio.EOF else raw

    return read_frame


def _tell(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error)
