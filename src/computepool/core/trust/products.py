"""The work by which a machine shows how fast it computes: many products of large matrices, made from one seed.

Product k is (A x diag(d_k)) x B in single precision. Of each row and strip of columns one number is kept: the sum of
the absolute values under signs. The absolute value is the point: without it, the numbers would follow from two
cheap products with a vector, and nobody would have to compute the large one. Entries have 16 bits, more than half
precision or TF32 hold, so that a short cut through those shows in the last digits.

Whoever checks computes single rows, exactly, in whole numbers: a row costs a thousandth of a product and less.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import shake_128
from math import sqrt

STRIP_MAX = 1024
SEGMENT_ROWS_MAX = 256
SIZE_MIN, SIZE_MAX = 64, 4096
PRODUCTS_MAX = 4096
SEED_BYTES = 32

# How far a row's numbers may lie off, as a part of the strip's norm. Honest single precision stays under 3e-6;
# operands cut to TF32 or half precision lie off by 2e-4.
TOLERANCE = 1e-5

_LANE_BYTES = 8
# Lanes of a long integer hold no signs: both factors are lifted above zero, and what that adds is taken off again.
_LIFT_X = 1 << 22
_LIFT_B = 1 << 15


@dataclass(frozen=True, slots=True)
class Work:
    seed: bytes
    # Rows and columns of every matrix; a power of two.
    size: int
    products: int

    @property
    def strip(self) -> int:
        """Columns that are folded into one number."""
        return min(self.size, STRIP_MAX)

    @property
    def strips(self) -> int:
        return self.size // self.strip

    @property
    def segment_rows(self) -> int:
        """Rows that are committed to, and opened, together."""
        return min(self.size, SEGMENT_ROWS_MAX)

    @property
    def segment_bytes(self) -> int:
        return self.segment_rows * self.strips * 4

    @property
    def segments(self) -> int:
        """Of all products."""
        return self.products * (self.size // self.segment_rows)

    @property
    def flops(self) -> float:
        return 2.0 * self.size**3 * self.products


def list_work_faults(work: Work) -> list[str]:
    faults = []
    if len(work.seed) != SEED_BYTES:
        faults.append(f"the seed has {SEED_BYTES} bytes")
    if not SIZE_MIN <= work.size <= SIZE_MAX or work.size & (work.size - 1):
        faults.append(f"size is a power of two from {SIZE_MIN} to {SIZE_MAX}")
    if not 1 <= work.products <= PRODUCTS_MAX:
        faults.append(f"there are 1 to {PRODUCTS_MAX} products")
    return faults


def row_of_a(work: Work, row: int) -> bytes:
    """Signed 16-bit numbers, little-endian."""
    return _stream(work.seed, b"A", row, 2 * work.size)


def row_of_b(work: Work, row: int) -> bytes:
    return _stream(work.seed, b"B", row, 2 * work.size)


def diagonal(work: Work, product: int) -> bytes:
    """Signed bytes."""
    return _stream(work.seed, b"D", product, work.size)


def signs(work: Work) -> bytes:
    """One byte per column; odd ones count as minus."""
    return _stream(work.seed, b"S", 0, work.size)


def _stream(seed: bytes, kind: bytes, number: int, count: int) -> bytes:
    return shake_128(seed + kind + number.to_bytes(4, "little")).digest(count)


@dataclass(frozen=True, slots=True)
class Spot:
    """One number of one product."""

    product: int
    row: int
    strip: int


@dataclass(frozen=True, slots=True)
class Expected:
    spot: Spot
    value: float
    # Of the strip's entries before they are folded: what errors are measured by.
    norm: float

    def is_near(self, claimed: float) -> bool:
        # Written so that a claim which is no number is far.
        return abs(claimed - self.value) <= TOLERANCE * self.norm


def compute_spots(work: Work, spots: list[Spot]) -> list[Expected]:
    """Exactly, in whole numbers. Rows of B are packed into long integers: one multiplication serves a strip."""
    minus = signs(work)
    found: list[Expected | None] = [None] * len(spots)
    for strip in sorted({spot.strip for spot in spots}):
        packed = _pack_strip(work, strip)
        columns = sum(packed)
        for index, spot in enumerate(spots):
            if spot.strip == strip:
                entries = _multiply(work, spot, packed, columns)
                found[index] = _fold(spot, entries, minus[strip * work.strip :])
    return [each for each in found if each is not None]


def _pack_strip(work: Work, strip: int) -> list[int]:
    begin, end = 2 * strip * work.strip, 2 * (strip + 1) * work.strip
    lanes = bytearray(_LANE_BYTES * work.strip)
    packed = []
    flip = bytes((byte ^ 0x80) for byte in range(256))
    for row in range(work.size):
        piece = row_of_b(work, row)[begin:end]
        lanes[0::_LANE_BYTES] = piece[0::2]
        # Flipping the sign's bit adds 2^15.
        lanes[1::_LANE_BYTES] = piece[1::2].translate(flip)
        packed.append(int.from_bytes(lanes, "little"))
    return packed


def _multiply(work: Work, spot: Spot, packed: list[int], columns: int) -> list[int]:
    a = memoryview(row_of_a(work, spot.row)).cast("h")
    d = memoryview(diagonal(work, spot.product)).cast("b")
    factors = [x * y for x, y in zip(a, d, strict=True)]
    lifted = sum((factor + _LIFT_X) * lane for factor, lane in zip(factors, packed, strict=True))
    sums = memoryview(lifted.to_bytes(_LANE_BYTES * work.strip, "little")).cast("Q")
    lifts = memoryview(columns.to_bytes(_LANE_BYTES * work.strip, "little")).cast("Q")
    even = _LIFT_B * sum(factors)
    return [total - _LIFT_X * column - even for total, column in zip(sums, lifts, strict=True)]


def _fold(spot: Spot, entries: list[int], minus: bytes) -> Expected:
    value = sum(-abs(entry) if sign & 1 else abs(entry) for entry, sign in zip(entries, minus, strict=False))
    return Expected(spot, float(value), sqrt(float(sum(entry * entry for entry in entries))))
