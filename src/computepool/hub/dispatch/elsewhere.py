"""What other hub processes have free, told once a second, so that a slice is not given a worse slot here while a
better one waits there. A hint, never a promise: a slice waits for it a moment only."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from computepool.core.jobs.spec import Requirements
from computepool.core.placement.fleet import FleetIndex
from computepool.core.placement.scorers import Candidate, score
from computepool.core.placement.shape import Shape, to_shape
from computepool.core.placement.slot import SlotKind
from computepool.core.placement.weights import Preference, Weights
from computepool.hub.store import hub as hub_store
from computepool.hub.store.connect import Pool

log = logging.getLogger("computepool.dispatch")

# A hub process that was not heard for this long is gone, or as good as gone.
SILENT_SECONDS = 4.0
# A score must be better by this much to be worth waiting for: one part in a hundred of price or speed.
MARGIN = 0.01
# Free slots that are looked at for the summary; with more, the rest is like them.
SAMPLE_MAX = 2_000

# Of a shape, a score depends only on whether it needs a GPU.
_GPU_WORK, _CPU_WORK = to_shape(Requirements(gpu=True)), to_shape(Requirements(gpu=False))


class Elsewhere:
    def __init__(self, pool: Pool, fleet: FleetIndex, weights: Weights, hub_process_id: UUID) -> None:
        self._pool = pool
        self._fleet = fleet
        self._weights = weights
        self._hub_process_id = hub_process_id
        # Per hub process, by kind and tier.
        self._others: dict[UUID, dict[str, Any]] = {}

    @property
    def alone(self) -> bool:
        return not self._others

    async def exchange(self) -> None:
        """Once a second: one statement that tells and hears."""
        async with self._pool.acquire() as conn:
            self._others = await hub_store.exchange_summaries(
                conn,
                hub_process_id=self._hub_process_id,
                free=summarise(self._fleet, self._weights),
                seconds=SILENT_SECONDS,
            )

    async def leave(self) -> None:
        """On shutdown: nobody should wait for slots that are here no more."""
        async with self._pool.acquire() as conn:
            await hub_store.delete_summary(conn, self._hub_process_id)

    def is_better(self, shape: Shape, prefer: Preference, candidate: Candidate) -> bool:
        if not self._others:
            return False
        here = score(candidate, shape, self._weights, prefer)
        return any(_offers_better(free, shape, prefer, here) for free in self._others.values())


def summarise(fleet: FleetIndex, weights: Weights) -> dict[str, Any]:
    """By kind and tier: how many slots are free, the most VRAM among them, and the best score per preference."""
    summary: dict[str, Any] = {}
    for candidate in _sample(fleet):
        slot = candidate.slot
        bucket = summary.setdefault(f"{slot.kind.value}|{slot.tier}", {"free": 0, "vram": 0, "best": {}})
        bucket["free"] += 1
        bucket["vram"] = max(bucket["vram"], slot.vram_bytes)
        for prefer in Preference:
            points = score(candidate, _GPU_WORK if slot.kind is SlotKind.GPU else _CPU_WORK, weights, prefer)
            bucket["best"][prefer.value] = max(points, bucket["best"].get(prefer.value, points))
    return summary


def _sample(fleet: FleetIndex) -> Iterable[Candidate]:
    for number, candidate in enumerate(fleet):
        if number >= SAMPLE_MAX:
            return
        yield candidate


def _offers_better(free: Mapping[str, Any], shape: Shape, prefer: Preference, here: float) -> bool:
    for name, bucket in free.items():
        kind, _, tier = name.partition("|")
        if shape.gpu and kind != SlotKind.GPU.value:
            continue
        if (shape.tiers and tier not in shape.tiers) or bucket["vram"] < shape.vram_bytes:
            continue
        # Work that needs no GPU is never better off on one.
        if not shape.gpu and kind == SlotKind.GPU.value:
            continue
        if bucket["best"].get(prefer.value, here) > here + MARGIN:
            return True
    return False
