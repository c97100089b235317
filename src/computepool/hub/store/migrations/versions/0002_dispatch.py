"""Dispatch: order between accounts, prices and speeds of slots, receipts, hubs that know of each other."""

from computepool.hub.store.migrations.plain_sql import run_sql_beside

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    run_sql_beside(__file__)
