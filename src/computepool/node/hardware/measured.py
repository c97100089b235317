"""What a measurement says of one device."""

from __future__ import annotations

import msgspec


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    # Which library, on what.
    engine: str
    # Single precision, the best of several rounds: nothing makes a device faster than it is.
    tflops: float
    # Between the best and the worst round, as a part of the best: large on a busy machine.
    spread_ratio: float
    memory_gb_per_second: float
