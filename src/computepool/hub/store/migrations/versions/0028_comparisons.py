"""Runs of submitters' commands that compare two results of a slice."""

from computepool.hub.store.migrations.plain_sql import run_sql_beside

revision = "0028"
down_revision = "0027"


def upgrade() -> None:
    run_sql_beside(__file__)
