"""Plain Python: always there, thousands of times slower than the machine, and said so."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from operator import mul

from computepool.core.trust.memory import WORD_BYTES, split_seed, word_at
from computepool.core.trust.products import Work, diagonal, row_of_a, row_of_b, signs
from computepool.node.hardware.engines.port import nothing


class PlainEngine:
    name = "plain Python"
    size_least = 64

    def compute(self, work: Work, *, on_ready: Callable[[], None] = nothing) -> bytes:
        size, strip = work.size, work.strip
        b = [list(memoryview(row_of_b(work, row)).cast("h")) for row in range(size)]
        columns = [[float(row[at]) for row in b] for at in range(size)]
        a = [list(memoryview(row_of_a(work, row)).cast("h")) for row in range(size)]
        factors = [-1.0 if sign & 1 else 1.0 for sign in signs(work)]
        folded = array("f")
        on_ready()
        for product in range(work.products):
            d = list(memoryview(diagonal(work, product)).cast("b"))
            for row in a:
                scaled = list(map(mul, row, d))
                entries = [abs(sum(map(mul, scaled, column))) for column in columns]
                folded.extend(
                    sum(map(mul, entries[at : at + strip], factors[at : at + strip])) for at in range(0, size, strip)
                )
        return folded.tobytes()

    def fill(self, seed: bytes, byte_count: int, indices: Sequence[int]) -> list[int]:
        first, second = split_seed(seed)
        held = array("I", (word_at(first, second, index) for index in range(byte_count // WORD_BYTES)))
        return [held[index] for index in indices]

    def stream(self, byte_count: int) -> int:
        copied = bytes(bytearray(byte_count))
        return 2 * 2 * len(copied)
