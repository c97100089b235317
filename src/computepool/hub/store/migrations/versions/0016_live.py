"""Live views: pseudonyms and consent, days of owners for the leaderboard, samples of the grid, plugs of the demo."""

from computepool.hub.store.migrations.plain_sql import run_sql_beside

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    run_sql_beside(__file__)
