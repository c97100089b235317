"""What owners allow jobs, and what jobs want of it."""

from computepool.hub.store.migrations.plain_sql import run_sql_beside

revision = "0022"
down_revision = "0020"


def upgrade() -> None:
    run_sql_beside(__file__)
