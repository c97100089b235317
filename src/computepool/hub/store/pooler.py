"""Living behind a transaction pooler such as PgBouncer: every transaction may run on another server.

What is left on a server between two transactions (a prepared statement, a setting, a lock, a LISTEN) is lost to us
and found by a stranger. So nothing is left there. How it works: docs/internals/connections.md.
"""

from __future__ import annotations

from enum import Enum
from functools import wraps
from typing import TYPE_CHECKING, Any

import asyncpg

if TYPE_CHECKING:
    _Connection = asyncpg.Connection[asyncpg.Record]
else:
    _Connection = asyncpg.Connection

# The driver's own words around a transaction: they must reach the server as they are.
_BOUNDARIES = ("BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE")


class Pooler(str, Enum):
    """What stands between a hub and its PostgreSQL."""

    AUTO = "auto"
    NONE = "none"
    TRANSACTION = "transaction"


async def is_behind_pooler(connection: Any) -> bool:
    """A pooler greets its clients with a process number of its own; a server tells its true one."""
    backend_pid = await connection.fetchval("SELECT pg_backend_pid()")
    return bool(backend_pid != connection.get_server_pid())


def _whole(method: Any) -> Any:
    """The same call in a transaction of its own, unless it is in one already.

    The driver speaks to the server several times for one statement: to parse it, to learn its types, to run it.
    Between transactions each of these could reach another server.
    """

    @wraps(method)
    async def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.is_in_transaction():
            return await method(self, *args, **kwargs)
        async with self.transaction():
            return await method(self, *args, **kwargs)

    return run


class TransactionalConnection(_Connection):
    """Every statement runs in a transaction, and every transaction brings its settings along.

    Open it with `statement_cache_size=0`: the driver then uses no named statements.
    """

    fetch = _whole(asyncpg.Connection.fetch)
    fetchrow = _whole(asyncpg.Connection.fetchrow)
    fetchval = _whole(asyncpg.Connection.fetchval)
    fetchmany = _whole(asyncpg.Connection.fetchmany)
    executemany = _whole(asyncpg.Connection.executemany)
    copy_records_to_table = _whole(asyncpg.Connection.copy_records_to_table)
    _execute_whole = _whole(asyncpg.Connection.execute)

    # Sent along with every BEGIN; costs no round trip.
    begin_with = ""

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> str:
        if args or not query.startswith(_BOUNDARIES):
            return str(await self._execute_whole(query, *args, timeout=timeout))
        if query.startswith("BEGIN"):
            query += self.begin_with
        return await super().execute(query, timeout=timeout)


def is_transactional(connection: Any) -> bool:
    """Whether it was opened for a life behind a pooler; also of one that is lent by a pool."""
    return hasattr(connection, "begin_with")


def transactional(*, lock_milliseconds: int) -> type[TransactionalConnection]:
    """The class for a pool: its transactions wait for a lock this long and no longer."""

    class Bounded(TransactionalConnection):
        begin_with = f" SET LOCAL lock_timeout = {lock_milliseconds:d};"

    return Bounded
