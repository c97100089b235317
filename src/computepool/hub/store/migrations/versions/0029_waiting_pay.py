"""Pay that waits although its holdback is over."""

from computepool.hub.store.migrations.plain_sql import run_sql_beside

revision = "0029"
down_revision = "0028"


def upgrade() -> None:
    run_sql_beside(__file__)
