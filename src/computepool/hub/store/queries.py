"""Loads the named queries of one noun from `sql/<noun>.sql`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiosql

SQL_DIR = Path(__file__).parent / "sql"


def load_queries(noun: str) -> Any:
    return aiosql.from_path(SQL_DIR / f"{noun}.sql", "asyncpg", mandatory_parameters=False)
