"""Proof of hardware: rounds of seeded, timed work, and what each slot's node has shown by them."""

from computepool.hub.store.migrations.plain_sql import run_sql_beside

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    run_sql_beside(__file__)
