"""Disputes over pay, and checkpoints of the books, so that a close need not read all of history."""

from computepool.hub.store.migrations.plain_sql import run_sql_beside

revision = "0009"
down_revision = "0007"


def upgrade() -> None:
    run_sql_beside(__file__)
