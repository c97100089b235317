"""Results for new leases, in one statement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from computepool.core.ids import AttemptId
from computepool.core.ledger.charging import Charge
from computepool.hub.store.arrays import to_array, to_bytes_array, to_sparse_array
from computepool.hub.store.attempts import (
    Grant,
    ReceiptRow,
    ReportRow,
    list_grant_columns,
    list_receipt_columns,
    list_report_columns,
)
from computepool.hub.store.connect import Connection
from computepool.hub.store.queries import load_queries

_q = load_queries("exchanges")


class Ended(NamedTuple):
    """The end of an attempt that was the first of its slice, to be written."""

    grant: Grant
    report_sha256: bytes
    report: ReportRow
    charge: Charge | None


class WrittenEnd(NamedTuple):
    """An end that was written: how long it had held its slot, and of its job what was open and held until then."""

    held_seconds: float
    open_count: int
    held_microcredits: int


class Exchanged(NamedTuple):
    """Which ends were written, and which leases."""

    ends: dict[AttemptId, WrittenEnd]
    granted: set[AttemptId]


async def exchange(
    conn: Connection,
    ends: Sequence[Ended],
    receipts: Sequence[ReceiptRow],
    grants: Sequence[Grant],
    *,
    rate_card_version: str,
    lease_seconds: float,
) -> Exchanged:
    """What is not in the answer was not as it was believed to be, and nothing of it is written."""
    charges = [e.charge for e in ends]
    written: dict[AttemptId, WrittenEnd] = {}
    granted: set[AttemptId] = set()
    async for row in _q.exchange(
        conn,
        ids=to_array([e.grant.id for e in ends]),
        end_job_ids=to_array([e.grant.job_id for e in ends]),
        end_slice_indexes=to_array([e.grant.slice_index for e in ends]),
        end_node_ids=to_array([e.grant.node_id for e in ends]),
        report_sha256s=to_bytes_array([e.report_sha256 for e in ends]),
        **list_report_columns([e.report for e in ends]),
        charged=to_sparse_array([c.total_microcredits if c else None for c in charges]),
        fees=to_sparse_array([c.fee_microcredits if c else None for c in charges]),
        lease_ids=to_array([g.id for g in grants]),
        **list_grant_columns(grants),
        lease_seconds=lease_seconds,
        rate_card_version=rate_card_version,
        **list_receipt_columns(receipts),
    ):
        id, held_seconds, open_count, held_microcredits = row.values()
        if held_seconds is None:
            granted.add(id)
        else:
            written[id] = WrittenEnd(held_seconds, open_count, held_microcredits)
    return Exchanged(written, granted)
