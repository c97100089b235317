"""Runs of submitters' commands that compare two results of a slice."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from computepool.core.ids import AccountId, AttemptId, JobId, NodeId
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.state import AttemptState, JobState
from computepool.hub.store.connect import Connection
from computepool.hub.store.queries import load_queries

_q = load_queries("comparisons")


@dataclass(frozen=True, slots=True)
class StoredComparison:
    job_id: JobId
    # Whose results, the earlier run first.
    one_id: AttemptId
    other_id: AttemptId
    job_state: JobState
    # Of the run of the command.
    state: AttemptState
    exit_code: int | None
    cause: Cause | None
    finished_at: datetime | None
    node_id: NodeId
    owner_id: AccountId
    # Where its node calls from; None: not known.
    network: str | None


async def list_comparisons(conn: Connection, attempt_id: AttemptId) -> list[StoredComparison]:
    """Those that the check of this attempt has asked for."""
    return [
        StoredComparison(
            row["job_id"],
            row["one_id"],
            row["other_id"],
            JobState(row["job_state"]),
            AttemptState(row["state"]),
            row["exit_code"],
            Cause(row["cause"]) if row["cause"] else None,
            row["finished_at"],
            row["node_id"],
            row["owner_id"],
            row["network"],
        )
        async for row in _q.list_comparisons(conn, attempt_id=attempt_id)
    ]


async def insert_comparison(
    conn: Connection, attempt_id: AttemptId, *, job_id: JobId, number: int, one_id: AttemptId, other_id: AttemptId
) -> bool:
    """False: somebody else has asked meanwhile, or the check is decided."""
    asked = await _q.insert_comparison(
        conn, attempt_id=attempt_id, job_id=job_id, number=number, one_id=one_id, other_id=other_id
    )
    return bool(asked)
