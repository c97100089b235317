"""The spine: accounts, nodes, jobs, slices, attempts, files, logs, events."""

from computepool.hub.store.migrations.plain_sql import run_sql_beside

revision = "0001"
down_revision = None


def upgrade() -> None:
    run_sql_beside(__file__)
