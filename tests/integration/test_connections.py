"""Connections on a real PostgreSQL: behind a real PgBouncer, dropped by the server, and to the right one of several.

Each promise about PgBouncer has a control that breaks it with the driver's ordinary means.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from computepool.core.errors import StoreError
from computepool.hub.dispatch.listener import run_listener
from computepool.hub.http.errors import AWAY
from computepool.hub.store.connect import LOCK_MILLISECONDS, Pool, connect, create_pool
from computepool.hub.store.embedded import EmbeddedPostgres
from computepool.hub.store.migrate import migrate
from computepool.hub.store.pooler import Pooler, is_behind_pooler
from tests.support.pgbouncer import PgBouncer
from tests.support.postgres import TestServer, connected, goes_through_pgbouncer, wait_for

SERVERS = 4
CLIENTS = 8


@pytest.fixture
async def direct(postgres: TestServer) -> AsyncIterator[str]:
    dsn = await postgres.create_database()
    yield dsn
    await postgres.drop_database(dsn)


@pytest.fixture(scope="module")
def pgbouncer(postgres: TestServer) -> Iterator[PgBouncer]:
    pooler = PgBouncer(postgres.dsn, servers_max=SERVERS).start()
    yield pooler
    pooler.stop()


@pytest.fixture
def pooled(direct: str, pgbouncer: PgBouncer) -> str:
    return pgbouncer.through(direct)


@pytest.fixture
async def pool(pooled: str) -> AsyncIterator[Pool]:
    pool = await create_pool(pooled, size_max=CLIENTS)
    yield pool
    pool.terminate()


@pytest.fixture(params=["directly", "pgbouncer"])
async def pool_either_way(request, direct: str, pgbouncer: PgBouncer) -> AsyncIterator[Pool]:
    pool = await create_pool(direct if request.param == "directly" else pgbouncer.through(direct), size_max=CLIENTS)
    yield pool
    pool.terminate()


async def keep_servers_busy(dsn: str) -> None:
    """Makes PgBouncer open all its servers: it opens another only while the others are taken."""
    clients = [await asyncpg.connect(dsn, statement_cache_size=0) for _ in range(SERVERS)]
    transactions = [client.transaction() for client in clients]
    for transaction in transactions:
        await transaction.start()
    for transaction in transactions:
        await transaction.rollback()
    for client in clients:
        await client.close()


async def list_server_settings(dsn: str, name: str) -> set[str]:
    """What a stranger finds on the servers, one after another."""
    async with connected_plainly(dsn) as conn:
        seen = {}
        for _ in range(4 * SERVERS):
            row = await conn.fetchrow(f"SELECT pg_backend_pid() AS pid, current_setting('{name}') AS value")
            seen[row["pid"]] = row["value"]
    assert len(seen) > 1, "the servers must take turns, or this shows nothing"
    return set(seen.values())


@asynccontextmanager
async def connected_plainly(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """Without our class, but without named statements too: a careful stranger."""
    conn = await asyncpg.connect(dsn, statement_cache_size=0)
    try:
        yield conn
    finally:
        await conn.close()


async def test_a_pooler_is_found_and_a_server_is_not_taken_for_one(direct, pooled):
    for dsn, expected in ((direct, False), (pooled, True)):
        conn = await connect(dsn)
        assert await is_behind_pooler(conn) is expected
        await conn.close()


async def test_this_run_reaches_the_database_the_way_it_was_told(dsn):
    """Else `make test/pgbouncer` would prove nothing."""
    conn = await connect(dsn)
    assert await is_behind_pooler(conn) is goes_through_pgbouncer()
    await conn.close()


async def test_clients_of_shared_servers_never_get_each_others_answers(pool):
    async def live(client: int) -> None:
        for i in range(25):
            number = client * 1000 + i
            async with pool.acquire() as conn:
                assert await conn.fetchval("SELECT $1::int + 0", number) == number
                async with conn.transaction():
                    first = await conn.fetchval("SELECT pg_backend_pid()")
                    assert await conn.fetch("SELECT $1::text AS name", f"c{number}") == [(f"c{number}",)]
                    assert await conn.fetchval("SELECT pg_backend_pid()") == first
                backends.add(first)

    backends: set[int] = set()
    await asyncio.gather(*(live(client) for client in range(CLIENTS)))
    assert 1 < len(backends) <= SERVERS


async def test_control_the_drivers_ordinary_pool_fails_behind_pgbouncer(pooled):
    """It prepares a statement at one server and asks another for it."""
    async with (
        asyncpg.create_pool(pooled, min_size=2, max_size=2) as pool,
        pool.acquire() as one,
        pool.acquire() as other,
    ):
        assert await one.fetchval("SELECT $1::int + 0", 1) == 1
        # The server that was used last is the next one's, for as long as its transaction lasts.
        async with other.transaction():
            await other.execute("SELECT 1")
            with pytest.raises(asyncpg.InvalidSQLStatementNameError):
                await one.fetchval("SELECT $1::int + 0", 2)


ENUM = "CREATE TYPE mood AS ENUM ('calm', 'wild'); CREATE TABLE moods (mood mood, moods mood[], facts jsonb)"


async def test_enums_arrays_and_json_go_there_and_back(pool_either_way):
    async with pool_either_way.acquire() as conn:
        await conn.execute(ENUM)
        row = ("calm", ["wild", "calm"], {"a": [1, None]})
        await conn.execute("INSERT INTO moods VALUES ($1, $2, $3)", *row)
        await conn.executemany("INSERT INTO moods VALUES ($1, $2, $3)", [row, row])
        assert [tuple(found) for found in await conn.fetch("SELECT * FROM moods")] == [row] * 3
        assert await conn.fetchval("SELECT array_agg(mood) FROM moods") == ["calm"] * 3


async def test_nothing_is_left_on_the_servers(pooled, pool):
    await keep_servers_busy(pooled)
    async with connected_plainly(pooled) as conn:
        await conn.execute(ENUM)
    for _ in range(SERVERS):
        async with pool.acquire() as conn:
            await conn.fetch("SELECT * FROM moods")
        await pool.expire_connections()
    assert await list_server_settings(pooled, "jit") == {"on"}
    assert await list_server_settings(pooled, "lock_timeout") == {"0"}


async def test_control_without_a_transaction_the_driver_leaves_a_setting_on_a_strangers_server(pooled):
    """It switches `jit` off on one server while it learns a type, and on again on another."""
    await keep_servers_busy(pooled)
    async with connected_plainly(pooled) as conn:
        await conn.execute(ENUM)
        await conn.fetch("SELECT * FROM moods")
    assert await list_server_settings(pooled, "jit") == {"on", "off"}


async def test_who_waits_for_a_row_steps_back_in_time(pool_either_way):
    async with pool_either_way.acquire() as holder, pool_either_way.acquire() as waiter:
        await holder.execute("CREATE TABLE rows (id int); INSERT INTO rows VALUES (1)")
        async with holder.transaction():
            await holder.execute("SELECT FROM rows FOR UPDATE")
            started = asyncio.get_running_loop().time()
            with pytest.raises(asyncpg.LockNotAvailableError):
                await waiter.execute("UPDATE rows SET id = $1", 2)
            with pytest.raises(asyncpg.LockNotAvailableError):
                async with waiter.transaction():
                    await waiter.fetch("SELECT FROM rows FOR UPDATE")
            seconds = asyncio.get_running_loop().time() - started
        # Twice the time of a lock, and whatever a busy machine adds to it; by itself the server waits for ever.
        assert seconds < 40 * LOCK_MILLISECONDS / 1000
        await waiter.execute("UPDATE rows SET id = $1", 2)
        assert await holder.fetchval("SELECT id FROM rows") == 2


async def test_a_statement_that_fails_leaves_the_connection_fit_for_the_next(pool_either_way):
    async with pool_either_way.acquire() as conn:
        await conn.execute("CREATE TABLE rows (id int PRIMARY KEY)")
        with pytest.raises(asyncpg.UniqueViolationError):
            await conn.executemany("INSERT INTO rows VALUES ($1)", [(1,), (2,), (1,)])
        assert await conn.fetchval("SELECT count(*) FROM rows") == 0
        assert not conn.is_in_transaction()
        async with conn.transaction():
            await conn.execute("INSERT INTO rows VALUES (1)")
            with pytest.raises(asyncpg.UniqueViolationError):
                async with conn.transaction():
                    await conn.execute("INSERT INTO rows VALUES ($1)", 1)
            await conn.execute("INSERT INTO rows VALUES (3)")
        assert await conn.fetchval("SELECT array_agg(id ORDER BY id) FROM rows") == [1, 3]


async def test_a_hub_that_was_told_there_is_no_pooler_says_which_setting_is_wrong(pooled):
    with pytest.raises(StoreError, match="COMPUTEPOOL_HUB_DATABASE_POOLER"):
        await create_pool(pooled, size_max=2, pooler=Pooler.NONE)


async def test_news_is_heard_from_the_server_itself(direct):
    heard: list[str] = []
    listening = asyncio.create_task(run_listener(direct, heard.append))
    async with connected(direct) as conn:

        async def tell(topic: str) -> bool:
            await conn.execute("SELECT pg_notify('computepool', $1)", topic)
            return topic in heard

        await wait_for(lambda: tell("first"), what="the first notice")
        await conn.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        await wait_for(lambda: tell("after the loss"), what="a notice after the connection was lost")
    listening.cancel()


async def test_behind_a_pooler_the_listener_leaves_it_to_the_timer(pooled):
    async with asyncio.timeout(60):
        await run_listener(pooled, lambda _: None)


async def test_control_a_notice_does_not_pass_pgbouncer(direct, pooled):
    heard: list[str] = []
    conn = await connect(pooled)
    await conn.add_listener("computepool", lambda *notice: heard.append(notice[-1]))
    async with connected(direct) as other:
        for _ in range(5):
            await other.execute("SELECT pg_notify('computepool', 'news')")
            await conn.fetchval("SELECT 1")
    conn.terminate()
    assert len(heard) < 5


async def drop_all(postgres: TestServer, dsn: str) -> int:
    async with connected(postgres.superuser_dsn()) as conn:
        name = urlsplit(dsn).path.lstrip("/")
        dropped = await conn.fetch("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", name)
        return len(dropped)


async def test_a_pool_outlives_the_loss_of_all_its_connections(postgres, direct, pool_either_way):
    """Whoever was in the middle gets an error that is told as "try again"; nobody who comes later does."""
    pool = pool_either_way
    for _ in range(3):

        async def sleep_long() -> None:
            async with pool.acquire() as conn, conn.transaction():
                await conn.fetchval("SELECT pg_sleep(20)")

        under_way = [asyncio.create_task(sleep_long()) for _ in range(3)]

        async def all_asleep() -> bool:
            async with connected(postgres.superuser_dsn()) as conn:
                asleep = "SELECT count(*) FROM pg_stat_activity WHERE query ~ '^SELECT pg_sleep' AND state = 'active'"
                return await conn.fetchval(asleep) == 3

        await wait_for(all_asleep, what="three statements under way")
        assert await drop_all(postgres, direct) >= 3
        outcomes = await asyncio.gather(*under_way, return_exceptions=True)
        assert all(isinstance(outcome, AWAY) for outcome in outcomes), outcomes
        assert await asyncio.gather(*(ask_until_answered(pool, "SELECT 1") for _ in range(CLIENTS))) == [1] * CLIENTS
    assert pool.get_size() <= CLIENTS


async def ask_until_answered(pool: Pool, query: str) -> object:
    """One more caller may meet a connection, or behind PgBouncer a server, whose death is not yet known."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await pool.fetchval(query)
            except AWAY:
                await asyncio.sleep(0.05)


