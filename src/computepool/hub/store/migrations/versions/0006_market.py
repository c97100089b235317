"""The market: versions of the rate card, what is kept of every bucket from tick to tick, and the history of spot."""

from computepool.hub.store.migrations.plain_sql import run_sql_beside

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    run_sql_beside(__file__)
