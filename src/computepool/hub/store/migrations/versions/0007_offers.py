"""Offers: the conditions at which an owner lends a node, and what shapes say to them."""

from computepool.hub.store.migrations.plain_sql import run_sql_beside

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    run_sql_beside(__file__)
