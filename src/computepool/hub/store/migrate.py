"""Brings a database to the newest schema. Forward only; several hubs may start at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import text
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from computepool.hub.store.connect import connect

# Any constant will do, as long as every hub uses the same one.
_ADVISORY_LOCK = 7_263_001


async def migrate(dsn: str) -> None:
    async def open_connection(*_: Any, **__: Any) -> Any:
        return await connect(dsn)

    engine = create_async_engine("postgresql+asyncpg://", poolclass=NullPool, async_creator=open_connection)
    try:
        async with engine.connect() as connection:
            await connection.run_sync(_upgrade)
    finally:
        await engine.dispose()


def _upgrade(connection: Connection) -> None:
    # Two hubs that start together must not both create the tables: the second waits, then finds nothing to do.
    connection.execute(text(f"SELECT pg_advisory_lock({_ADVISORY_LOCK})"))
    connection.commit()
    try:
        config = Config()
        config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        connection.commit()
    finally:
        connection.execute(text(f"SELECT pg_advisory_unlock({_ADVISORY_LOCK})"))
        connection.commit()
