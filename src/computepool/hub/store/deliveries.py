"""Attempts that end the usual way: live, the newest of their slices, with a result."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from computepool.core.ids import AccountId, AttemptId, JobId, NodeId, SlotName
from computepool.core.ledger.charging import Charge
from computepool.hub.store.arrays import to_array, to_bytes_array, to_sparse_array
from computepool.hub.store.attempts import (
    JobCounts,
    ReceiptRow,
    ReportRow,
    list_record_columns,
    list_report_columns,
)
from computepool.hub.store.connect import Connection
from computepool.hub.store.events import NewEvent
from computepool.hub.store.queries import load_queries

_q = load_queries("deliveries")


class Held(NamedTuple):
    """An attempt and its job while both are locked. The columns of the query, in its order."""

    id: AttemptId
    job_id: JobId
    slice_index: int
    number: int
    node_id: NodeId
    slot: SlotName
    leased_at: datetime
    expected_seconds: float
    rate_microcredits_per_hour: int
    slice_price_microcredits: int | None
    fee_ppm: int
    saved_seconds: int
    owner_id: AccountId
    # Of the job.
    account_id: AccountId
    slice_count: int
    succeeded_count: int
    failed_count: int
    cancelled_count: int
    started_at: datetime | None
    run_seconds_sum: float
    wall_seconds: int
    held_remaining: int
    reserve_microcredits: int
    charged_microcredits: int
    # The database's time.
    now: datetime


class Delivery(NamedTuple):
    """The end of one attempt, to be written."""

    held: Held
    report_sha256: bytes
    report: ReportRow
    charge: Charge | None


async def lock_held(conn: Connection, wanted: Sequence[tuple[AttemptId, NodeId]]) -> list[Held]:
    """Those of these attempts that their nodes hold and that are the newest of their slices."""
    rows = _q.lock_held(conn, ids=to_array([w[0] for w in wanted]), node_ids=to_array([w[1] for w in wanted]))
    return [Held._make(row.values()) async for row in rows]


async def record_deliveries(
    conn: Connection,
    deliveries: Sequence[Delivery],
    jobs: Sequence[JobCounts],
    receipts: Sequence[ReceiptRow],
    events: Sequence[NewEvent],
    *,
    now: datetime,
) -> None:
    """`now` is the database's time when the rows were locked: by it attempts are metered."""
    reports = [d.report for d in deliveries]
    charges = [d.charge for d in deliveries]
    await _q.record_deliveries(
        conn,
        now=now,
        ids=to_array([d.held.id for d in deliveries]),
        job_ids=to_array([d.held.job_id for d in deliveries]),
        slice_indexes=to_array([d.held.slice_index for d in deliveries]),
        report_sha256s=to_bytes_array([d.report_sha256 for d in deliveries]),
        **list_report_columns(reports),
        charged=to_sparse_array([c.total_microcredits if c else None for c in charges]),
        fees=to_sparse_array([c.fee_microcredits if c else None for c in charges]),
        counted_job_ids=to_array([j.id for j in jobs]),
        succeeded=to_array([j.succeeded_count for j in jobs]),
        job_states=to_array([j.state for j in jobs]),
        run_seconds_sums=to_array([j.run_seconds_sum for j in jobs]),
        held_remaining=to_array([j.held_remaining for j in jobs]),
        job_charged=to_array([j.charged_microcredits for j in jobs]),
        **list_record_columns(receipts, events),
    )


async def lock_withheld(conn: Connection, id: AttemptId) -> tuple[Held, float] | None:
    """An attempt whose result is kept back, as of its end, and how long it says that it ran."""
    row = await _q.lock_withheld(conn, id=id)
    if not row:
        return None
    *held, run_seconds = row.values()
    return Held._make(held), run_seconds or 0.0


async def record_acceptance(
    conn: Connection, held: Held, *, accepted_id: AttemptId, charge: Charge | None, job: JobCounts
) -> None:
    """The slice is delivered, by this attempt or by the one that got it right."""
    await _q.record_acceptance(
        conn,
        id=held.id,
        job_id=held.job_id,
        slice_index=held.slice_index,
        accepted_id=accepted_id,
        charged=charge.total_microcredits if charge else None,
        fee=charge.fee_microcredits if charge else None,
        succeeded=job.succeeded_count,
        job_state=job.state,
        run_seconds_sum=job.run_seconds_sum,
        held_remaining=job.held_remaining,
        job_charged=job.charged_microcredits,
    )
