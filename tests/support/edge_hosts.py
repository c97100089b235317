"""Hosts of a run without an engine: real `Edges` that keep what they hear, and the tokens that a hub would give."""

from __future__ import annotations

import asyncio
import contextlib
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from computepool.core.networks.placement import SeatId
from computepool.core.networks.spec import Dtype
from computepool.node.tokens import to_key_text
from computepool.node.vnodes.edges import Edges
from computepool.node.vnodes.frames import FrameHead, FrameKind, Refusal
from computepool.node.vnodes.wire_frames import Fault
from computepool.wire.nodes import HubKey
from computepool.wire.pb.computepool.v1 import networks_pb2 as pb

RUN = "0197f000-0000-7000-8000-000000000001"


@dataclass
class Signer:
    """A hub's key, for tests that need no hub."""

    key: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    kid: str = "test"

    @property
    def hub_keys(self) -> list[HubKey]:
        return [HubKey(kid=self.kid, public_key=to_key_text(self.key.public_key()))]

    def token(self, seat: str, epoch: Any = 1, *, run_id: str = RUN, seconds: int = 600, **changes: Any) -> str:
        now = int(time.time())
        claims = {"aud": run_id, "sub": seat, "epoch": epoch, "iat": now, "exp": now + seconds, **changes}
        headers = {"typ": "computepool-seat+jwt", "kid": self.kid}
        return jwt.encode(claims, self.key, algorithm="EdDSA", headers=headers)


def make_head(step: int = 1, micro_batch: int = 0, *, size: int = 4, **changes: Any) -> FrameHead:
    """A tensor of `size` bytes."""
    values: dict[str, Any] = {
        "run_id": RUN,
        "epoch": 1,
        "kind": FrameKind.ACTIVATION,
        "source": "front",
        "source_slot": 0,
        "target": "back",
        "target_slot": 0,
        "replica": 0,
        "incarnation": 1,
        "step": step,
        "micro_batch": micro_batch,
        "dtype": Dtype.BOOL,
        "shape": (size,),
        **changes,
    }
    return FrameHead(**values)


async def until(check: Callable[[], Any], what: str, *, seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < deadline, f"waited for {what}"
        await asyncio.sleep(0.005)
    return found


@dataclass
class Host:
    """One host: what it has heard, in order, and whom it has lost."""

    seat: SeatId
    signer: Signer
    refuse: Callable[[FrameHead], Refusal | None] = lambda head: None
    options: Mapping[str, Any] = field(default_factory=dict)
    run_id: str = RUN

    def __post_init__(self) -> None:
        self.heard: list[tuple[FrameHead, bytes]] = []
        self.lost: list[tuple[SeatId, str, float]] = []
        self.joined: list[tuple[SeatId, bool]] = []
        self.refused: list[tuple[FrameHead | None, Fault]] = []
        self.address = ""
        self.edges = Edges(
            run_id=self.run_id,
            seat=self.seat,
            hub_keys=self.signer.hub_keys,
            on_frame=self._hear,
            on_peer_lost=lambda seat, reason: self.lost.append((seat, reason, time.monotonic())),
            on_peer_joined=lambda seat, relayed: self.joined.append((seat, relayed)),
            on_refused=lambda seat, head, fault: self.refused.append((head, fault)),
            **self.options,
        )

    def _hear(self, seat: SeatId, head: FrameHead, content: bytearray) -> Refusal | None:
        refusal = self.refuse(head)
        if refusal is None:
            self.heard.append((head, bytes(content)))
        return refusal

    async def start(self, *, listens: bool = True) -> Host:
        if listens:
            self.address = await self.edges.start()
        return self

    def connect(self, *others: Host, epoch: int = 1, relay: str = "", token: str | None = None) -> None:
        routes = {each.seat: each.address for each in (self, *others)}
        self.edges.connect(epoch, token or self.signer.token(self.seat, epoch), routes, relay_address=relay)

    async def close(self) -> None:
        await self.edges.close()


def connect_all(*hosts: Host, epoch: int = 1, relay: str = "") -> None:
    for host in hosts:
        host.connect(*(each for each in hosts if each is not host), epoch=epoch, relay=relay)


class Stranger:
    """Speaks to a host frame by frame, as rightly or wrongly as a test wants."""

    def __init__(self, host: Host | str, seat: str, signer: Signer) -> None:
        self.target = host.seat if isinstance(host, Host) else ""
        self.seat, self.signer = seat, signer
        self.channel = grpc.aio.insecure_channel(host.address if isinstance(host, Host) else host)
        self.call = self.channel.stream_stream("/computepool.v1.EdgeService/Open")()

    def frame(self, kind: int = pb.FRAME_KIND_ACTIVATION, content: bytes = b"", **changes: Any) -> pb.Frame:
        """One that is right, with a tensor of these bytes, but for the changes."""
        values = {
            "run_id": RUN,
            "epoch": 1,
            "source_seat": self.seat,
            "target_seat": self.target,
            "kind": kind,
            "source": "front",
            "target": "back",
            "incarnation": 1,
            "dtype": "bool",
            "shape": [len(content)],
            "total_bytes": len(content),
            "crc": zlib.crc32(content),
            "content": content,
        }
        return pb.Frame(**{**values, **changes})

    def hello(self, **changes: Any) -> pb.Frame:
        values = {
            "run_id": RUN,
            "epoch": 1,
            "source_seat": self.seat,
            "target_seat": self.target,
            "kind": pb.FRAME_KIND_HELLO,
            "credits": 8,
            "version": pb.ApiVersion(major=1, minor=0),
        }
        given = {**values, **changes}
        given.setdefault("token", self.signer.token(self.seat, given["epoch"]))
        return pb.Frame(**given)

    async def say(self, frame: pb.Frame | bytes) -> None:
        """A stream that the host ends meanwhile takes no more; `hear` and `hear_refusal` tell how it ended."""
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self.call.write(frame if isinstance(frame, bytes) else frame.SerializeToString())

    async def hear(self, *kinds: int, seconds: float = 60.0) -> pb.Frame:
        """The next frame of one of these kinds."""
        async with asyncio.timeout(seconds):
            while True:
                raw = await self.call.read()
                assert raw is not grpc.aio.EOF, f"{await self.call.code()}: {await self.call.details()}"
                frame = pb.Frame.FromString(raw)
                if not kinds or frame.kind in kinds:
                    return frame

    async def hear_refusal(self, seconds: float = 60.0) -> tuple[str, str]:
        """The status with which the stream ends."""
        async with asyncio.timeout(seconds):
            with contextlib.suppress(grpc.aio.AioRpcError):
                while await self.call.read() is not grpc.aio.EOF:
                    pass
            return (await self.call.code()).name, await self.call.details()

    async def close(self) -> None:
        self.call.cancel()
        await self.channel.close()
