"""What a benchmark shows: tables for people, and as the very last line one JSON object for programs."""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


class Report:
    """Prints as it goes; keeps all of it, so that a run can be stored and made into a page."""

    def __init__(self, name: str, *, complete: bool = True, out: Path | None = None) -> None:
        self._out = out
        self._kept: dict[str, Any] = {
            "benchmark": name,
            "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
            # A quick form, or one with other sizes than the targets speak of.
            "complete": complete,
            "machine": describe_machine(),
            "tables": [],
            "lines": [],
            "curves": [],
        }

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        cells = [[_to_text(value) for value in row] for row in rows]
        self._kept["tables"].append({"title": title, "columns": list(columns), "rows": cells})
        print_table(title, columns, cells)

    def line(self, text: str) -> None:
        self._kept["lines"].append(text)
        print(text, flush=True)

    def curve(self, title: str, *, x: str, y: str, series: Mapping[str, Sequence[tuple[float, float]]]) -> None:
        """Cost against size, for the plots; nothing is printed."""
        points = {name: [list(point) for point in found] for name, found in series.items() if found}
        self._kept["curves"].append({"title": title, "x": x, "y": y, "series": points})

    def finish(self, figures: Mapping[str, float | None]) -> None:
        """Null stands for what could not be measured in this run."""
        rounded = {key: None if value is None else round(value, 4) for key, value in figures.items()}
        self._kept["figures"] = rounded
        self._kept["machine"]["load_average_at_end"] = round(os.getloadavg()[0], 1)
        if self._out:
            self._out.parent.mkdir(parents=True, exist_ok=True)
            self._out.write_text(json.dumps(self._kept, indent=1) + "\n")
        print(f"\n{json.dumps(rounded)}", flush=True)


def describe_machine() -> dict[str, Any]:
    """Enough to judge a figure by, and nothing that tells whose machine it is."""
    told = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    models = [line.partition(":")[2].strip() for line in told.splitlines() if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return {
        "processor": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory),
        "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
        "python": platform.python_version(),
        "load_average_at_start": round(os.getloadavg()[0], 1),
    }


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    cells = [list(columns), *rows]
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
