"""What agent and measuring process say to each other: one JSON object a line."""

from __future__ import annotations

import msgspec

from computepool.node.hardware.measured import Measured


class Compute(msgspec.Struct, frozen=True, kw_only=True):
    seed: str  # hex
    size: int
    products: int


class Open(msgspec.Struct, frozen=True, kw_only=True):
    segments: list[int]


class Fill(msgspec.Struct, frozen=True, kw_only=True):
    seed: str  # hex
    byte_count: int
    indices: list[int]


class Order(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An empty order asks for a measurement."""

    compute: Compute | None = None
    open: Open | None = None
    fill: Fill | None = None


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    piece: str  # base64
    path: list[str]  # hex


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    engine: str = ""
    measured: Measured | None = None
    root: str = ""  # hex
    opened: list[Opened] | None = None
    words: list[int] | None = None
    trouble: str = ""
