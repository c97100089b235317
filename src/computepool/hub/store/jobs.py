"""Jobs and the keys that make submitting them safe to repeat."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from computepool.core.ids import AccountId, AttemptId, JobId, RunId, ShapeId
from computepool.core.jobs.order import PriorityClass
from computepool.core.jobs.state import JobState
from computepool.core.ledger.transfer import Posting
from computepool.core.placement.price import SlicePrice
from computepool.core.placement.weights import Preference
from computepool.core.trust.validation import Verify
from computepool.hub.store.arrays import to_array, to_bytes_array, to_sparse_array, to_text_array
from computepool.hub.store.attempts import Grant
from computepool.hub.store.connect import Connection
from computepool.hub.store.ledger import telling_unpostable
from computepool.hub.store.queries import load_queries

_q = load_queries("jobs")


class Job(NamedTuple):
    id: JobId
    account_id: AccountId
    name: str
    spec: dict[str, Any]
    shape_id: ShapeId
    priority: int
    slice_count: int
    retries: int
    wall_seconds: int
    state: JobState
    succeeded_count: int
    failed_count: int
    cancelled_count: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    expires_at: datetime | None
    priority_class: PriorityClass
    prefer: Preference
    weight_set: str
    deadline_at: datetime | None
    run_seconds_sum: float
    # What is left of its hold, the most that a slice can cost, and what its attempts have cost so far.
    held_remaining: int
    reserve_microcredits: int
    charged_microcredits: int
    # Before tier and region, where each slice has a fixed price; None: the job pays by the second.
    slice_base_microcredits: int | None
    leased_count: int
    running_count: int
    # Its slices are seats of this run.
    run_id: RunId | None = None
    # The oldest work of a live attempt that no checkpoint holds.
    at_risk_since: datetime | None = None
    # How its results are checked; None: they are not.
    verify: Verify | None = None
    # Runs of it that should have agreed did not: nothing can be said of its results.
    nondeterministic: bool = False
    # It runs one slice of another job again, to check the result of this attempt.
    checks_attempt_id: AttemptId | None = None
    verifying_count: int = 0

    @property
    def slice_price(self) -> SlicePrice | None:
        return to_slice_price(self.slice_base_microcredits, self.reserve_microcredits, self.wall_seconds)


class JobOrder(NamedTuple):
    """What an assignment needs to know of a job."""

    id: JobId
    account_id: AccountId
    # As JSON.
    spec: str
    wall_seconds: int
    prefer: Preference
    weight_set: str
    run_id: RunId | None
    slice_base_microcredits: int | None
    reserve_microcredits: int
    # Its secrets, if it has any and is under way.
    sealed: bytes | None

    @property
    def slice_price(self) -> SlicePrice | None:
        return to_slice_price(self.slice_base_microcredits, self.reserve_microcredits, self.wall_seconds)


class NewJob(NamedTuple):
    """A job to be written, with all its slices. `spec` is JSON text."""

    id: JobId
    account_id: AccountId
    name: str
    spec: str
    shape_id: ShapeId
    priority: int
    priority_class: PriorityClass
    prefer: Preference
    weight_set: str
    slice_count: int
    retries: int
    wall_seconds: int
    deadline_at: datetime | None
    expires_at: datetime | None
    key: str | None
    request_sha256: bytes | None
    # The most that a slice can cost; the job holds as much for each.
    reserve_microcredits: int
    slice_base_microcredits: int | None = None
    # Its secrets.
    sealed: bytes | None = None
    verify: Verify | None = None

    @property
    def hold_microcredits(self) -> int:
        return self.slice_count * self.reserve_microcredits


@dataclass(frozen=True, slots=True)
class IdempotencyRow:
    account_id: AccountId
    key: str
    request_sha256: bytes
    job_id: JobId


@dataclass(frozen=True, slots=True)
class Inserted:
    """Jobs that were written, with when; and which of the leases they were to be born with were had."""

    created_at: dict[JobId, datetime]
    leased: set[AttemptId]


async def insert_jobs(
    conn: Connection,
    jobs: Sequence[NewJob],
    leases: Sequence[Grant],
    *,
    rate_card_version: str,
    lease_seconds: float,
    holds: Sequence[Posting] = (),
) -> Inserted:
    """What is not in the answer has a key that was used before, or by a twin in the same batch.

    `holds` are posted with their jobs; raises `Unpostable` if one of them cannot be.
    """
    with telling_unpostable():
        rows = [
            row
            async for row in _q.insert_jobs(
                conn,
                ids=to_array([j.id for j in jobs]),
                account_ids=to_array([j.account_id for j in jobs]),
                names=to_text_array([j.name for j in jobs]),
                specs=to_text_array([j.spec for j in jobs]),
                shape_ids=to_array([j.shape_id for j in jobs]),
                priorities=to_array([j.priority for j in jobs]),
                priority_classes=to_array([j.priority_class for j in jobs]),
                prefers=to_array([j.prefer for j in jobs]),
                weight_sets=to_text_array([j.weight_set for j in jobs]),
                slice_counts=to_array([j.slice_count for j in jobs]),
                retries=to_array([j.retries for j in jobs]),
                wall_seconds=to_array([j.wall_seconds for j in jobs]),
                deadlines=to_array([j.deadline_at for j in jobs]),
                expires_at=to_array([j.expires_at for j in jobs]),
                keys=to_text_array([j.key for j in jobs]),
                request_sha256s=to_bytes_array([j.request_sha256 for j in jobs]),
                reserves=to_array([j.reserve_microcredits for j in jobs]),
                slice_bases=to_sparse_array([j.slice_base_microcredits for j in jobs]),
                verifies=to_sparse_array([j.verify for j in jobs]),
                lease_seconds=lease_seconds,
                rate_card_version=rate_card_version,
                attempt_ids=to_array([g.id for g in leases]),
                attempt_job_ids=to_array([g.job_id for g in leases]),
                attempt_slice_indexes=to_array([g.slice_index for g in leases]),
                node_ids=to_array([g.node_id for g in leases]),
                slots=to_text_array([g.slot for g in leases]),
                expected_seconds=to_array([g.expected_seconds for g in leases]),
                rates=to_array([g.rate_microcredits_per_hour for g in leases]),
                slice_prices=to_sparse_array([g.slice_price_microcredits for g in leases]),
                pooled=to_sparse_array([g.pooled or None for g in leases]),
                fee_ppms=to_array([g.terms.fee_ppm for g in leases]),
                holdbacks=to_array([g.terms.holdback_seconds for g in leases]),
                hold_keys=to_text_array([hold.key for hold in holds]),
                hold_job_ids=to_array([hold.job_id for hold in holds]),
                hold_source_ids=to_text_array([hold.legs[0].source.id for hold in holds]),
                hold_target_ids=to_text_array([hold.legs[0].target.id for hold in holds]),
                hold_amounts=to_array([hold.legs[0].amount for hold in holds]),
            )
        ]
    return Inserted(
        {row["id"]: row["created_at"] for row in rows}, {row["attempt_id"] for row in rows if row["attempt_id"]}
    )


async def find_job(conn: Connection, id: JobId) -> Job | None:
    row = await _q.find_job(conn, id=id)
    return _to_job(row) if row else None


async def list_jobs(
    conn: Connection,
    *,
    account_id: AccountId | None,
    before: UUID | None,
    state: JobState | None,
    limit: int,
    name: str | None = None,
) -> list[Job]:
    """`name`: a part of it."""
    rows = _q.list_jobs(conn, account_id=account_id, before=before, state=state, name=name, limit_count=limit)
    return [_to_job(row) async for row in rows]


async def list_orders(conn: Connection, ids: Iterable[JobId]) -> dict[JobId, JobOrder]:
    return {
        row["id"]: JobOrder(**{**row, "prefer": Preference(row["prefer"])})
        async for row in _q.list_orders(conn, ids=sorted(ids))
    }


async def list_expired(conn: Connection, *, limit: int) -> list[JobId]:
    return [row["id"] async for row in _q.list_expired(conn, limit_count=limit)]


async def list_idempotent(
    conn: Connection, keys: Sequence[tuple[AccountId, str]]
) -> dict[tuple[AccountId, str], IdempotencyRow]:
    rows = _q.list_idempotent(conn, account_ids=[k[0] for k in keys], keys=[k[1] for k in keys])
    return {(row["account_id"], row["key"]): IdempotencyRow(**row) async for row in rows}


async def find_jobs(conn: Connection, ids: Iterable[JobId]) -> dict[JobId, Job]:
    return {row["id"]: _to_job(row) async for row in _q.find_jobs(conn, ids=sorted(ids))}


def to_slice_price(base: int | None, reserve: int, wall_seconds: int) -> SlicePrice | None:
    """What is held for a slice is the most that it may cost."""
    return None if base is None else SlicePrice(base, reserve, wall_seconds)


def _to_job(row: Any) -> Job:
    return Job(
        **{
            **row,
            "state": JobState(row["state"]),
            "priority_class": PriorityClass(row["priority_class"]),
            "prefer": Preference(row["prefer"]),
            "verify": Verify(row["verify"]) if row["verify"] else None,
        }
    )
