"""Audits of runs: what came of replaying spans elsewhere, and nodes that computed wrongly."""

from computepool.hub.store.migrations.plain_sql import run_sql_beside

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    run_sql_beside(__file__)
