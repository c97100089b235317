"""Which job a person means by `last`, a whole id, or a piece of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from computepool.core.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from computepool.sdk import Client, JobHandle

PIECE_LENGTH_MIN = 4
_JOBS_MAX = 2_000


def find_job(client: Client, name: str) -> JobHandle:
    whole = to_uuid(name)
    if whole is not None:
        return client.get_job(job_id=whole)
    if name == "last":
        newest = client.list_jobs(limit=1).jobs
        if not newest:
            raise NotFound("You have no jobs yet. Try: computepool run SCRIPT")
        return client.get_job(job_id=newest[0].id)
    return client.get_job(job_id=pick_id(name, _list_ids(client)))


def pick_id(piece: str, ids: Sequence[UUID], *, what: str = "job") -> UUID:
    """The only id that begins or ends with this piece; dashes do not count."""
    wanted = piece.lower().replace("-", "")
    if len(wanted) < PIECE_LENGTH_MIN:
        raise InvalidRequest(f"{piece!r} is too short to name a {what}; give at least {PIECE_LENGTH_MIN} characters.")
    matches = [each for each in ids if each.hex.startswith(wanted) or each.hex.endswith(wanted)]
    if not matches:
        raise NotFound(f"No {what} of yours begins or ends with {piece!r}.")
    if len(matches) > 1:
        shown = ", ".join(str(each) for each in matches[:4]) + (" and more" if len(matches) > 4 else "")
        raise InvalidRequest(f"{piece!r} names {len(matches)} {what}s: {shown}. Give more of it.")
    return matches[0]


def _list_ids(client: Client) -> list[UUID]:
    """The newest ones; who means an older job gives its whole id."""
    ids: list[UUID] = []
    cursor: str | None = None
    while len(ids) < _JOBS_MAX:
        page = client.list_jobs(cursor=cursor)
        ids += [job.id for job in page.jobs]
        if page.cursor is None:
            break
        cursor = page.cursor
    return ids


def to_uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
