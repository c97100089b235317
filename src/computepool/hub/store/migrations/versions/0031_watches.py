"""Nodes that run jobs whose runs differ by themselves are watched by slices whose answers are known."""

from computepool.hub.store.migrations.plain_sql import run_sql_beside

revision = "0031"
down_revision = "0030"


def upgrade() -> None:
    run_sql_beside(__file__)
