"""Proof of hardware again and again, the network that a node calls from, and inputs that the operator has blocked."""

from computepool.hub.store.migrations.plain_sql import run_sql_beside

revision = "0026"
down_revision = "0025"


def upgrade() -> None:
    run_sql_beside(__file__)
