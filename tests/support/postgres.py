"""One embedded PostgreSQL for the whole test run; every test that commits gets a database of its own.

With TEST_POOLER=pgbouncer (`make test/pgbouncer`) everything of ours reaches it through a PgBouncer. What a test does
by itself stays direct, so that it sees the database as it is; `through_pooler` stands where ours begins.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import itertools
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from computepool.hub.store.migrate import migrate
from tests.support.pgbouncer import PLAIN_ROLE, PgBouncer

_numbers = itertools.count(1)
MEMORY = Path("/dev/shm")
# Two servers side by side with their logs, and room for whoever shares the machine.
MEMORY_BYTES_MIN = 4 << 30
# (where the test's server is, the PgBouncer before it): at most one, started with the server.
_poolers: list[tuple[str, PgBouncer]] = []


def memory_folder() -> Path | None:
    """Where files are made without a disk, or None for the usual place. A database is some 320 files and every test
    makes one: on a disk that was 0.4 s of a core for each, which is most of what the store's tests took."""
    with contextlib.suppress(OSError):
        if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES_MIN:
            return MEMORY
    return None


@dataclass(frozen=True)
class TestServer:
    __test__ = False
    dsn: str

    def dsn_of(self, database: str) -> str:
        parts = urlsplit(self.dsn)
        return urlunsplit(parts._replace(path=f"/{database}"))

    def superuser_dsn(self, database: str = "postgres") -> str:
        return urlunsplit(urlsplit(self.dsn_of(database))._replace(netloc="postgres@"))

    async def create_template(self) -> None:
        if goes_through_pgbouncer():
            pooler = PgBouncer(self.dsn).start()
            atexit.register(pooler.stop)
            _poolers.append((urlsplit(self.dsn).query, pooler))
        await self._execute("CREATE DATABASE template_spine")
        await migrate(self.dsn_of("template_spine"))

    async def forget_power_cuts(self) -> None:
        """Every test writes a database of its own and drops it: most of the time of the store's tests was spent on
        the disk. Whoever kills a server kills one of its own, and that one keeps what it promised."""
        async with connected(self.superuser_dsn()) as conn:
            with Path(await conn.fetchval("SHOW config_file")).open("a") as settings:
                settings.write("fsync = off\nfull_page_writes = off\n")
            await conn.execute("SELECT pg_reload_conf()")

    async def create_database(self) -> str:
        """Copied file by file: the other way writes every page into the log of changes too."""
        name = f"test_{next(_numbers)}"
        await self._execute(f"CREATE DATABASE {name} TEMPLATE template_spine STRATEGY file_copy")
        return self.dsn_of(name)

    async def create_plain_database(self) -> str:
        """An empty one, and its owner's login: a role that may do nothing else."""
        async with connected(self.superuser_dsn()) as conn:
            if not await conn.fetchval("SELECT count(*) FROM pg_roles WHERE rolname = $1", PLAIN_ROLE):
                await self._admit(conn, PLAIN_ROLE)
            name = f"plain_{next(_numbers)}"
            await conn.execute(f"CREATE DATABASE {name} OWNER {PLAIN_ROLE}")
        return urlunsplit(urlsplit(self.dsn_of(name))._replace(netloc=f"{PLAIN_ROLE}@"))

    async def _admit(self, conn: asyncpg.Connection, role: str) -> None:
        """The embedded server lets only its own two roles in; this one comes by the same private socket."""
        await conn.execute(f"CREATE ROLE {role} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE")
        rules = Path(await conn.fetchval("SHOW hba_file"))
        rules.write_text(f"local all {role} trust\n{rules.read_text()}")
        await conn.execute("SELECT pg_reload_conf()")

    async def drop_database(self, dsn: str) -> None:
        """To keep the folder small; where a process of the server stands in the way, the folder goes with it."""
        name = urlsplit(dsn).path.lstrip("/")
        with contextlib.suppress(asyncpg.PostgresError):
            async with connected(self.superuser_dsn()) as conn:
                await conn.execute(f"DROP DATABASE {name} WITH (FORCE)")

    async def _execute(self, statement: str) -> None:
        async with connected(self.dsn) as conn:
            await conn.execute(statement)


@contextlib.asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    conn = await asyncpg.connect(dsn)
    try:
        yield conn
    finally:
        await conn.close()


def goes_through_pgbouncer() -> bool:
    pooler = os.environ.get("TEST_POOLER", "")
    assert pooler in ("", "pgbouncer"), f"TEST_POOLER={pooler}: only pgbouncer is known"
    return pooler == "pgbouncer"


def through_pooler(dsn: str) -> str:
    """How a hub reaches this database: directly, or through the PgBouncer of this test run."""
    for query, pooler in _poolers:
        if urlsplit(dsn).query == query:
            return pooler.through(dsn)
    return dsn


async def wait_for(check, *, seconds: float = 60.0, every: float = 0.05, what: str = "it"):
    """Polls an async or plain condition until it is true; fails with what was waited for."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        result = check()
        if asyncio.iscoroutine(result):
            result = await result
        if result:
            return result
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"waited {seconds} s for {what}")
        await asyncio.sleep(every)
