"""Shapes, and which of them have slices waiting."""

from __future__ import annotations

from collections.abc import Iterable

from computepool.core.ids import ShapeId
from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.placement.shape import Shape
from computepool.hub.store.connect import Connection
from computepool.hub.store.queries import load_queries

_q = load_queries("shapes")


async def get_or_insert_shape(conn: Connection, shape: Shape) -> ShapeId:
    # Looked up first: an upsert would lock the row, and submits of one shape would queue up behind each other.
    known = await _q.find_shape(conn, digest=shape.digest)
    if known is not None:
        return ShapeId(known)
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
        )
    )


async def list_shapes(conn: Connection, ids: Iterable[ShapeId]) -> dict[ShapeId, Shape]:
    return {
        ShapeId(row["id"]): Shape(
            gpu=row["gpu"],
            vram_bytes=row["vram_bytes"],
            cores=row["cores"],
            ram_bytes=row["ram_bytes"],
            disk_bytes=row["disk_bytes"],
            tiers=tuple(row["tiers"]),
            regions=tuple(row["regions"]),
            isolation=IsolationLevel(row["isolation"]),
        )
        async for row in _q.list_shapes(conn, ids=sorted(ids))
    }


async def list_backlogged(conn: Connection) -> list[ShapeId]:
    return [ShapeId(row["shape_id"]) async for row in _q.list_backlogged(conn)]
