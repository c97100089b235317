"""What the process that serves gRPC is made of. Built once, in `main.py`, and handed to every call."""

from __future__ import annotations

from dataclasses import dataclass, field

import httpx

from computepool.hub.blobs.local import LocalBlobs
from computepool.hub.config import HubSettings
from computepool.hub.rpc.health import Health
from computepool.hub.rpc.hosting import Hosting
from computepool.hub.rpc.reach import Reach
from computepool.hub.rpc.relay import Relay
from computepool.hub.services.callers import Callers
from computepool.hub.services.keyring import Keyring
from computepool.hub.services.plugs import Plugs
from computepool.hub.services.rate_limits import RateLimits
from computepool.hub.store.connect import Pool


@dataclass(slots=True)
class RpcContext:
    settings: HubSettings
    pool: Pool
    keyring: Keyring
    callers: Callers
    blobs: LocalBlobs
    relay: Relay
    # The hub's own HTTP on this machine: node calls are passed on to it, so that there is one liveness.
    http: httpx.AsyncClient
    health: Health
    # The runs that this process owns, and the sessions of their hosts.
    hosting: Hosting
    reach: Reach = field(default_factory=Reach)
    # Of demos.
    plugs: Plugs = field(default_factory=Plugs)
    rate_limits: RateLimits = field(default_factory=RateLimits)
    # Set when the process is asked to end: streams finish what they are at and close.
    closing: bool = False
