"""Every named query fits the migrated schema: names, types and parameters, as PostgreSQL itself reads them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest
import pytest_asyncio

from computepool.hub.store.queries import SQL_DIR, load_queries
from tests.support.postgres import TestServer

FILES = sorted(SQL_DIR.glob("*.sql"))
QUERIES = [
    pytest.param(getattr(load_queries(file.stem), name).sql, id=f"{file.stem}.{name}")
    for file in FILES
    for name in load_queries(file.stem).available_queries
    if not name.endswith("_cursor")
]


@pytest.fixture(scope="module")
def migrated_dsn(postgres: TestServer) -> Iterator[str]:
    dsn = asyncio.run(postgres.create_database())
    yield dsn
    asyncio.run(postgres.drop_database(dsn))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def conn(migrated_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """One for all: nothing is executed, and a new one would read the whole catalogue again for each query."""
    conn = await asyncpg.connect(migrated_dsn)
    yield conn
    await conn.close()


on_one_connection = pytest.mark.asyncio(loop_scope="module")


@on_one_connection
@pytest.mark.parametrize("sql", QUERIES)
async def test_the_query_prepares(conn, sql):
    await conn.prepare(sql)


@on_one_connection
async def test_a_query_of_a_column_that_is_not_there_does_not_prepare(conn):
    sql = load_queries("jobs").find_job.sql.replace("j.id", "j.identity")
    with pytest.raises(asyncpg.UndefinedColumnError):
        await conn.prepare(sql)


def test_every_name_in_the_files_is_among_the_tested_queries():
    written = {
        f"{file.stem}.{line.removeprefix('-- name: ').rstrip('^$!')}"
        for file in FILES
        for line in file.read_text().splitlines()
        if line.startswith("-- name:")
    }
    assert {param.id for param in QUERIES} == written


def test_every_file_of_queries_has_its_room_in_the_store():
    rooms = {path.stem for path in SQL_DIR.parent.glob("*.py")}
    assert {file.stem for file in FILES} <= rooms


def list_used_names(noun: str) -> set[str]:
    text = (SQL_DIR.parent / f"{noun}.py").read_text()
    return {name for name in load_queries(noun).available_queries if re.search(rf"_q\.{name}\b", text)}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_query_is_asked_by_its_store_module(file: Path):
    names = {name for name in load_queries(file.stem).available_queries if not name.endswith("_cursor")}
    assert names - list_used_names(file.stem) == set()
