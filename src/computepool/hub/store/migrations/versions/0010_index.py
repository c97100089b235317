"""The price index: what an hour cost between strangers, at every tick of the market."""

from computepool.hub.store.migrations.plain_sql import run_sql_beside

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    run_sql_beside(__file__)
