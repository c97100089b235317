"""Secrets of jobs, sealed, for as long as the job is under way."""

from computepool.hub.store.migrations.plain_sql import run_sql_beside

revision = "0027"
down_revision = "0026"


def upgrade() -> None:
    run_sql_beside(__file__)
