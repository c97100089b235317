"""Money: the ledger, and what jobs and attempts know of it."""

from computepool.hub.store.migrations.plain_sql import run_sql_beside

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    run_sql_beside(__file__)
