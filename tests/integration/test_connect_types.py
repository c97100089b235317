"""What a pool's connection knows of our types before anybody uses it, and what it would have to ask for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from asyncpg.connection import Connection

from computepool.core.accounts.roles import DEFAULT_ROLES
from computepool.core.ids import KeyId
from computepool.core.jobs.order import PriorityClass
from computepool.entropy import new_id
from computepool.hub.store import accounts as account_store
from computepool.hub.store import connect
from computepool.hub.store import keys as key_store
from computepool.hub.store.connect import Pool, create_pool
from computepool.hub.store.queries import SQL_DIR, load_queries
from tests.support.spine import Spine, open_spine

SIZE = 3


class LookUps:
    """The driver's questions about types, in and after the preparation of the connection that asks."""

    def __init__(self) -> None:
        self.prepared: set[Connection] = set()
        self.in_preparation = 0
        self.after: list[set[int]] = []


@pytest.fixture
def look_ups(monkeypatch: pytest.MonkeyPatch) -> LookUps:
    found = LookUps()
    introspect, prepare = Connection._introspect_types, connect._prepare

    async def look_up(self, oids, timeout):
        # The driver's own words: were they others, this would count something else.
        assert "typeinfo_tree" in self._intro_query
        if self in found.prepared:
            found.after.append(set(oids))
        else:
            found.in_preparation += 1
        return await introspect(self, oids, timeout)

    async def prepare_and_note(connection):
        await prepare(connection)
        found.prepared.add(connection)

    monkeypatch.setattr(Connection, "_introspect_types", look_up)
    monkeypatch.setattr(connect, "_prepare", prepare_and_note)
    return found


@pytest.fixture
def without_learning(monkeypatch: pytest.MonkeyPatch) -> None:
    async def learn_nothing(connection):
        pass

    monkeypatch.setattr(connect, "_learn_types", learn_nothing)


@asynccontextmanager
async def opened(dsn: str) -> AsyncIterator[Pool]:
    pool = await create_pool(dsn, size_max=SIZE)
    try:
        yield pool
    finally:
        await pool.close()


def list_queries() -> Iterator[str]:
    for file in sorted(SQL_DIR.glob("*.sql")):
        queries = load_queries(file.stem)
        yield from (getattr(queries, name).sql for name in queries.available_queries if not name.endswith("_cursor"))


async def prepare_all(pool: Pool) -> int:
    """To prepare a statement is what the driver needs all its types for; to run it takes no more of them."""
    async with pool.acquire() as conn, conn.transaction():
        prepared = [await conn.prepare(sql) for sql in list_queries()]
    return len(prepared)


async def live(spine: Spine) -> None:
    """From signing up to a result, on statements that take and give enums and lists."""
    submitter, node = await spine.sign_up(), await spine.enrol()
    job = await spine.submit(by=submitter, slice_count=2)
    grant = await spine.grant_one(node)
    await spine.succeed(node, grant)
    assert sorted([await spine.slice_state(job, i) for i in range(2)]) == ["queued", "succeeded"]


async def test_a_hub_at_work_never_looks_up_a_type(dsn, look_ups):
    async with open_spine(dsn) as spine:
        await live(spine)
    assert look_ups.after == []
    # Else nothing was counted.
    assert look_ups.in_preparation >= 1


async def test_control_a_hub_whose_connections_have_learnt_nothing_looks_up_types_at_work(
    dsn, look_ups, without_learning
):
    async with open_spine(dsn) as spine:
        await live(spine)
    assert look_ups.after != []


async def test_no_named_query_meets_a_type_that_a_new_connection_does_not_know(dsn, look_ups):
    async with opened(dsn) as pool:
        assert await prepare_all(pool) > 100
        unknown = [oid for oids in look_ups.after for oid in oids]
        names = await pool.fetch("SELECT format_type(oid, NULL) FROM unnest($1::oid[]) AS oid", unknown)
    assert names == []


async def test_control_without_learning_the_named_queries_meet_unknown_types(dsn, look_ups, without_learning):
    async with opened(dsn) as pool:
        await prepare_all(pool)
        unknown = [oid for oids in look_ups.after for oid in oids]
        rows = await pool.fetch("SELECT format_type(oid, NULL) AS name FROM unnest($1::oid[]) AS oid", unknown)
    assert {"uuid[]", "job_state", "account_role[]"} <= {row["name"] for row in rows}


async def test_a_missing_list_type_is_noticed(dsn, look_ups, monkeypatch):
    """The control of the names: each that is listed is there for a statement that would miss it."""
    monkeypatch.setattr(connect, "LISTED_TYPES", ("integer",))
    async with opened(dsn) as pool:
        await prepare_all(pool)
    assert look_ups.after != []


async def test_every_enum_and_its_list_is_known(dsn, look_ups):
    async with opened(dsn) as pool, pool.acquire() as conn:
        rows = await conn.fetch("SELECT typname FROM pg_type WHERE typtype = 'e'")
        assert len(rows) > 20
        for (name,) in rows:
            await conn.fetch(f"SELECT NULL::{name}, NULL::{name}[]")
    assert look_ups.after == []


async def use_types(conn: Any) -> None:
    account_id, secret = new_id(), new_id().bytes
    await account_store.insert_account(
        conn,
        id=account_id,
        email=f"{account_id}@example.org",
        name="person",
        password_hash=None,
        roles=DEFAULT_ROLES,
        queued_slices_max=1,
        stored_bytes_max=1,
        calls_per_minute_max=1,
    )
    await key_store.insert_key(
        conn,
        id=KeyId(new_id()),
        account_id=account_id,
        name="key",
        secret_sha256=secret,
        roles=DEFAULT_ROLES,
        expires_seconds=None,
    )
    caller = await key_store.find_caller(conn, secret_sha256=secret)
    assert caller.key_roles == caller.account_roles == DEFAULT_ROLES
    assert isinstance(caller.priority_class_max, PriorityClass)
    assert set(await account_store.list_usage(conn, {account_id})) == {account_id}


async def test_every_connection_of_a_pool_has_learnt_also_one_that_is_opened_later(dsn, look_ups):
    async with opened(dsn) as pool:
        for generation in range(2):
            async with AsyncExitStack() as stack:
                # More than the pool opens by itself at its start, and all of them at once.
                for conn in [await stack.enter_async_context(pool.acquire()) for _ in range(SIZE)]:
                    await use_types(conn)
            assert len(look_ups.prepared) == SIZE * (generation + 1)
            await pool.expire_connections()
    assert look_ups.after == []


async def test_what_was_learnt_early_goes_there_and_back_as_ever(dsn, look_ups):
    """Lists of JSON too: their elements are ours to read, and the driver was told so before it learnt the list."""
    facts = [{"a": [1, None]}, "text", 2]
    async with opened(dsn) as pool, pool.acquire() as conn:
        assert await conn.fetchval("SELECT $1::jsonb[]", facts) == facts
        assert await conn.fetchval("SELECT $1::account_role[]", ["owner", "operator"]) == ["owner", "operator"]
        assert await conn.fetchval("SELECT $1::job_state", "queued") == "queued"
    assert look_ups.after == []


async def test_a_database_without_any_of_our_types_can_be_opened(postgres):
    """As a hub finds it that has not migrated yet."""
    dsn = await postgres.create_plain_database()
    try:
        async with opened(dsn) as pool:
            assert await pool.fetchval("SELECT $1::int[]", [1, 2]) == [1, 2]
    finally:
        await postgres.drop_database(dsn)
