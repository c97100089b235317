"""What accounts let strangers see."""

from __future__ import annotations

from dataclasses import dataclass

import asyncpg

from computepool.core.errors import NameTaken
from computepool.core.ids import AccountId
from computepool.hub.store.connect import Connection
from computepool.hub.store.queries import load_queries

_q = load_queries("profiles")


@dataclass(frozen=True, slots=True)
class ProfileRow:
    # None: none was chosen.
    pseudonym: str | None = None
    on_leaderboard: bool = True
    shows_titles: bool = False


async def find_profile(conn: Connection, account_id: AccountId) -> ProfileRow:
    row = await _q.find_profile(conn, account_id=account_id)
    return ProfileRow(**row) if row else ProfileRow()


async def change_profile(
    conn: Connection,
    account_id: AccountId,
    *,
    pseudonym: str | None,
    on_leaderboard: bool | None,
    shows_titles: bool | None,
) -> None:
    try:
        await _q.change_profile(
            conn,
            account_id=account_id,
            pseudonym=pseudonym,
            on_leaderboard=on_leaderboard,
            shows_titles=shows_titles,
        )
    except asyncpg.UniqueViolationError as error:
        if error.constraint_name == "profiles_pseudonym_unique":
            raise NameTaken("Somebody has this pseudonym already. Choose another.") from None
        raise
