"""Links of PNodes: what they send to others and how long it takes, as their owners say or as was measured."""

from computepool.hub.store.migrations.plain_sql import run_sql_beside

revision = "0019"
down_revision = "0016"


def upgrade() -> None:
    run_sql_beside(__file__)
