"""Brings a database to the newest schema. Forward only; several hubs may start at once, behind a pooler too."""

from __future__ import annotations

from pathlib import Path

import asyncpg

from computepool.hub.store.connect import connect

MIGRATIONS_DIR = Path(__file__).parent / "migrations"


async def migrate(dsn: str) -> None:
    """Where nothing is to be done, what would do it is not even imported: that would be a good part of a start."""
    if await _is_newest(dsn):
        return
    from computepool.hub.store.upgrade import upgrade

    await upgrade(dsn)


def newest_revision() -> str:
    """They are one line, and their files begin with their numbers."""
    return max(path.name.partition("_")[0] for path in (MIGRATIONS_DIR / "versions").glob("[0-9]*.py"))


async def _is_newest(dsn: str) -> bool:
    conn = await connect(dsn)
    try:
        return bool(await conn.fetchval("SELECT version_num FROM alembic_version") == newest_revision())
    except asyncpg.UndefinedTableError:
        return False
    finally:
        await conn.close()
