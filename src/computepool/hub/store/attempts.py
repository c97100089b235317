"""Attempts and their leases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import msgspec

from computepool.core.ids import AccountId, AttemptId, JobId, NodeId, RunId, SlotName
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.lease import Attempt, Slice
from computepool.core.jobs.state import AttemptState, JobState, SliceState
from computepool.core.ledger.charging import Charge, LeaseTerms
from computepool.hub.store.arrays import to_array, to_bytes_array, to_sparse_array, to_text_array
from computepool.hub.store.connect import Connection
from computepool.hub.store.events import NewEvent
from computepool.hub.store.queries import load_queries
from computepool.hub.store.slices import SliceKey

_q = load_queries("attempts")


class Grant(NamedTuple):
    """A lease to be written."""

    id: AttemptId
    account_id: AccountId
    job_id: JobId
    slice_index: int
    number: int
    node_id: NodeId
    slot: SlotName
    # What the account's fair share is charged until the attempt has ended.
    expected_seconds: float
    # The price that is agreed with it: by the hour, or for the whole slice.
    rate_microcredits_per_hour: int | None
    terms: LeaseTerms
    slice_price_microcredits: int | None = None
    # The slot is lent to a private pool, at its owner's price.
    pooled: bool = False


@dataclass(frozen=True, slots=True)
class Standing:
    """How an attempt that a node says it runs stands in the hub's own record."""

    id: AttemptId
    node_id: NodeId
    state: AttemptState
    cause: Cause | None
    slice_state: SliceState


class LockedAttempt(NamedTuple):
    attempt: Attempt
    leased_at: datetime
    expires_at: datetime
    expected_seconds: float
    # Whose node it is, and what was agreed.
    owner_id: AccountId
    rate_microcredits_per_hour: int
    fee_ppm: int
    # Of a seat of a run: what it is paid to at most. None: an ordinary attempt.
    checkpoint_seconds: int | None = None
    # In place of the rate, where the slice has a fixed price.
    slice_price_microcredits: int | None = None


@dataclass(frozen=True, slots=True)
class Locked:
    """Attempts and jobs of slices that were locked before, and the database's time."""

    attempts: dict[AttemptId, LockedAttempt]
    jobs: dict[JobId, JobCounts]
    now: datetime | None


class JobCounts(NamedTuple):
    """A job's row while it is locked: what its slices have come to."""

    id: JobId
    account_id: AccountId
    slice_count: int
    succeeded_count: int
    failed_count: int
    cancelled_count: int
    started_at: datetime | None
    state: JobState
    # Of the slices that succeeded.
    run_seconds_sum: float
    wall_seconds: int
    # What is left of its hold, the most that a slice can cost, and what its attempts have cost.
    held_remaining: int
    reserve_microcredits: int
    charged_microcredits: int
    # Its slices are seats of this run.
    run_id: RunId | None = None

    @property
    def open_count(self) -> int:
        return self.slice_count - self.succeeded_count - self.failed_count - self.cancelled_count


@dataclass(frozen=True, slots=True)
class HeldAttempt:
    id: AttemptId
    job_id: JobId
    slice_index: int
    number: int
    node_id: NodeId
    state: AttemptState
    log_bytes: int
    account_id: AccountId
    spec: dict[str, Any]
    # Number of the slice's newest attempt; a higher one than ours has taken over.
    newest_number: int


class ReportRow(NamedTuple):
    """What a node said of an attempt's end. What is None leaves the row as it is."""

    exit_code: int | None = None
    message: str | None = None
    run_seconds: float | None = None
    cpu_seconds: float | None = None
    memory_bytes_peak: int | None = None
    outputs: Sequence[dict[str, Any]] = ()
    result_sha256: bytes | None = None
    receipt_id: UUID | None = None


_NO_REPORT = ReportRow()


class ReceiptRow(NamedTuple):
    id: UUID
    node_id: NodeId
    token: str


