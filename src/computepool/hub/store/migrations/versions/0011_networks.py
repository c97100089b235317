"""Networks: specs, runs and who owns them, seats and placements, checkpoints, curves; and what a seat is paid to."""

from computepool.hub.store.migrations.plain_sql import run_sql_beside

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    run_sql_beside(__file__)
