"""Runs the .sql file that stands beside a revision, whole, as PostgreSQL reads it."""

from __future__ import annotations

from pathlib import Path

from alembic import op
from sqlalchemy.util import await_only


def run_sql_beside(revision_file: str) -> None:
    sql = Path(revision_file).with_suffix(".sql").read_text()
    # The transaction begins with SQLAlchemy's first statement; without one, the script would commit by itself.
    op.execute("SELECT 1")
    # SQLAlchemy would prepare the text as one statement; the driver itself takes a script of many.
    driver = op.get_bind().connection.driver_connection
    assert driver is not None
    await_only(driver.execute(sql))
