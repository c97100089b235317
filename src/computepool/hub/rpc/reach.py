"""Whether a host can be dialled: the hub dials back before it gives an address to others.

Only the machine that the call came from is dialled, so that nobody can send the hub to look at other people's ports;
and the answer must prove who gave it.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from computepool import entropy
from computepool.core.errors import InvalidRequest
from computepool.wire.pb.computepool.v1 import networks_pb2 as pb
from computepool.wire.rpc import CHANNEL_OPTIONS, prove_address

log = logging.getLogger("computepool.rpc")

DIAL_SECONDS = 2.0
PORT_MIN = 1_024
# Hosts that are dialled back at a time.
DIALLED_MAX = 64


def check_address(address: str, *, peer: str) -> str:
    """The address as it may be dialled: at the machine that calls, `peer`. Raises InvalidRequest.

    A host that listens on every address of its machine says `0.0.0.0` or leaves the host part out: it cannot know how
    others see it, but the hub does.
    """
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or not PORT_MIN <= int(port) <= 65_535:
        raise InvalidRequest(f"{address[:80]!r} is no address to dial: use host:port, the port {PORT_MIN} or above.")
    try:
        seen = ipaddress.ip_address(peer)
        named = ipaddress.ip_address(host.strip("[]")) if host else seen
    except ValueError:
        raise InvalidRequest(f"{address[:80]!r} is no address to dial: the host must be an IP address.") from None
    if named != seen and not named.is_unspecified:
        raise InvalidRequest(f"The address {address[:80]} is not the one that this call comes from ({seen}).")
    return f"[{seen}]:{port}" if seen.version == 6 else f"{seen}:{port}"


class Reach:
    def __init__(self) -> None:
        self._dialling = asyncio.Semaphore(DIALLED_MAX)

    async def find_address(self, address: str, *, peer: str, lease_secret: str) -> str:
        """The address that other hosts may dial; empty when the hub could not, or when there is none.

        `peer` is the IP address that the host calls from, `lease_secret` what it alone knows besides the hub.
        """
        if not address:
            return ""
        try:
            dialled = check_address(address, peer=peer)
        except InvalidRequest as error:
            log.info("host_not_dialled reason=%s", error.message)
            return ""
        nonce = entropy.new_secret(24)
        try:
            async with self._dialling, asyncio.timeout(DIAL_SECONDS):
                answer = await _probe(dialled, nonce)
        except (TimeoutError, grpc.aio.AioRpcError, DecodeError) as error:
            log.info("host_not_reachable address=%s error=%s", dialled, type(error).__name__)
            return ""
        if not hmac.compare_digest(answer.encode(), prove_address(lease_secret, nonce).encode()):
            log.warning("host_not_proven address=%s", dialled)
            return ""
        return dialled


async def _probe(address: str, nonce: str) -> str:
    options: Any = (*CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1))
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        call = channel.stream_stream("/computepool.v1.EdgeService/Open")()
        try:
            await call.write(pb.Frame(kind=pb.FRAME_KIND_PROBE, token=nonce).SerializeToString())
            raw = await call.read()
            return "" if raw is grpc.aio.EOF else pb.Frame.FromString(raw).token
        finally:
            call.cancel()
