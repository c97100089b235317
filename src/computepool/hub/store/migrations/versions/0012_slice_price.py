"""Fixed prices per slice: what jobs have agreed to, what was frozen with a lease, and what shapes are gated by."""

from computepool.hub.store.migrations.plain_sql import run_sql_beside

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    run_sql_beside(__file__)
