"""numpy and the BLAS under it: the processor's cores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from computepool.core.trust.memory import WORD_BYTES, split_seed
from computepool.core.trust.products import Work, diagonal, row_of_a, row_of_b, signs
from computepool.node.hardware.engines.port import NoEngine, nothing

_CHUNK_WORDS = 1 << 22


class NumpyEngine:
    size_least = 512

    def __init__(self) -> None:
        try:
            import numpy
        except ImportError as error:
            raise NoEngine(f"numpy is not installed: {error}") from None
        self._numpy = numpy
        self.name = f"numpy {numpy.__version__}"

    def compute(self, work: Work, *, on_ready: Callable[[], None] = nothing) -> bytes:
        np, size = self._numpy, work.size

        def matrix(row_of: object) -> object:
            rows = b"".join(row_of(work, row) for row in range(size))  # type: ignore[operator]
            return np.frombuffer(rows, dtype="<i2").reshape(size, size).astype(np.float32)

        a, b = matrix(row_of_a), matrix(row_of_b)
        factors = np.where(np.frombuffer(signs(work), dtype=np.uint8) & 1, np.float32(-1), np.float32(1))
        folded = np.empty((work.products, size, work.strips), dtype="<f4")
        scaled, entries = np.empty_like(a), np.empty_like(a)
        on_ready()
        for product in range(work.products):
            np.multiply(a, np.frombuffer(diagonal(work, product), dtype=np.int8).astype(np.float32), out=scaled)
            np.matmul(scaled, b, out=entries)
            np.abs(entries, out=entries)
            entries *= factors
            folded[product] = entries.reshape(size, work.strips, work.strip).sum(axis=2)
        whole: bytes = folded.tobytes()
        return whole

    def fill(self, seed: bytes, byte_count: int, indices: Sequence[int]) -> list[int]:
        np = self._numpy
        first, second = split_seed(seed)
        held = np.empty(byte_count // WORD_BYTES, dtype=np.uint32)
        for begin in range(0, len(held), _CHUNK_WORDS):
            place = np.arange(begin, min(begin + _CHUNK_WORDS, len(held)), dtype=np.uint64)
            low = (place & np.uint64(0xFFFFFFFF)).astype(np.uint32)
            high = (place >> np.uint64(32)).astype(np.uint32)
            held[begin : begin + len(place)] = self._mix(self._mix(low ^ np.uint32(first)) ^ high ^ np.uint32(second))
        return [int(held[index]) for index in indices]

    def _mix(self, word: Any) -> Any:
        np = self._numpy
        word ^= word >> np.uint32(16)
        word *= np.uint32(0x7FEB352D)
        word ^= word >> np.uint32(15)
        word *= np.uint32(0x846CA68B)
        return word ^ word >> np.uint32(16)

    def stream(self, byte_count: int) -> int:
        np = self._numpy
        source = np.zeros(byte_count // 4, dtype=np.float32)
        target = np.ones_like(source)
        np.copyto(target, source)
        return 2 * int(source.nbytes)
