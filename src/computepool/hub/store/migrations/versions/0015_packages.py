"""Packages, images and ways out of a job: what its end may be blamed on."""

from computepool.hub.store.migrations.plain_sql import run_sql_beside

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    run_sql_beside(__file__)
