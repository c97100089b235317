"""Migrations: forward only, harmless to repeat, safe when hubs start together, and in need of no superuser."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from computepool.core.errors import StoreError
from computepool.hub.store import upgrade as upgrade_module
from computepool.hub.store.connect import connect
from computepool.hub.store.migrate import MIGRATIONS_DIR, migrate, newest_revision
from computepool.hub.store.upgrade import ADVISORY_LOCK
from tests.support.earnings import give_credits, insert_node, insert_pay, list_faults
from tests.support.pgbouncer import PLAIN_ROLE, PgBouncer
from tests.support.postgres import TestServer, connected, wait_for
from tests.support.rows import insert_account

_numbers = itertools.count(1)

# Everything that a migration could have made twice or differently.
DESCRIBE = """
SELECT 'column', table_name || '.' || column_name || ' ' || data_type || ' ' || coalesce(column_default, '')
  FROM information_schema.columns WHERE table_schema = 'public'
UNION ALL
SELECT 'index', indexdef FROM pg_indexes WHERE schemaname = 'public'
UNION ALL
SELECT 'constraint', conname || ' ' || pg_get_constraintdef(oid)
  FROM pg_constraint WHERE connamespace = 'public'::regnamespace
UNION ALL
SELECT 'enum', enumtypid::regtype || ' ' || enumlabel FROM pg_enum
ORDER BY 1, 2
"""


async def describe(dsn: str) -> list[tuple[str, str]]:
    async with connected(dsn) as conn:
        return [tuple(row) for row in await conn.fetch(DESCRIBE)]


async def versions(dsn: str) -> list[str]:
    async with connected(dsn) as conn:
        return [row["version_num"] for row in await conn.fetch("SELECT version_num FROM alembic_version")]


@contextmanager
def new_database(postgres: TestServer, *, owner: str = "") -> Iterator[str]:
    """An empty one, as an operator makes it."""
    name = f"empty_{next(_numbers)}"
    server = postgres.superuser_dsn()
    asyncio.run(run_statement(server, f"CREATE DATABASE {name}" + (f" OWNER {owner}" if owner else "")))
    yield postgres.dsn_of(name)
    asyncio.run(run_statement(server, f"DROP DATABASE {name} WITH (FORCE)"))


async def run_statement(dsn: str, statement: str) -> None:
    async with connected(dsn) as conn:
        await conn.execute(statement)


@pytest.fixture
def empty_dsn(postgres: TestServer) -> Iterator[str]:
    with new_database(postgres, owner="computepool") as dsn:
        yield dsn


@pytest.fixture
async def plain_dsn(postgres: TestServer) -> AsyncIterator[str]:
    """A database that belongs to a role which may do nothing else, and that role's own login."""
    dsn = await postgres.create_plain_database()
    yield dsn
    await postgres.drop_database(dsn)


@pytest.fixture(params=["directly", "pgbouncer"])
def way(request: pytest.FixtureRequest, postgres: TestServer) -> Iterator[Callable[[str], str]]:
    """How the hubs that migrate reach the server."""
    if request.param == "directly":
        yield lambda dsn: dsn
        return
    pooler = PgBouncer(postgres.dsn).start()
    yield pooler.through
    pooler.stop()


async def test_an_empty_database_comes_to_the_newest_version(empty_dsn):
    await migrate(empty_dsn)
    scripts = ScriptDirectory.from_config(make_config())
    assert await versions(empty_dsn) == [scripts.get_current_head()]


def make_config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS_DIR))
    return config


def test_the_migrations_are_one_line_without_branches():
    scripts = ScriptDirectory.from_config(make_config())
    assert len(scripts.get_heads()) == 1
    assert len(scripts.get_bases()) == 1
    assert scripts.get_current_head() == newest_revision()


async def test_migrating_again_changes_nothing(empty_dsn):
    await migrate(empty_dsn)
    async with connected(empty_dsn) as conn:
        await conn.execute("INSERT INTO hub_keys (kid, purpose, secret) VALUES ('kept', 'signing', '')")
    before = await describe(empty_dsn)
    assert len(before) > 100
    await migrate(empty_dsn)
    assert await describe(empty_dsn) == before
    async with connected(empty_dsn) as conn:
        assert await conn.fetchval("SELECT kid FROM hub_keys") == "kept"


async def test_a_database_that_is_up_to_date_costs_no_import_of_what_would_migrate_it(dsn):
    story = (
        "import asyncio, sys; from computepool.hub.store.migrate import migrate\n"
        "asyncio.run(migrate(sys.argv[1])); print('sqlalchemy' in sys.modules)"
    )

    async def imports(dsn: str) -> str:
        started = await asyncio.create_subprocess_exec(sys.executable, "-c", story, dsn, stdout=subprocess.PIPE)
        return (await started.communicate())[0].decode().strip()

    assert await imports(dsn) == "False"
    # The control: as it was before the last migration.
    async with connected(dsn) as conn:
        await conn.execute("DELETE FROM alembic_version")
    assert await imports(dsn) != "False"