@dataclass(frozen=True, slots=True)
class Changes:
    """All that one transaction writes about the course of slices."""

    attempts: Sequence[Attempt]
    # By attempt: what its node said of its end, and what it costs, if anything.
    reports: Mapping[AttemptId, ReportRow]
    charges: Mapping[AttemptId, Charge]
    # With the attempt whose result counts, when the slice succeeded.
    slices: Sequence[tuple[Slice, AttemptId | None]]
    jobs: Sequence[JobCounts]
    receipts: Sequence[ReceiptRow]
    events: Sequence[NewEvent]
    # The database's time when the rows were locked: attempts end at the moment by which they were metered.
    now: datetime


@dataclass(frozen=True, slots=True)
class AttemptRow:
    id: AttemptId
    slice_index: int
    number: int
    node_id: NodeId
    slot: str
    state: AttemptState
    leased_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    run_seconds: float | None
    exit_code: int | None
    cause: Cause | None
    message: str
    outputs: list[dict[str, Any]]
    rate_microcredits_per_hour: int | None
    slice_price_microcredits: int | None
    charged_microcredits: int | None
    fee_microcredits: int | None
    saved_seconds: int
    saved_at: datetime | None


async def insert_leases(
    conn: Connection, grants: Sequence[Grant], *, rate_card_version: str, lease_seconds: float
) -> set[AttemptId]:
    """The ids that were really inserted; the others met a live attempt on their slice or slot."""
    rows = _q.insert_leases(
        conn,
        ids=to_array([g.id for g in grants]),
        **list_grant_columns(grants),
        lease_seconds=lease_seconds,
        rate_card_version=rate_card_version,
    )
    return {row["id"] async for row in rows}


async def list_live_by_nodes(conn: Connection, node_ids: Iterable[NodeId]) -> list[Attempt]:
    return [_to_attempt(row) async for row in _q.list_live_by_nodes(conn, node_ids=sorted(node_ids))]


async def list_standing(conn: Connection, ids: Iterable[AttemptId]) -> list[Standing]:
    return [
        Standing(
            row["id"],
            row["node_id"],
            AttemptState(row["state"]),
            _cause(row["cause"]),
            SliceState(row["slice_state"]),
        )
        async for row in _q.list_standing(conn, ids=sorted(ids))
    ]


async def list_owners(conn: Connection, ids: Iterable[AttemptId]) -> dict[AttemptId, AccountId]:
    return {row["id"]: row["account_id"] async for row in _q.list_owners(conn, ids=sorted(ids))}


async def lock_attempts_and_jobs(
    conn: Connection, *, keys: Iterable[SliceKey], ids: Iterable[AttemptId] = ()
) -> Locked:
    """The live attempts of these slices and the named ones whatever their state; and the slices' jobs."""
    ordered = sorted(keys)
    attempts: dict[AttemptId, LockedAttempt] = {}
    jobs: dict[JobId, JobCounts] = {}
    now = None
    async for row in _q.lock_attempts_and_jobs(
        conn,
        job_ids=to_array([k[0] for k in ordered]),
        slice_indexes=to_array([k[1] for k in ordered]),
        ids=to_array(sorted(ids)),
    ):
        now = row["now"]
        if row["counted_job_id"] not in jobs:
            jobs[row["counted_job_id"]] = _to_counts(row)
        if row["id"] is not None:
            attempts[row["id"]] = LockedAttempt(
                _to_attempt(row),
                row["leased_at"],
                row["expires_at"],
                row["expected_seconds"],
                row["owner_id"],
                row["rate_microcredits_per_hour"] or 0,
                row["fee_ppm"] or 0,
                row["checkpoint_seconds"],
                row["slice_price_microcredits"],
            )
    return Locked(attempts, jobs, now)


