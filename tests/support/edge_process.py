"""A host in a process of its own, to be killed: says `linked` once it has heard a tensor, and goes on for ever.

Usage: python -m tests.support.edge_process SEAT LISTENS; a line of JSON on standard input tells it the rest.
"""

from __future__ import annotations

import asyncio
import json
import sys

from computepool.core.networks.placement import SeatId
from computepool.node.vnodes.edges import Edges
from computepool.wire.nodes import HubKey


async def main() -> None:
    seat, listens = SeatId(sys.argv[1]), sys.argv[2] == "listens"
    told = json.loads(sys.stdin.readline())
    edges = Edges(
        run_id=told["run_id"],
        seat=seat,
        hub_keys=[HubKey(**key) for key in told["hub_keys"]],
        on_frame=lambda seat, head, content: print("heard", head.step, flush=True),
        on_peer_lost=lambda seat, reason: print("lost", seat, reason, flush=True),
    )
    address = await edges.start() if listens else ""
    print(address, flush=True)
    routes = json.loads(sys.stdin.readline())
    edges.connect(told["epoch"], told["token"], routes, relay_address=told["relay"])
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
