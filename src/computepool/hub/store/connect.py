"""Opens connections and the pool. Everything that waits has a timeout."""

from __future__ import annotations

from typing import Any, TypeAlias

import asyncpg
import msgspec
from asyncpg.pool import PoolConnectionProxy

CONNECT_SECONDS = 10
COMMAND_SECONDS = 30
# No transaction of ours holds a row for this long; whoever waits longer steps back and tries again.
LOCK_MILLISECONDS = 500

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]"
Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"


async def connect(dsn: str) -> asyncpg.Connection[asyncpg.Record]:
    return await asyncpg.connect(dsn, timeout=CONNECT_SECONDS, command_timeout=COMMAND_SECONDS)


async def create_pool(dsn: str, *, size_max: int) -> Pool:
    return await asyncpg.create_pool(
        dsn,
        min_size=2,
        max_size=size_max,
        timeout=CONNECT_SECONDS,
        command_timeout=COMMAND_SECONDS,
        init=_prepare,
        reset=_keep,
        server_settings={"application_name": "computepool-hub", "lock_timeout": f"{LOCK_MILLISECONDS}ms"},
    )


async def _prepare(connection: Any) -> None:
    await connection.set_type_codec("jsonb", encoder=_to_json, decoder=msgspec.json.decode, schema="pg_catalog")


async def _keep(connection: Any) -> None:
    """Nothing of ours outlives its transaction, so there is nothing to reset: a round trip less for every use."""


def _to_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
