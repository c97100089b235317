"""Fixed prices per slice: what jobs, leases and shapes keep of them. And which leases were given in a pool."""

from computepool.hub.store.migrations.plain_sql import run_sql_beside

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    run_sql_beside(__file__)
