"""Room on every page of jobs for one more version of each row."""

from computepool.hub.store.migrations.plain_sql import run_sql_beside

revision = "0032"
down_revision = "0031"


def upgrade() -> None:
    run_sql_beside(__file__)