async def apply_changes(conn: Connection, changes: Changes) -> None:
    attempts, jobs, receipts, events = changes.attempts, changes.jobs, changes.receipts, changes.events
    slices = [slice_ for slice_, _ in changes.slices]
    reports = [changes.reports.get(a.id, _NO_REPORT) for a in attempts]
    charges = [changes.charges.get(a.id) for a in attempts]
    await _q.apply_changes(
        conn,
        now=changes.now,
        ids=to_array([a.id for a in attempts]),
        states=to_array([a.state for a in attempts]),
        causes=to_array([a.cause for a in attempts]),
        report_sha256s=to_bytes_array([a.report_sha256 for a in attempts]),
        **list_report_columns(reports),
        charged=to_array([c.total_microcredits if c else None for c in charges]),
        fees=to_array([c.fee_microcredits if c else None for c in charges]),
        slice_job_ids=to_array([s.job_id for s in slices]),
        slice_indexes=to_array([s.index for s in slices]),
        slice_states=to_array([s.state for s in slices]),
        failure_counts=to_array([s.failure_count for s in slices]),
        killed_counts=to_array([s.killed_count for s in slices]),
        slice_causes=to_array([s.cause for s in slices]),
        avoid_node_ids=to_array([s.avoid_node_id for s in slices]),
        accepted_attempt_ids=to_array([attempt_id for _, attempt_id in changes.slices]),
        job_ids=to_array([j.id for j in jobs]),
        succeeded=to_array([j.succeeded_count for j in jobs]),
        failed=to_array([j.failed_count for j in jobs]),
        cancelled=to_array([j.cancelled_count for j in jobs]),
        job_states=to_array([j.state for j in jobs]),
        run_seconds_sums=to_array([j.run_seconds_sum for j in jobs]),
        held_remaining=to_array([j.held_remaining for j in jobs]),
        job_charged=to_array([j.charged_microcredits for j in jobs]),
        **list_record_columns(receipts, events),
    )


def list_grant_columns(grants: Sequence[Grant]) -> dict[str, str]:
    """Leases to be written, but for their ids, as the parameters that every statement which leases heads has."""
    return {
        "job_ids": to_array([g.job_id for g in grants]),
        "slice_indexes": to_array([g.slice_index for g in grants]),
        "numbers": to_array([g.number for g in grants]),
        "node_ids": to_array([g.node_id for g in grants]),
        "slots": to_text_array([g.slot for g in grants]),
        "expected_seconds": to_array([g.expected_seconds for g in grants]),
        "account_ids": to_array([g.account_id for g in grants]),
        "rates": to_array([g.rate_microcredits_per_hour for g in grants]),
        "slice_prices": to_sparse_array([g.slice_price_microcredits for g in grants]),
        "pooled": to_sparse_array([g.pooled or None for g in grants]),
        "fee_ppms": to_array([g.terms.fee_ppm for g in grants]),
        "holdbacks": to_array([g.terms.holdback_seconds for g in grants]),
    }


def list_report_columns(reports: Sequence[ReportRow]) -> dict[str, str]:
    """What nodes said of the ends of attempts, as the parameters that every statement which writes it has."""
    return {
        "exit_codes": to_array([r.exit_code for r in reports]),
        "messages": to_text_array([r.message for r in reports]),
        "run_seconds": to_array([r.run_seconds for r in reports]),
        "cpu_seconds": to_array([r.cpu_seconds for r in reports]),
        "memory_bytes_peaks": to_array([r.memory_bytes_peak for r in reports]),
        # As text: a list of lists would be taken for an array of two dimensions.
        "outputs": to_text_array([msgspec.json.encode(r.outputs).decode() if r.outputs else None for r in reports]),
        "result_sha256s": to_bytes_array([r.result_sha256 for r in reports]),
        "receipt_ids": to_array([r.receipt_id for r in reports]),
    }


def list_receipt_columns(receipts: Sequence[ReceiptRow]) -> dict[str, str]:
    return {
        "kept_receipt_ids": to_array([r.id for r in receipts]),
        "receipt_node_ids": to_array([r.node_id for r in receipts]),
        "receipt_tokens": to_text_array([r.token for r in receipts]),
    }


