"""Accounts that belong together: paid out to the same place. What they do for each other counts for nothing."""

from __future__ import annotations

from computepool.core.ids import AccountId
from computepool.core.market.index import link_accounts
from computepool.hub.store import market as store
from computepool.hub.store.connect import Connection

LINKS_MAX = 10_000


async def load_links(conn: Connection) -> dict[AccountId, AccountId]:
    """By account the one that stands for all that are linked with it. Those that stand alone are not named."""
    linked = await store.list_linked(conn, limit=LINKS_MAX)
    return link_accounts((together[0], other) for together in linked for other in together[1:])
