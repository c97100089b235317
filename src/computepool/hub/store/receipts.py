"""Receipts that nodes have sent, and which of them were found to hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from uuid import UUID

from computepool.core.ids import AttemptId, NodeId
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


async def take_unverified(conn: Connection, *, limit: int) -> list[StoredReceipt]:
    return [StoredReceipt(**row) async for row in _q.take_unverified(conn, limit_count=limit)]


async def list_covered(conn: Connection, ids: Sequence[UUID]) -> Mapping[UUID, dict[AttemptId, bytes]]:
    """By receipt: the results that it has to vouch for."""
    found: dict[UUID, dict[AttemptId, bytes]] = defaultdict(dict)
    async for row in _q.list_covered(conn, ids=list(ids)):
        found[row["receipt_id"]][row["attempt_id"]] = row["result_sha256"]
    return found


async def set_states(conn: Connection, states: Mapping[UUID, ReceiptState]) -> None:
    await _q.set_states(conn, ids=list(states), states=list(states.values()))


async def has_unverified(conn: Connection, *, seconds: float) -> bool:
    """Any that came longer ago than this."""
    return bool(await _q.has_unverified(conn, seconds=seconds))
