"""Time of superseded attempts: what the fee of the slice has made good of it."""

from computepool.hub.store.migrations.plain_sql import run_sql_beside

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    run_sql_beside(__file__)
