"""Results that are run again by others: which, by whom, what came of it, and where nodes stand by it."""

from computepool.hub.store.migrations.plain_sql import run_sql_beside

revision = "0025"
down_revision = "0024"


def upgrade() -> None:
    run_sql_beside(__file__)
