"""Evidence of how nodes end what they take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from computepool.core.ids import NodeId
from computepool.core.trust.reputation import Reliability
from computepool.hub.store.connect import Connection
from computepool.hub.store.queries import load_queries

_q = load_queries("reliabilities")

# Node and class of jobs.
EvidenceKey = tuple[NodeId, str]


async def lock_reliabilities(
    conn: Connection, keys: Sequence[EvidenceKey], *, now: datetime
) -> dict[EvidenceKey, Reliability]:
    """One for each key; for a node that nobody knows of yet, the empty one. `keys` are in order."""
    node_ids, job_classes = [k[0] for k in keys], [k[1] for k in keys]
    await _q.insert_absent(conn, node_ids=node_ids, job_classes=job_classes, now=now)
    return dict([_to_item(r) async for r in _q.lock_reliabilities(conn, node_ids=node_ids, job_classes=job_classes)])


async def set_reliabilities(conn: Connection, known: Mapping[EvidenceKey, Reliability]) -> None:
    await _q.set_reliabilities(
        conn,
        node_ids=[node_id for node_id, _ in known],
        job_classes=[job_class for _, job_class in known],
        finished=[r.finished for r in known.values()],
        failed=[r.failed for r in known.values()],
        faults_running=[r.faults_running for r in known.values()],
        counted_at=[r.counted_at for r in known.values()],
    )


async def list_reliabilities(conn: Connection, node_ids: Iterable[NodeId]) -> dict[EvidenceKey, Reliability]:
    return dict([_to_item(row) async for row in _q.list_reliabilities(conn, node_ids=sorted(node_ids))])


def _to_item(row: Any) -> tuple[EvidenceKey, Reliability]:
    known = Reliability(row["finished"], row["failed"], row["faults_running"], row["counted_at"])
    return (row["node_id"], row["job_class"]), known
