"""What attempts say about the checkpoints that they began with; which ones are left out, and what that came to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from computepool.core.ids import AccountId, AttemptId, JobId, NodeId
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.checkpoint_proofs import Try, Verdict
from computepool.core.jobs.state import AttemptState, SliceState
from computepool.hub.store.connect import Connection
from computepool.hub.store.queries import load_queries
from computepool.hub.store.records import read_record
from computepool.hub.store.slices import SliceKey

_q = load_queries("checkpoint_proofs")


@dataclass(frozen=True, slots=True)
class StoredTry:
    id: AttemptId
    node_id: NodeId
    # Its owner stands for nobody but themselves.
    known: Try


@dataclass(frozen=True, slots=True)
class StoredStory:
    slice_state: SliceState
    submitter_id: AccountId
    tries: tuple[StoredTry, ...]


async def list_stories(conn: Connection, keys: Collection[SliceKey]) -> dict[SliceKey, StoredStory]:
    wanted = sorted(set(keys))
    rows: dict[SliceKey, list[Any]] = defaultdict(list)
    found = _q.list_tries(
        conn, job_ids=[job_id for job_id, _ in wanted], slice_indexes=[index for _, index in wanted]
    )
    async for row in found:
        rows[row["job_id"], row["slice_index"]].append(row)
    return {key: _to_story(of_slice) for key, of_slice in rows.items()}


async def list_resumed(conn: Connection, job_ids: Collection[JobId]) -> list[tuple[JobId, AccountId, AccountId]]:
    """By job: who has saved what somebody else has gone on from, and who that was."""
    rows = _q.list_resumed(conn, job_ids=list(job_ids))
    return [(row["job_id"], row["saved_by"], row["resumed_by"]) async for row in rows]


async def find_kept_number(conn: Connection, key: SliceKey) -> int | None:
    number: int | None = await _q.find_kept_number(conn, job_id=key[0], slice_index=key[1])
    return number


async def leave_out(
    conn: Connection, key: SliceKey, *, numbers: Sequence[int], after: int, back_to: int | None
) -> None:
    """What these attempts have saved; the slice goes on from what another one has, if any. The slice is locked."""
    job_id, slice_index = key
    await _q.leave_out(conn, job_id=job_id, slice_index=slice_index, numbers=list(numbers), after=after)
    if back_to is None:
        await _q.forget_kept(conn, job_id=job_id, slice_index=slice_index)
    else:
        await _q.go_back(conn, job_id=job_id, slice_index=slice_index, number=back_to)


async def list_unjudged(conn: Connection, *, limit: int) -> list[tuple[SliceKey, int]]:
    """By slice and attempt."""
    rows = _q.list_unjudged(conn, limit_count=limit)
    return [((row["job_id"], row["slice_index"]), row["attempt_number"]) async for row in rows]


async def set_verdict(conn: Connection, attempt_id: AttemptId, verdict: Verdict) -> bool:
    """Whether nobody else was faster."""
    return bool(await _q.set_verdict(conn, attempt_id=attempt_id, verdict=verdict))


def _to_story(rows: Sequence[Any]) -> StoredStory:
    tries = tuple(StoredTry(row["id"], row["node_id"], _to_try(row)) for row in rows)
    return StoredStory(SliceState(rows[0]["slice_state"]), rows[0]["submitter_id"], tries)


def _to_try(row: Any) -> Try:
    return read_record(
        Try,
        row,
        state=AttemptState(row["state"]),
        cause=Cause(row["cause"]) if row["cause"] else None,
        verdict=Verdict(row["verdict"]) if row["verdict"] else None,
    )
