"""Attempts and their leases."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from computepool.core.ids import AccountId, AttemptId, JobId, NodeId, SlotName
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.lease import Attempt
from computepool.core.jobs.state import AttemptState, SliceState
from computepool.hub.store.connect import Connection
from computepool.hub.store.queries import load_queries
from computepool.hub.store.slices import SliceKey

_q = load_queries("attempts")


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease to be written."""

    id: AttemptId
    job_id: JobId
    slice_index: int
    number: int
    node_id: NodeId
    slot: SlotName


@dataclass(frozen=True, slots=True)
class Standing:
    """How an attempt that a node says it runs stands in the hub's own record."""

    id: AttemptId
    node_id: NodeId
    state: AttemptState
    cause: Cause | None
    slice_state: SliceState


@dataclass(frozen=True, slots=True)
class Reported:
    """Where an attempt belongs; never changes."""

    key: SliceKey
    account_id: AccountId


@dataclass(frozen=True, slots=True)
class LockedAttempt:
    attempt: Attempt
    expires_at: datetime


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


@dataclass(frozen=True, slots=True)
class ReportRow:
    id: AttemptId
    exit_code: int | None
    message: str
    run_seconds: float
    cpu_seconds: float
    memory_bytes_peak: int
    outputs: list[dict[str, Any]]
    result_sha256: bytes | None
    receipt: str | None


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


async def insert_attempts(conn: Connection, grants: Sequence[Grant], *, lease_seconds: float) -> set[AttemptId]:
    """The ids that were really inserted; the others met a live attempt on their slice or slot."""
    rows = _q.insert_attempts(
        conn,
        ids=[g.id for g in grants],
        job_ids=[g.job_id for g in grants],
        slice_indexes=[g.slice_index for g in grants],
        numbers=[g.number for g in grants],
        node_ids=[g.node_id for g in grants],
        slots=[g.slot for g in grants],
        lease_seconds=lease_seconds,
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


async def list_reported(conn: Connection, ids: Iterable[AttemptId]) -> dict[AttemptId, Reported]:
    rows = _q.list_reported(conn, ids=sorted(ids))
    return {row["id"]: Reported((row["job_id"], row["slice_index"]), row["account_id"]) async for row in rows}


async def lock_attempts(
    conn: Connection, *, keys: Iterable[SliceKey], ids: Iterable[AttemptId] = ()
) -> dict[AttemptId, LockedAttempt]:
    """The live attempts of these slices, and the named ones whatever their state."""
    ordered = sorted(set(keys))
    rows = _q.lock_attempts_of_slices(
        conn, job_ids=[k[0] for k in ordered], slice_indexes=[k[1] for k in ordered], ids=sorted(ids)
    )
    return {row["id"]: LockedAttempt(_to_attempt(row), row["expires_at"]) async for row in rows}


async def apply_attempts(conn: Connection, attempts: Sequence[Attempt]) -> None:
    await _q.apply_attempts(
        conn,
        ids=[a.id for a in attempts],
        states=[a.state for a in attempts],
        causes=[a.cause for a in attempts],
        report_sha256s=[a.report_sha256 for a in attempts],
    )


async def record_reports(conn: Connection, reports: Sequence[ReportRow]) -> None:
    await _q.record_reports(
        conn,
        ids=[r.id for r in reports],
        exit_codes=[r.exit_code for r in reports],
        messages=[r.message for r in reports],
        run_seconds=[r.run_seconds for r in reports],
        cpu_seconds=[r.cpu_seconds for r in reports],
        memory_bytes_peaks=[r.memory_bytes_peak for r in reports],
        # As text: a list of lists would be taken for an array of two dimensions.
        outputs=[msgspec.json.encode(r.outputs).decode() for r in reports],
        result_sha256s=[r.result_sha256 for r in reports],
        receipts=[r.receipt for r in reports],
    )


async def extend_leases(conn: Connection, held: Sequence[tuple[AttemptId, NodeId]], *, lease_seconds: float) -> None:
    await _q.extend_leases(conn, ids=[h[0] for h in held], node_ids=[h[1] for h in held], lease_seconds=lease_seconds)


async def list_unacknowledged(
    conn: Connection, held: Sequence[tuple[AttemptId, NodeId]]
) -> dict[AttemptId, SliceKey]:
    rows = _q.list_unacknowledged(conn, ids=[h[0] for h in held], node_ids=[h[1] for h in held])
    return {row["id"]: (row["job_id"], row["slice_index"]) async for row in rows}


async def list_overdue(conn: Connection, *, grace_seconds: float, limit: int) -> dict[AttemptId, SliceKey]:
    rows = _q.list_overdue(conn, grace_seconds=grace_seconds, limit_count=limit)
    return {row["id"]: (row["job_id"], row["slice_index"]) async for row in rows}


async def find_held(conn: Connection, id: AttemptId) -> HeldAttempt | None:
    row = await _q.find_held(conn, id=id)
    return HeldAttempt(**{**row, "state": AttemptState(row["state"])}) if row else None


async def list_attempts(conn: Connection, *, job_id: JobId, slice_indexes: Sequence[int]) -> list[AttemptRow]:
    rows = _q.list_attempts(conn, job_id=job_id, slice_indexes=list(slice_indexes))
    names = AttemptRow.__dataclass_fields__
    return [
        AttemptRow(
            **{
                **{name: row[name] for name in names},
                "state": AttemptState(row["state"]),
                "cause": _cause(row["cause"]),
            }
        )
        async for row in rows
    ]


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
    )
