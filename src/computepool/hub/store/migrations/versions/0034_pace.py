"""How fast runs went with a PNode, against what its figures promise."""

from computepool.hub.store.migrations.plain_sql import run_sql_beside

revision = "0034"
down_revision = "0033"


def upgrade() -> None:
    run_sql_beside(__file__)
