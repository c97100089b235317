"""Payments: top-ups, payouts and their details, the words of providers, frozen accounts."""

from computepool.hub.store.migrations.plain_sql import run_sql_beside

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    run_sql_beside(__file__)
