"""Compares .csv and .json: numbers by tolerance, everything else to the letter."""

from __future__ import annotations

import csv
import io
import json
from math import isfinite

from computepool.core.trust.comparators.tolerance import Tolerance, Unreadable, are_close

CELL_CHARACTERS_MAX = 1_000_000


def find_csv_difference(one: bytes, other: bytes, tolerance: Tolerance) -> str | None:
    rows, others = _read_csv(one), _read_csv(other)
    if len(rows) != len(others):
        return f"{len(rows):,} rows here, {len(others):,} there"
    for number, (row, theirs) in enumerate(zip(rows, others, strict=True), start=1):
        if len(row) != len(theirs):
            return f"row {number:,} has {len(row)} cells here, {len(theirs)} there"
        for cell, their_cell in zip(row, theirs, strict=True):
            if cell != their_cell and not _are_close_cells(cell, their_cell, tolerance):
                return f"row {number:,} has {cell[:40]!r} here, {their_cell[:40]!r} there"
    return None


def find_json_difference(one: bytes, other: bytes, tolerance: Tolerance) -> str | None:
    try:
        return _find_value_difference(_read_json(one), _read_json(other), tolerance, "$")
    except RecursionError as error:
        raise Unreadable("it is nested too deeply") from error


def _read_csv(content: bytes) -> list[list[str]]:
    try:
        text = content.decode("utf-8-sig")
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise Unreadable("it is no table of text") from error
    if any(len(cell) > CELL_CHARACTERS_MAX for row in rows for cell in row):
        raise Unreadable("a cell is too long")
    return rows


def _read_json(content: bytes) -> object:
    try:
        return json.loads(content)
    except ValueError as error:
        raise Unreadable("it is no JSON") from error


def _are_close_cells(one: str, other: str, tolerance: Tolerance) -> bool:
    first, second = _find_number(one), _find_number(other)
    return first is not None and second is not None and are_close(first, second, tolerance)


def _find_number(cell: str) -> float | None:
    try:
        number = float(cell)
    except ValueError:
        return None
    # Words such as nan and inf must stand there alike; Python's 1_000 is no number in a table.
    return number if isfinite(number) and "_" not in cell else None


def _find_value_difference(one: object, other: object, tolerance: Tolerance, at: str) -> str | None:
    if _is_number(one) and _is_number(other):
        return None if _are_close_numbers(one, other, tolerance) else f"{at} is {one!r} here, {other!r} there"
    if type(one) is not type(other):
        return f"{at} is of another kind"
    if isinstance(one, dict) and isinstance(other, dict):
        if one.keys() != other.keys():
            return f"{at} has other names in it"
        pairs = ((f"{at}.{name}", value, other[name]) for name, value in one.items())
    elif isinstance(one, list) and isinstance(other, list):
        if len(one) != len(other):
            return f"{at} has {len(one):,} entries here, {len(other):,} there"
        pairs = ((f"{at}[{number}]", value, other[number]) for number, value in enumerate(one))
    else:
        return None if one == other else f"{at} differs"
    found = (_find_value_difference(value, theirs, tolerance, place) for place, value, theirs in pairs)
    return next((difference for difference in found if difference is not None), None)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _are_close_numbers(one: object, other: object, tolerance: Tolerance) -> bool:
    if one == other:
        return True
    try:
        return are_close(float(str(one)), float(str(other)), tolerance)
    except (ValueError, OverflowError):
        return False
