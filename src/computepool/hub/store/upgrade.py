"""The migrations that a database lacks, one after the other, by Alembic."""

from __future__ import annotations

from typing import Any

import asyncpg
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from computepool.core.errors import StoreError
from computepool.hub.store.connect import connect
from computepool.hub.store.migrate import MIGRATIONS_DIR

# Any constant will do, as long as every hub uses the same one.
ADVISORY_LOCK = 7_263_001
# One migration of a large database may take this long, and the other hubs wait for it.
MIGRATE_SECONDS = 3600


async def upgrade(dsn: str) -> None:
    async def open_connection(*_: Any, **__: Any) -> Any:
        return await connect(dsn, command_seconds=MIGRATE_SECONDS)

    engine = create_async_engine("postgresql+asyncpg://", poolclass=NullPool, async_creator=open_connection)
    try:
        async with engine.connect() as connection:
            while await connection.run_sync(_upgrade_once):
                pass
    except ProgrammingError as error:
        if getattr(error.orig, "sqlstate", None) != asyncpg.InsufficientPrivilegeError.sqlstate:
            raise
        raise StoreError(
            f"The role of DATABASE_URL may not create tables in this database ({error.orig}). "
            "It needs no other right than to own it: ALTER DATABASE <name> OWNER TO <role>."
        ) from error
    finally:
        await engine.dispose()


def _upgrade_once(connection: Connection) -> bool:
    """Runs the next migration, if there is one: lock, change and version number in one transaction.

    Two hubs that start together must not both create the tables: the second waits, then finds it done. The lock goes
    with the transaction, because behind a pooler nothing else can be kept. One migration at a time, because what one
    adds to an enum can be used only after its commit.
    """
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS_DIR))
    config.attributes["connection"] = connection
    with connection.begin():
        connection.execute(text(f"SELECT pg_advisory_xact_lock({ADVISORY_LOCK})"))
        known = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
        found = MigrationContext.configure(connection).get_current_revision()
        if found == known[0]:
            return False
        if found is not None and found not in known:
            raise StoreError(
                f"A newer hub has brought this database to schema {found}; this one knows it up to {known[0]}. "
                "Install that version of ComputePool, or restore a backup from before the upgrade."
            )
        command.upgrade(config, "+1")
    return True
