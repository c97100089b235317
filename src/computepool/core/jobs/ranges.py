"""Slice numbers as ranges, so that an event about a hundred thousand slices stays small."""

from __future__ import annotations

from collections.abc import Iterable


def to_ranges(indexes: Iterable[int]) -> list[list[int]]:
    """[0, 1, 2, 7] -> [[0, 2], [7, 7]]; both ends belong to the range."""
    ranges: list[list[int]] = []
    for index in sorted(indexes):
        if ranges and ranges[-1][1] == index - 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    return ranges
