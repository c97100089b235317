"""What a benchmark shows: tables for people, and as the very last line one JSON object for programs."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    cells = [[str(column) for column in columns], *[[_to_text(value) for value in row] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    print(f"\n{title}")
    for number, row in enumerate(cells):
        # The first column holds names, the others figures.
        line = [
            row[0].ljust(widths[0]),
            *[cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)],
        ]
        print("  " + "  ".join(line).rstrip())
        if number == 0:
            print("  " + "  ".join("-" * width for width in widths))


def print_result(figures: Mapping[str, float | None]) -> None:
    """Null stands for what could not be measured in this run."""
    print(json.dumps({key: None if value is None else round(value, 4) for key, value in figures.items()}), flush=True)


def median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def spread(values: Sequence[float]) -> str:
    return f"{_to_text(min(values))}..{_to_text(max(values))}" if values else "-"


def quantile(values: Sequence[float], share: float) -> float | None:
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def ratio(ours: float | None, theirs: float | None) -> float | None:
    return ours / theirs if ours is not None and theirs else None


def _to_text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"
    return str(value)
