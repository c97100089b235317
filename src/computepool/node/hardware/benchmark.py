"""How fast a device computes and moves memory: short, seeded, several rounds, told with their spread."""

from __future__ import annotations

from collections.abc import Callable

from computepool.core.trust.products import SIZE_MAX, Work
from computepool.node.hardware.engines.port import Engine
from computepool.node.hardware.measured import Measured

SEED = bytes(range(32))
ROUNDS = 5
ROUND_SECONDS = 0.2
# Sizes are tried upward until one product takes so long; larger ones show more of what a card can.
PRODUCT_SECONDS = 0.004
CPU_SIZE_MAX = 1024
STREAM_BYTES = 1 << 26
PRODUCTS_MAX = 512


def measure(engine: Engine, *, on_gpu: bool, now_seconds: Callable[[], float]) -> Measured:
    size = engine.size_least
    while True:
        # The first product of a size also pays for what is set up by it, and another program may be in the way.
        seconds = min(_time(engine, Work(SEED, size, 1), now_seconds) for _ in range(3))
        if seconds >= PRODUCT_SECONDS or size >= (SIZE_MAX if on_gpu else CPU_SIZE_MAX):
            break
        size *= 2
    products = max(1, min(PRODUCTS_MAX, round(ROUND_SECONDS / max(seconds, 1e-6))))
    work = Work(SEED, size, products)
    speeds = [work.flops / _time(engine, work, now_seconds) / 1e12 for _ in range(ROUNDS)]
    return Measured(
        engine=engine.name,
        tflops=max(speeds),
        spread_ratio=(max(speeds) - min(speeds)) / max(speeds),
        memory_gb_per_second=_stream(engine, now_seconds),
    )


def _time(engine: Engine, work: Work, now_seconds: Callable[[], float]) -> float:
    began = [now_seconds()]
    engine.compute(work, on_ready=lambda: began.__setitem__(0, now_seconds()))
    return max(now_seconds() - began[0], 1e-9)


def _stream(engine: Engine, now_seconds: Callable[[], float]) -> float:
    best = 0.0
    for _ in range(3):
        began = now_seconds()
        moved = engine.stream(STREAM_BYTES)
        best = max(best, moved / max(now_seconds() - began, 1e-9) / 1e9)
    return best
