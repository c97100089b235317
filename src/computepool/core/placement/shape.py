"""Shapes: the hard gates of many slices, quantised so that a long backlog has few of them."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.jobs.spec import Requirements

VRAM_STEP_BYTES = 500_000_000
RAM_STEP_BYTES = 500_000_000
DISK_STEP_BYTES = 1_000_000_000
CEILING_STEP_RATIO = 1.05


@dataclass(frozen=True, slots=True)
class Shape:
    """Gates are rounded up and the ceiling down, so a slot that passes the shape always passes the request."""

    gpu: bool
    vram_bytes: int
    cores: int
    ram_bytes: int
    disk_bytes: int
    tiers: tuple[str, ...]
    regions: tuple[str, ...]
    isolation: IsolationLevel
    ceiling_microcredits_per_hour: int | None = None

    @property
    def digest(self) -> bytes:
        """Equal shapes have equal digests on every hub."""
        text = "|".join(
            (
                str(int(self.gpu)),
                str(self.vram_bytes),
                str(self.cores),
                str(self.ram_bytes),
                str(self.disk_bytes),
                ",".join(self.tiers),
                ",".join(self.regions),
                self.isolation.value,
                *([] if self.ceiling_microcredits_per_hour is None else [str(self.ceiling_microcredits_per_hour)]),
            )
        )
        return hashlib.sha256(text.encode()).digest()


def to_shape(need: Requirements) -> Shape:
    return Shape(
        gpu=need.gpu or need.vram_bytes > 0 or bool(need.tiers and "cpu" not in need.tiers),
        vram_bytes=_round_up(need.vram_bytes, VRAM_STEP_BYTES),
        cores=need.cores,
        ram_bytes=_round_up(need.ram_bytes, RAM_STEP_BYTES),
        disk_bytes=_round_up(need.disk_bytes, DISK_STEP_BYTES),
        tiers=tuple(sorted(set(need.tiers))),
        regions=tuple(sorted(set(need.regions))),
        isolation=need.isolation,
        ceiling_microcredits_per_hour=_step_down(need.ceiling_microcredits_per_hour),
    )


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def _step_down(ceiling: int | None) -> int | None:
    """To a power of 1.05: prices that differ by less share a shape."""
    if ceiling is None or ceiling < 1:
        return ceiling
    step = math.floor(math.log(ceiling, CEILING_STEP_RATIO) + 1e-9)
    return min(ceiling, math.floor(CEILING_STEP_RATIO**step))
