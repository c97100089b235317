"""The standard gRPC health service: serving while the database answers, not serving once the end has begun."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from computepool.hub.services.readiness import check_database
from computepool.hub.store.connect import Pool

log = logging.getLogger("computepool.rpc")

CHECK_SECONDS = 2.0
# The whole server, as the health protocol names it.
SERVER = ""


class Health:
    def __init__(self, services: Iterable[str]) -> None:
        self._servicer = health.aio.HealthServicer()
        self._names = (SERVER, *services)
        self._serving: bool | None = None

    def add_to(self, server: Any) -> None:
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    async def watch(self, pool: Pool) -> None:
        """Asks the database again and again, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(2 * CHECK_SECONDS):
                    await check_database(pool)
                await self.tell(serving=True)
            except Exception as error:
                if self._serving is not False:
                    log.warning("rpc_not_serving error=%r", error)
                await self.tell(serving=False)
            await asyncio.sleep(CHECK_SECONDS)

    async def tell(self, *, serving: bool) -> None:
        if serving is self._serving:
            return
        self._serving = serving
        told = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in self._names:
            await self._servicer.set(name, told)

    async def end(self) -> None:
        """For good: nothing said later counts."""
        self._serving = False
        await self._servicer.enter_graceful_shutdown()