async def test_hubs_that_start_together_all_find_the_newest_schema(empty_dsn, dsn, way):
    await asyncio.gather(*(migrate(way(empty_dsn)) for _ in range(3)))
    assert await describe(empty_dsn) == await describe(dsn)
    assert len(await versions(empty_dsn)) == 1


async def test_a_migration_waits_for_the_one_that_another_hub_has_begun(empty_dsn, way):
    async with connected(empty_dsn) as other_hub:
        await other_hub.execute(f"SELECT pg_advisory_lock({ADVISORY_LOCK})")
        migrating = asyncio.create_task(migrate(way(empty_dsn)))

        async def is_waiting() -> bool:
            return await other_hub.fetchval(
                "SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
                "   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            )

        await wait_for(is_waiting, what="the second migration to wait")
        assert await other_hub.fetchval("SELECT to_regclass('jobs')") is None
        await other_hub.execute(f"SELECT pg_advisory_unlock({ADVISORY_LOCK})")
        await migrating
        assert await other_hub.fetchval("SELECT to_regclass('jobs')") is not None


async def test_no_lock_is_left_behind_even_when_a_migration_fails(empty_dsn, way):
    async with connected(empty_dsn) as conn:
        await conn.execute("CREATE TABLE jobs ()")
        with pytest.raises(asyncpg.DuplicateTableError):
            await migrate(way(empty_dsn))
        assert await conn.fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 0
        assert await conn.fetchval("SELECT to_regclass('slices')") is None, "a failed migration leaves nothing behind"
        await conn.execute("DROP TABLE jobs")
        await migrate(way(empty_dsn))
        assert await conn.fetchval("SELECT to_regclass('slices')") is not None


async def test_control_a_lock_of_the_session_stays_with_a_server_behind_pgbouncer(empty_dsn, postgres):
    """What the migration's lock would do if it outlived its transaction: hold up every hub that comes later."""
    pooler = PgBouncer(postgres.dsn).start()
    try:
        hub = await connect(pooler.through(empty_dsn))
        await hub.fetchval(f"SELECT pg_advisory_lock({ADVISORY_LOCK})")
        await hub.close()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(migrate(empty_dsn), timeout=1)
    finally:
        pooler.stop()


async def test_each_of_several_migrations_is_one_transaction_with_its_number(empty_dsn, way):
    """The second one fails: the first stands with its number, and nothing is left of the second."""
    scripts = ScriptDirectory.from_config(make_config())
    first, second = [script.revision for script in reversed(list(scripts.walk_revisions()))][:2]
    sql = (Path(scripts.dir) / "versions").glob(f"{second}*.sql")
    table = re.findall(r"^CREATE TABLE (\w+)", next(sql).read_text(), re.MULTILINE)[-1]
    async with connected(empty_dsn) as conn:
        await conn.execute(f"CREATE TABLE {table} ()")
    with pytest.raises(asyncpg.DuplicateTableError):
        await migrate(way(empty_dsn))
    assert await versions(empty_dsn) == [first]
    async with connected(empty_dsn) as conn:
        await conn.execute(f"DROP TABLE {table}")
    await migrate(way(empty_dsn))
    assert await versions(empty_dsn) == [scripts.get_current_head()]


async def test_an_old_hub_refuses_a_database_that_a_newer_one_has_changed(empty_dsn):
    await migrate(empty_dsn)
    async with connected(empty_dsn) as conn:
        await conn.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StoreError, match=r"9999.*Install that version"):
        await migrate(empty_dsn)


async def test_a_plain_role_can_migrate_the_database_that_it_owns(plain_dsn, dsn, way):
    await migrate(way(plain_dsn))
    assert await describe(plain_dsn) == await describe(dsn)
    async with connected(plain_dsn) as conn:
        role = await conn.fetchrow("SELECT rolsuper, rolcreatedb, rolcreaterole FROM pg_roles WHERE rolname = user")
        assert not any(role.values())
        owners = await conn.fetch("SELECT DISTINCT tableowner FROM pg_tables WHERE schemaname = 'public'")
        assert [row["tableowner"] for row in owners] == [PLAIN_ROLE]


async def test_control_the_plain_role_owns_nothing_but_its_database(plain_dsn, empty_dsn):
    other = urlsplit(empty_dsn)._replace(netloc=urlsplit(plain_dsn).netloc).geturl()
    with pytest.raises(StoreError, match="OWNER TO"):
        await migrate(other)


