"""Shapes: the quantised hard gates that slices share."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Any

from computepool.core.ids import ShapeId
from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.placement.shape import Shape
from computepool.hub.store.connect import Connection
from computepool.hub.store.queries import load_queries

_q = load_queries("shapes")


async def get_or_insert_shapes(conn: Connection, shapes: Set[Shape]) -> dict[Shape, ShapeId]:
    # Looked up first: an upsert would lock the row, and submits of one shape would queue up behind each other.
    by_digest = {shape.digest: shape for shape in shapes}
    if not by_digest:
        return {}
    rows = _q.list_known(conn, digests=sorted(by_digest))
    known = {by_digest[row["digest"]]: ShapeId(row["id"]) async for row in rows}
    # In order of digest, so that two hubs that meet the same new shapes never wait for each other in a circle.
    for digest in sorted(by_digest):
        if by_digest[digest] not in known:
            known[by_digest[digest]] = await _upsert(conn, by_digest[digest])
    return known


async def _upsert(conn: Connection, shape: Shape) -> ShapeId:
    return ShapeId(
        await _q.upsert_shape(
            conn,
            digest=shape.digest,
            gpu=shape.gpu,
            vram_bytes=shape.vram_bytes,
            cores=shape.cores,
            ram_bytes=shape.ram_bytes,
            disk_bytes=shape.disk_bytes,
            tiers=list(shape.tiers),
            regions=list(shape.regions),
            isolation=shape.isolation,
            ceiling_microcredits_per_hour=shape.ceiling_microcredits_per_hour,
            job_kind=shape.job_kind,
            slice_seconds=shape.slice_seconds,
            base_ceiling_microcredits_per_hour=shape.base_ceiling_microcredits_per_hour,
            wants=list(shape.wants),
        )
    )


async def list_shapes(conn: Connection, ids: Iterable[ShapeId]) -> dict[ShapeId, Shape]:
    return {ShapeId(row["id"]): to_shape(row) async for row in _q.list_shapes(conn, ids=sorted(ids))}


def to_shape(row: Any) -> Shape:
    """From any row that has the columns of `shapes`."""
    return Shape(
        gpu=row["gpu"],
        vram_bytes=row["vram_bytes"],
        cores=row["cores"],
        ram_bytes=row["ram_bytes"],
        disk_bytes=row["disk_bytes"],
        tiers=tuple(row["tiers"]),
        regions=tuple(row["regions"]),
        isolation=IsolationLevel(row["isolation"]),
        ceiling_microcredits_per_hour=row["ceiling_microcredits_per_hour"],
        job_kind=row["job_kind"],
        slice_seconds=row["slice_seconds"],
        base_ceiling_microcredits_per_hour=row["base_ceiling_microcredits_per_hour"],
        wants=tuple(row["wants"]),
    )
