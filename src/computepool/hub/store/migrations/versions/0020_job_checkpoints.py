"""Checkpoints of slices: the last accepted one of each, and how far it pays its attempt."""

from computepool.hub.store.migrations.plain_sql import run_sql_beside

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    run_sql_beside(__file__)
