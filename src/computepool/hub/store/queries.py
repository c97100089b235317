"""Loads the named queries of one noun from `sql/<noun>.sql`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiosql
from aiosql.adapters.asyncpg import AsyncPGAdapter

SQL_DIR = Path(__file__).parent / "sql"


class _Adapter(AsyncPGAdapter):
    """Runs queries on the connection it is given. aiosql's own looks first, each time, whether that is a pool, which
    takes longer than most of our queries take us."""

    def _order(self, query_name: str, parameters: dict[str, Any]) -> list[Any]:
        return [parameters[name] for name in self.var_sorted[query_name]]

    async def select(
        self, conn: Any, query_name: str, sql: str, parameters: Any, record_class: None = None
    ) -> AsyncIterator[Any]:
        for row in await conn.fetch(sql, *self._order(query_name, parameters)):
            yield row

    async def select_one(
        self, conn: Any, query_name: str, sql: str, parameters: Any, record_class: None = None
    ) -> Any:
        return await conn.fetchrow(sql, *self._order(query_name, parameters))

    async def select_value(self, conn: Any, query_name: str, sql: str, parameters: Any) -> Any:
        return await conn.fetchval(sql, *self._order(query_name, parameters))

    async def insert_update_delete(self, conn: Any, query_name: str, sql: str, parameters: Any) -> Any:
        return await conn.execute(sql, *self._order(query_name, parameters))


def load_queries(noun: str) -> Any:
    # Not a protocol class by its declaration, and one in fact.
    adapter: Any = _Adapter
    return aiosql.from_path(SQL_DIR / f"{noun}.sql", adapter, mandatory_parameters=False)
