"""One embedded PostgreSQL for the whole test run; every test that commits gets a database of its own."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from computepool.hub.store.migrate import migrate

_numbers = itertools.count(1)


@dataclass(frozen=True)
class TestServer:
    __test__ = False
    dsn: str

    def dsn_of(self, database: str) -> str:
        parts = urlsplit(self.dsn)
        return urlunsplit(parts._replace(path=f"/{database}"))

    async def create_template(self) -> None:
        await self._execute("CREATE DATABASE template_spine")
        await migrate(self.dsn_of("template_spine"))

    async def create_database(self) -> str:
        name = f"test_{next(_numbers)}"
        await self._execute(f"CREATE DATABASE {name} TEMPLATE template_spine")
        return self.dsn_of(name)

    async def drop_database(self, dsn: str) -> None:
        """To keep the folder small; where a process of the server stands in the way, the folder goes with it."""
        name = urlsplit(dsn).path.lstrip("/")
        with contextlib.suppress(asyncpg.PostgresError):
            await self._execute(f"DROP DATABASE {name} WITH (FORCE)")

    async def _execute(self, statement: str) -> None:
        conn = await asyncpg.connect(self.dsn)
        try:
            await conn.execute(statement)
        finally:
            await conn.close()


async def wait_for(check, *, seconds: float = 20.0, every: float = 0.05, what: str = "it"):
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
