"""Rounds of measurements: every system once per round, so that a busy minute of the machine falls on all of them."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from benchmarks import tables

MEASURE_SECONDS_MAX = 90.0


@dataclass(slots=True)
class Series:
    """One system's figures, one per round."""

    name: str
    measure: Callable[[], Awaitable[dict[str, float]]]
    figures: dict[str, list[float]] = field(default_factory=dict)
    trouble: str = ""

    def median(self, key: str = "per_second") -> float | None:
        return tables.median(self.figures.get(key, []))

    def spread(self, key: str = "per_second") -> str:
        return tables.spread(self.figures.get(key, []))

    @property
    def note(self) -> str:
        return self.trouble.splitlines()[0][:70] if self.trouble else ""


def bind(measure: Callable[..., Awaitable[dict[str, float]]], *args: object, **options: object):  # type: ignore[no-untyped-def]
    """A measurement with all that it needs, to be repeated."""
    return lambda: measure(*args, **options)


async def measure_all(
    found: Sequence[Series], *, rounds: int, ends_at: float, seconds_max: float = MEASURE_SECONDS_MAX
) -> None:
    for number in range(rounds):
        # Back and forth, so that what grows over a run does not always fall on the same ones.
        for series in found if number % 2 == 0 else reversed(found):
            if time.monotonic() > ends_at:
                series.trouble = series.trouble or "not in every round: the run's time was over"
                continue
            print(f"bench: round {number + 1}: {series.name}", file=sys.stderr, flush=True)
            try:
                async with asyncio.timeout(seconds_max):
                    measured = await series.measure()
            except Exception as error:
                series.trouble = f"{type(error).__name__}: {error}"
                print(f"bench: {series.name} failed: {series.trouble}", file=sys.stderr, flush=True)
                continue
            for key, value in measured.items():
                series.figures.setdefault(key, []).append(value)
