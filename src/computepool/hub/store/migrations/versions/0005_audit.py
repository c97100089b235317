"""Audit: the chain over the ledger, the days that were closed, and the way to a node's attempts of a day."""

from computepool.hub.store.migrations.plain_sql import run_sql_beside

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    run_sql_beside(__file__)
