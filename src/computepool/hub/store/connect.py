"""Opens connections and the pool, with or without a pooler in between. Everything that waits has a timeout."""

from __future__ import annotations

from typing import Any, TypeAlias
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg
import msgspec
from asyncpg.pool import PoolConnectionProxy

from computepool.core.errors import StoreError
from computepool.hub.store.pooler import Pooler, TransactionalConnection, is_behind_pooler, transactional

CONNECT_SECONDS = 10
COMMAND_SECONDS = 30
# No transaction of ours holds a row for this long; whoever waits longer steps back and tries again.
LOCK_MILLISECONDS = 500
APPLICATION_NAME = "computepool-hub"

# Of which our statements take or give lists.
LISTED_TYPES = (
    "uuid",
    "integer",
    "smallint",
    "bigint",
    "double precision",
    "boolean",
    "bytea",
    "timestamptz",
    "jsonb",
)

# How the database says that a lock could not be had.
BLOCKED = (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError)

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]"
Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"


async def connect(dsn: str, *, command_seconds: float = COMMAND_SECONDS) -> TransactionalConnection:
    """One connection, for what is done seldom: it works behind a pooler too, at the price of more round trips."""
    return await asyncpg.connect(
        _known_to_driver(dsn),
        timeout=CONNECT_SECONDS,
        command_timeout=command_seconds,
        connection_class=TransactionalConnection,
        statement_cache_size=0,
        server_settings={"application_name": APPLICATION_NAME},
    )


async def create_pool(dsn: str, *, size_max: int, pooler: Pooler = Pooler.AUTO, keeps_plans: bool = False) -> Pool:
    """`keeps_plans` is for the few statements that are run all day, with lists of any length: to plan them takes the
    server longer than to run them, and left to itself it plans them anew for every list. What people ask, with one
    filter or another, is planned for what they ask."""
    try:
        return await asyncpg.create_pool(
            _known_to_driver(dsn),
            min_size=min(2, size_max),
            max_size=size_max,
            timeout=CONNECT_SECONDS,
            command_timeout=COMMAND_SECONDS,
            init=_prepare,
            reset=_keep,
            **(_behind_pooler() if await _finds_pooler(dsn, pooler) else _at_the_server(keeps_plans=keeps_plans)),
        )
    except asyncpg.ProtocolViolationError as error:
        if "startup parameter" not in str(error):
            raise
        raise StoreError(
            f"What answers at DATABASE_URL is a pooler and not PostgreSQL itself ({error}). "
            "Set COMPUTEPOOL_HUB_DATABASE_POOLER to transaction, or leave it out."
        ) from error


async def _finds_pooler(dsn: str, pooler: Pooler) -> bool:
    if pooler is not Pooler.AUTO:
        return pooler is Pooler.TRANSACTION
    connection = await connect(dsn)
    try:
        return await is_behind_pooler(connection)
    finally:
        await connection.close()


def _known_to_driver(dsn: str) -> str:
    """Hosted databases put `channel_binding` into their URLs; the driver would take it for a server's setting."""
    parts = urlsplit(dsn)
    options = parse_qsl(parts.query, keep_blank_values=True)
    if ("channel_binding", "require") in options:
        raise StoreError(
            "DATABASE_URL asks for channel_binding=require, which the driver cannot give. Remove it, and use "
            "sslmode=verify-full to be sure of the server's identity."
        )
    if not any(name == "channel_binding" for name, _ in options):
        return dsn
    kept = [(name, value) for name, value in options if name != "channel_binding"]
    return urlunsplit(parts._replace(query=urlencode(kept, safe="/,")))


def _at_the_server(*, keeps_plans: bool) -> dict[str, Any]:
    return {
        "server_settings": {
            "application_name": APPLICATION_NAME,
            "lock_timeout": f"{LOCK_MILLISECONDS}ms",
            # Plans are kept, and those made while a table was small would read all of it for ever after.
            "enable_seqscan": "off",
            # Our statements take less time than it does to compile them.
            "jit": "off",
            **({"plan_cache_mode": "force_generic_plan"} if keeps_plans else {}),
        }
    }


def _behind_pooler() -> dict[str, Any]:
    # The one setting that poolers know how to carry along; the others travel with each transaction.
    return {
        "connection_class": transactional(lock_milliseconds=LOCK_MILLISECONDS),
        "statement_cache_size": 0,
        "server_settings": {"application_name": APPLICATION_NAME},
    }


async def _prepare(connection: Any) -> None:
    await connection.set_type_codec("jsonb", encoder=_to_json, decoder=msgspec.json.decode, schema="pg_catalog")
    await _learn_types(connection)


async def _learn_types(connection: Any) -> None:
    """The driver looks up lists, and types of ours, when it first meets them on a connection. That takes
    milliseconds, so it is done now and not while somebody waits for an answer."""
    rows = await connection.fetch(
        "SELECT oid::regtype::text AS name FROM pg_type"
        " WHERE typtype = 'e' AND typnamespace = current_schema()::regnamespace"
    )
    ours = [row["name"] for row in rows]
    lists = [f"{name}[]" for name in (*LISTED_TYPES, *ours)]
    await connection.fetch("SELECT " + ", ".join(f"NULL::{name}" for name in (*ours, *lists)))


async def _keep(connection: Any) -> None:
    """Nothing of ours outlives its transaction, so there is nothing to reset: a round trip less for every use."""


def _to_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
