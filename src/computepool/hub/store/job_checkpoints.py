"""The last accepted checkpoint of each slice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from computepool.core.ids import AttemptId, JobId
from computepool.core.jobs.checkpoint import Claim, Kept, SavedFile, Standing
from computepool.core.jobs.state import AttemptState
from computepool.hub.store.connect import Connection
from computepool.hub.store.queries import load_queries

_q = load_queries("job_checkpoints")


@dataclass(frozen=True, slots=True)
class LockedStanding:
    job_id: JobId
    slice_index: int
    standing: Standing


@dataclass(frozen=True, slots=True)
class KeptFiles:
    attempt_number: int
    files: tuple[SavedFile, ...]


async def lock_attempt(conn: Connection, id: AttemptId) -> LockedStanding | None:
    """Its slice must be locked before."""
    row = await _q.lock_attempt(conn, id=id)
    if row is None:
        return None
    standing = Standing(
        number=row["number"],
        state=AttemptState(row["state"]),
        held_seconds=row["held_seconds"],
        saved_seconds=row["saved_seconds"],
        kept=_to_kept(row),
    )
    return LockedStanding(row["job_id"], row["slice_index"], standing)


async def save_checkpoint(
    conn: Connection, *, attempt_id: AttemptId, locked: LockedStanding, claim: Claim, saved_seconds: int
) -> None:
    await _q.save_checkpoint(
        conn,
        job_id=locked.job_id,
        slice_index=locked.slice_index,
        attempt_id=attempt_id,
        attempt_number=locked.standing.number,
        number=claim.number,
        sha256=bytes.fromhex(claim.sha256),
        files=[{"path": f.path, "sha256": f.sha256, "size_bytes": f.size_bytes} for f in claim.files],
        size_bytes=claim.size_bytes,
        progress=claim.progress,
        saved_seconds=saved_seconds,
    )


async def find_kept(conn: Connection, *, job_id: JobId, slice_index: int) -> KeptFiles | None:
    row = await _q.find_kept(conn, job_id=job_id, slice_index=slice_index)
    if row is None:
        return None
    return KeptFiles(row["attempt_number"], tuple(SavedFile(**file) for file in row["files"]))


async def list_progress(conn: Connection, *, job_id: JobId, slice_indexes: Sequence[int]) -> dict[int, float]:
    """By slice, where its job has said how far it is."""
    rows = _q.list_progress(conn, job_id=job_id, slice_indexes=list(slice_indexes))
    return {row["slice_index"]: row["progress"] async for row in rows}


def _to_kept(row: Any) -> Kept | None:
    if row["kept_number"] is None:
        return None
    return Kept(row["kept_attempt_number"], row["kept_number"], row["kept_sha256"].hex())
