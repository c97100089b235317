"""Receipts that nodes have sent, and which of them were found to hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any
from uuid import UUID

from computepool.core.ids import AccountId, AttemptId, JobId, NodeId
from computepool.hub.store.connect import Connection
from computepool.hub.store.queries import load_queries

_q = load_queries("receipts")


class ReceiptState(str, Enum):
    UNVERIFIED = "unverified"
    VERIFIED = "verified"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class StoredReceipt:
    id: UUID
    node_id: NodeId
    token: str
    # Raw Ed25519 key of the node.
    public_key: bytes


@dataclass(frozen=True, slots=True)
class SignedResult:
    """A result that was reported, with what its node has signed for it."""

    attempt_id: AttemptId
    # As the receipt names it: another one where the result was taken over from a run that checked it.
    signed_id: AttemptId
    slice_index: int
    number: int
    # It is the slice's result.
    accepted: bool
    result_sha256: bytes | None
    # As they were reported: path, sha256, size_bytes.
    outputs: list[dict[str, Any]]
    node_id: NodeId
    # Raw Ed25519 key of the node.
    public_key: bytes
    # None: from before nodes signed.
    receipt_id: UUID | None
    token: str | None


async def take_unverified(conn: Connection, *, limit: int) -> list[StoredReceipt]:
    return [StoredReceipt(**row) async for row in _q.take_unverified(conn, limit_count=limit)]


async def list_covered(conn: Connection, ids: Sequence[UUID]) -> Mapping[UUID, dict[UUID, str]]:
    """By receipt: the results that it has to vouch for, as hashes in hex by attempt."""
    found: dict[UUID, dict[UUID, str]] = defaultdict(dict)
    async for row in _q.list_covered(conn, ids=list(ids)):
        found[row["receipt_id"]][row["attempt_id"]] = row["result_sha256"].hex()
    return found


async def set_states(conn: Connection, states: Mapping[UUID, ReceiptState]) -> None:
    await _q.set_states(conn, ids=list(states), states=list(states.values()))


async def list_signed(
    conn: Connection, *, job_id: JobId, owner_id: AccountId | None, after: int, limit: int
) -> list[SignedResult]:
    """By slice and number; of whole slices, so that there may be more than `limit`. With `owner_id` by its nodes."""
    rows = _q.list_signed(conn, job_id=job_id, owner_id=owner_id, after_index=after, limit_count=limit)
    return sorted([SignedResult(**row) async for row in rows], key=lambda each: (each.slice_index, each.number))


async def has_signed(conn: Connection, *, job_id: JobId, owner_id: AccountId) -> bool:
    """Whether a node of this owner has reported a result of the job."""
    return bool(await _q.has_signed(conn, job_id=job_id, owner_id=owner_id))


async def has_unverified(conn: Connection, *, seconds: float) -> bool:
    """Any that came longer ago than this."""
    return bool(await _q.has_unverified(conn, seconds=seconds))
