"""Shapes: the hard gates of many slices, quantised so that a long backlog has few of them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache

from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.jobs.spec import Requirements
from computepool.core.market.offers import DEFAULT_KIND, round_down_seconds
from computepool.core.placement.price import PRICE_MICROCREDITS_MAX

VRAM_STEP_BYTES = 500_000_000
RAM_STEP_BYTES = 500_000_000
DISK_STEP_BYTES = 1_000_000_000
# A ceiling of fewer microcredits than this is taken as it is.
_EXACT_BELOW = 100


@dataclass(frozen=True, slots=True)
class Shape:
    """Gates are rounded up, ceiling and seconds down, so a slot that passes the shape always passes the request."""

    gpu: bool
    vram_bytes: int
    cores: int
    ram_bytes: int
    disk_bytes: int
    tiers: tuple[str, ...]
    regions: tuple[str, ...]
    isolation: IsolationLevel
    ceiling_microcredits_per_hour: int | None = None
    job_kind: str = DEFAULT_KIND
    # How long a slice may run, as one of the steps that owners choose from; 0: not known.
    slice_seconds: int = 0
    # Of a job with a fixed price per slice: what an hour of it comes to before tier and region of a slot.
    base_ceiling_microcredits_per_hour: int | None = None
    # What owners must allow, in the words of core/jobs/wants.py. Most jobs want nothing.
    wants: tuple[str, ...] = ()

    @property
    def digest(self) -> bytes:
        """Equal shapes have equal digests on every hub. What came later says nothing while it is as it was before."""
        base = self.base_ceiling_microcredits_per_hour
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
                *([] if self.job_kind == DEFAULT_KIND else [f"kind {self.job_kind}"]),
                *([f"seconds {self.slice_seconds}"] if self.slice_seconds else []),
                *([] if base is None else [f"base {base}"]),
                *(["wants", *self.wants] if self.wants else []),
            )
        )
        return hashlib.sha256(text.encode()).digest()


@lru_cache(maxsize=4_096)
def to_shape(need: Requirements) -> Shape:
    """Remembered: most jobs ask for what others have asked for."""
    ceiling, base_ceiling = need.ceiling_microcredits_per_hour, None
    if need.slice_price is not None:
        ceiling = need.slice_price.ceiling_microcredits_per_hour
        base_ceiling = need.slice_price.base_microcredits_per_hour
    return Shape(
        gpu=need.gpu or need.vram_bytes > 0 or bool(need.tiers and "cpu" not in need.tiers),
        vram_bytes=_round_up(need.vram_bytes, VRAM_STEP_BYTES),
        cores=need.cores,
        ram_bytes=_round_up(need.ram_bytes, RAM_STEP_BYTES),
        disk_bytes=_round_up(need.disk_bytes, DISK_STEP_BYTES),
        tiers=tuple(sorted(set(need.tiers))),
        regions=tuple(sorted(set(need.regions))),
        isolation=need.isolation,
        ceiling_microcredits_per_hour=_step_down(ceiling),
        job_kind=need.job_kind,
        slice_seconds=round_down_seconds(need.slice_seconds),
        base_ceiling_microcredits_per_hour=_step_down(base_ceiling),
        wants=need.wants,
    )


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def _step_down(ceiling: int | None) -> int | None:
    """To one of the figures that people name, at most 5 % less: prices between two of them share a shape."""
    if ceiling is None or ceiling < _EXACT_BELOW:
        return ceiling
    grain: int = 10 ** (len(str(ceiling)) - 3)
    step = _step_of(ceiling // grain)
    return ceiling // (step * grain) * step * grain


def _step_of(figure: int) -> int:
    """Of a figure of three digits: 100, 105 ... 200, 210 ... 500, 525 ..."""
    return 5 if figure < 200 else 10 if figure < 500 else 25


@lru_cache(maxsize=1)
def list_ceiling_steps() -> tuple[int, ...]:
    """All that a shape's ceiling can be, rising."""
    figures = [figure for figure in range(100, 1_000) if figure % _step_of(figure) == 0]
    powers = (10**power for power in range(16))
    steps = [figure * power for power in powers for figure in figures]
    return (*range(1, _EXACT_BELOW), *(step for step in steps if step <= PRICE_MICROCREDITS_MAX))