def list_record_columns(receipts: Sequence[ReceiptRow], events: Sequence[NewEvent]) -> dict[str, str]:
    """What is kept beside: receipts and events."""
    return {
        **list_receipt_columns(receipts),
        "event_kinds": to_text_array([e.kind for e in events]),
        "event_account_ids": to_array([e.account_id for e in events]),
        "event_job_ids": to_array([e.job_id for e in events]),
        "event_bodies": to_text_array([msgspec.json.encode(e.body).decode() for e in events]),
    }


async def extend_leases(
    conn: Connection, held: Sequence[tuple[AttemptId, NodeId]], *, lease_seconds: float
) -> list[AttemptId]:
    """Waits for nobody; returns the live attempts that others had locked, which `extend_lease` takes one by one."""
    ids, node_ids = to_array([h[0] for h in held]), to_array([h[1] for h in held])
    return [
        row["id"] async for row in _q.extend_leases(conn, ids=ids, node_ids=node_ids, lease_seconds=lease_seconds)
    ]


async def extend_lease(conn: Connection, id: AttemptId, *, lease_seconds: float) -> None:
    await _q.extend_lease(conn, id=id, lease_seconds=lease_seconds)


async def list_unacknowledged(conn: Connection, held: Sequence[tuple[AttemptId, NodeId]]) -> list[AttemptId]:
    ids, node_ids = to_array([h[0] for h in held]), to_array([h[1] for h in held])
    rows = _q.list_unacknowledged(conn, ids=ids, node_ids=node_ids)
    return [row["id"] async for row in rows]


async def list_overdue(conn: Connection, *, grace_seconds: float, limit: int) -> list[AttemptId]:
    rows = _q.list_overdue(conn, grace_seconds=grace_seconds, limit_count=limit)
    return [row["id"] async for row in rows]


async def find_held(conn: Connection, id: AttemptId) -> HeldAttempt | None:
    row = await _q.find_held(conn, id=id)
    return HeldAttempt(**{**row, "state": AttemptState(row["state"])}) if row else None


async def list_attempts(conn: Connection, *, job_id: JobId, slice_indexes: Sequence[int]) -> list[AttemptRow]:
    rows = _q.list_attempts(conn, job_id=job_id, slice_indexes=list(slice_indexes))
    return [to_row(row) async for row in rows]


def to_row(row: Any) -> AttemptRow:
    """From any row that has the columns of `attempts`."""
    values = {name: row[name] for name in AttemptRow.__dataclass_fields__}
    return AttemptRow(**{**values, "state": AttemptState(row["state"]), "cause": _cause(row["cause"])})


def _to_counts(row: Any) -> JobCounts:
    return JobCounts(
        id=row["counted_job_id"],
        account_id=row["account_id"],
        slice_count=row["slice_count"],
        succeeded_count=row["succeeded_count"],
        failed_count=row["failed_count"],
        cancelled_count=row["cancelled_count"],
        started_at=row["started_at"],
        state=JobState(row["job_state"]),
        run_seconds_sum=row["run_seconds_sum"],
        wall_seconds=row["wall_seconds"],
        held_remaining=row["held_remaining"],
        reserve_microcredits=row["reserve_microcredits"],
        charged_microcredits=row["charged_microcredits"],
        run_id=row["run_id"],
    )


def _cause(label: str | None) -> Cause | None:
    return Cause(label) if label else None


def _to_attempt(row: Any) -> Attempt:
    return Attempt(
        id=row["id"],
        job_id=row["job_id"],
        slice_index=row["slice_index"],
        number=row["number"],
        node_id=row["node_id"],
        slot=SlotName(row["slot"]),
        state=AttemptState(row["state"]),
        cause=_cause(row.get("cause")),
        report_sha256=row.get("report_sha256"),
        saved_seconds=row.get("saved_seconds", 0),
    )
