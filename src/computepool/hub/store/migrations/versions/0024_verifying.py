"""A state of slices: delivered, and kept back until somebody else has got the same."""

from computepool.hub.store.migrations.plain_sql import run_sql_beside

revision = "0024"
down_revision = "0023"


def upgrade() -> None:
    run_sql_beside(__file__)
