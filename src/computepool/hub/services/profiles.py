"""What accounts let strangers see: a pseudonym, a place on the leaderboard, names of jobs."""

from __future__ import annotations

from dataclasses import dataclass

from computepool.core.errors import InvalidRequest
from computepool.core.ids import AccountId
from computepool.core.live.pseudonyms import PSEUDONYM, to_name
from computepool.hub.services.callers import AccountCaller
from computepool.hub.store import events as event_store
from computepool.hub.store import profiles as store
from computepool.hub.store.connect import Connection, Pool
from computepool.hub.store.events import NewEvent


@dataclass(frozen=True, slots=True)
class Profile:
    pseudonym: str
    on_leaderboard: bool
    shows_titles: bool


async def get_profile(pool: Pool, key: bytes, account_id: AccountId) -> Profile:
    async with pool.acquire() as conn:
        return await _get(conn, key, account_id)


async def change_profile(
    pool: Pool,
    key: bytes,
    caller: AccountCaller,
    *,
    pseudonym: str | None,
    on_leaderboard: bool | None,
    shows_titles: bool | None,
) -> Profile:
    """What is None stays as it is; an empty pseudonym is the one that is made from the id."""
    if pseudonym and not PSEUDONYM.match(pseudonym):
        raise InvalidRequest(
            "A pseudonym has 3 to 30 letters and digits; spaces and - _ . may stand between them. Leave it empty and "
            "one is made for you."
        )
    async with pool.acquire() as conn, conn.transaction():
        await store.change_profile(
            conn,
            caller.account_id,
            pseudonym=pseudonym,
            on_leaderboard=on_leaderboard,
            shows_titles=shows_titles,
        )
        await event_store.record_events(conn, [NewEvent(kind="profile_changed", account_id=caller.account_id)])
        return await _get(conn, key, caller.account_id)


async def _get(conn: Connection, key: bytes, account_id: AccountId) -> Profile:
    row = await store.find_profile(conn, account_id)
    return Profile(row.pseudonym or to_name(key, account_id), row.on_leaderboard, row.shows_titles)
