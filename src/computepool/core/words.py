"""Figures as people say them."""

from __future__ import annotations


def say_bytes(size_bytes: int) -> str:
    """Exact enough that two amounts of a request seldom look alike: 12.5 GB, 512 MB."""
    if size_bytes == 0:
        return "0 GB"
    unit, step = ("MB", 1e6) if size_bytes < 1_000_000_000 else ("GB", 1e9)
    return f"{size_bytes / step:.2f}".rstrip("0").rstrip(".") + f" {unit}"


def say_seconds(seconds: int) -> str:
    """In the largest unit that says it exactly: 45 s, 5 min, 4 h."""
    for unit, length in (("h", 3_600), ("min", 60)):
        if seconds and seconds % length == 0:
            return f"{seconds // length:,} {unit}"
    return f"{seconds:,} s"


def say_count(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
