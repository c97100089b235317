"""One standing of a node, whatever found it wrong, and what is still to be done about it."""

from computepool.hub.store.migrations.plain_sql import run_sql_beside

revision = "0030"
down_revision = "0029"


def upgrade() -> None:
    run_sql_beside(__file__)
