"""The last checkpoint of every attempt, so that a slice can go on without one that nobody can go on from."""

from computepool.hub.store.migrations.plain_sql import run_sql_beside

revision = "0033"
down_revision = "0032"


def upgrade() -> None:
    run_sql_beside(__file__)