@pytest.fixture
async def second_server() -> AsyncIterator[str]:
    with tempfile.TemporaryDirectory(prefix="cp-second-") as folder:
        Path(folder).chmod(0o755)
        server = EmbeddedPostgres(Path(folder) / "database")
        yield await server.start()
        await server.stop()


async def set_read_only(superuser_dsn: str, value: str) -> None:
    async with connected(superuser_dsn) as conn:
        await conn.execute(f"ALTER ROLE computepool SET default_transaction_read_only = {value}")


async def name_server(dsn: str) -> str:
    async with connected(dsn) as conn:
        return await conn.fetchval("SHOW cluster_name")


async def test_of_several_servers_the_one_that_can_be_written_is_used_also_after_it_has_changed(
    postgres, direct, second_server
):
    name = urlsplit(direct).path.lstrip("/")
    second = TestServer(second_server)
    async with connected(second.dsn) as conn:
        await conn.execute(f"CREATE DATABASE {name}")
    hosts = [parse_qs(urlsplit(dsn).query)["host"][0] for dsn in (direct, second_server)]
    several = (
        f"postgresql://computepool@/{name}?host=/nowhere,{','.join(hosts)}&port=5432,5432,5432"
        "&target_session_attrs=read-write&channel_binding=prefer"
    )
    pool = None
    try:
        await set_read_only(postgres.superuser_dsn(), "on")
        await migrate(several)
        pool = await create_pool(several, size_max=3)
        async with connected(second.dsn_of(name)) as conn:
            assert await conn.fetchval("SELECT to_regclass('jobs')") is not None
        assert await pool.fetchval("SHOW cluster_name") == await name_server(second.dsn)

        await set_read_only(postgres.superuser_dsn(), "off")
        await set_read_only(second.superuser_dsn(), "on")
        await drop_all(second, direct)
        assert await ask_until_answered(pool, "SHOW cluster_name") == await name_server(direct)
    finally:
        await set_read_only(postgres.superuser_dsn(), "off")
        if pool is not None:
            pool.terminate()


async def test_a_url_that_asks_for_more_than_the_driver_can_give_is_refused(direct):
    with pytest.raises(StoreError, match="channel_binding"):
        await connect(f"{direct}&channel_binding=require")