async def migrate_up_to_before(dsn: str, revision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a database stands at a hub of the release before."""
    upgrade = upgrade_module._upgrade_once
    before = ScriptDirectory.from_config(make_config()).get_revision(revision).down_revision

    def upgrade_unless_there(connection: Connection) -> bool:
        with connection.begin():
            found = MigrationContext.configure(connection).get_current_revision()
        return found != before and upgrade(connection)

    with monkeypatch.context() as patched:
        patched.setattr(upgrade_module, "_upgrade_once", upgrade_unless_there)
        await migrate(dsn)
    assert await versions(dsn) == [before]


async def test_pay_that_was_frozen_before_there_were_disputes_gets_one_each(empty_dsn, monkeypatch):
    await migrate_up_to_before(empty_dsn, "0009", monkeypatch)
    async with connected(empty_dsn) as conn:
        submitter, owner = [await insert_account(conn) for _ in range(2)]
        async with conn.transaction():
            await give_credits(conn, submitter, 1_000)
        pays = [
            await insert_pay(conn, owner_id=owner, submitter_id=submitter, prices=[100, 100], receipt=receipt)
            for receipt in ("refused", None)
        ]
        frozen = [pay.attempt_ids[0] for pay in pays]
        await conn.execute("UPDATE attempts SET earning_state = 'disputed' WHERE id = ANY($1::uuid[])", frozen)
        await migrate(empty_dsn)
        rows = await conn.fetch("SELECT attempt_id, origin::text, state::text, submitter_id, owner_id FROM disputes")
        assert {tuple(row) for row in rows} == {
            (frozen[0], "receipt", "open", submitter, owner),
            (frozen[1], "books", "open", submitter, owner),
        }
        assert await list_faults(conn) == []


async def test_nodes_that_networks_found_wrong_stand_so_for_everything_and_what_was_left_to_do_is_kept(
    empty_dsn, monkeypatch
):
    await migrate_up_to_before(empty_dsn, "0030", monkeypatch)
    async with connected(empty_dsn) as conn:
        owner = await insert_account(conn)
        new, old, barred, suspect = [await insert_node(conn, owner) for _ in range(4)]
        run_id = await conn.fetchval(
            "WITH net AS (INSERT INTO networks (id, account_id, name, spec, digest, vnode_count, parameter_count)"
            " VALUES (gen_random_uuid(), $1, 'net', '{}', sha256('x'), 1, 0) RETURNING id)"
            " INSERT INTO runs (id, network_id, account_id, job_id, steps, options, data, state, expires_at,"
            " finished_at) SELECT gen_random_uuid(), id, $1, gen_random_uuid(), 1, '{}', '[]', 'stopped', now(),"
            " now() FROM net RETURNING id",
            owner,
        )
        for node_id, days in ((new, 1), (old, 30), (barred, 2), (suspect, 3)):
            at = "INSERT INTO bugged_nodes VALUES ($1, now() - $2 * interval '1 day', $3)"
            await conn.execute(at, node_id, days, run_id)
        known = "INSERT INTO node_trust (node_id, standing, since, bugged_count, validated_count, wrong_at) VALUES "
        await conn.execute(known + "($1, 'barred', now(), 3, 7, '{6,7}')", barred)
        await conn.execute(known + "($1, 'suspect', now() - interval '9 days', 0, 7, '{7}')", suspect)
        await conn.execute(
            "INSERT INTO checks (attempt_id, job_id, slice_index, node_id, mode, withheld, state, outcome, effects)"
            " VALUES (gen_random_uuid(), gen_random_uuid(), 0, $1, 'audit', false, 'ruled', 'found_wrong', $2)",
            suspect,
            json.dumps([[str(suspect), "retro_audit"], [str(suspect), "forfeit_pay"]]),
        )
        await migrate(empty_dsn)
        rows = await conn.fetch(
            "SELECT node_id, standing::text, bugged_count, extract(day FROM now() - since)::integer FROM node_trust"
        )
        assert {tuple(row) for row in rows} == {
            (new, "bugged", 1, 1),
            (old, "clear", 1, 23),
            (barred, "barred", 3, 0),
            (suspect, "bugged", 1, 3),
        }
        assert await conn.fetchval("SELECT count(serving_since) FROM node_trust") == 0, "none has passed probation"
        left = await conn.fetch("SELECT node_id, effect::text FROM trust_effects ORDER BY id")
        assert [tuple(row) for row in left] == [(suspect, "retro_audit"), (suspect, "forfeit_pay")]


async def test_what_slices_go_on_from_is_known_of_their_attempts_too(empty_dsn, monkeypatch):
    await migrate_up_to_before(empty_dsn, "0033", monkeypatch)
    async with connected(empty_dsn) as conn:
        submitter, owner = [await insert_account(conn) for _ in range(2)]
        async with conn.transaction():
            await give_credits(conn, submitter, 1_000)
        [attempt_id] = (await insert_pay(conn, owner_id=owner, submitter_id=submitter, prices=[100])).attempt_ids
        saved = "INSERT INTO job_checkpoints (job_id, slice_index, attempt_id, attempt_number, number, sha256, files,"
        await conn.execute(
            saved + " size_bytes) SELECT job_id, slice_index, id, number, 3, sha256('x'), '[{}]', 1 FROM attempts"
            " WHERE id = $1",
            attempt_id,
        )
        await migrate(empty_dsn)
        rows = await conn.fetch("SELECT attempt_id, number, left_out_after, verdict FROM attempt_checkpoints")
        assert [tuple(row) for row in rows] == [(attempt_id, 3, None, None)]
