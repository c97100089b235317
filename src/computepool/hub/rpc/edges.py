"""EdgeService at the hub: the relay. Hosts that cannot dial each other meet here."""

from __future__ import annotations

from typing import Any

from computepool.hub.rpc.auth import Access
from computepool.hub.rpc.routing import Call, Rpcs

rpcs = Rpcs("EdgeService")


@rpcs.add("Open", Access.SEAT, raw=True)
async def open_stream(call: Call, _: Any) -> None:
    await call.rpc.relay.carry(call.stream)
