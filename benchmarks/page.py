"""Writes docs/reference/performance.md from the stored results, with the targets beside the figures, met or not.

    python -m benchmarks.page [--results FOLDER] [--page FILE]

Makes the plots too (plot.py), in the environment of the peers: this project needs no plotting library.
"""

from __future__ import annotations

import argparse
import json
import operator
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers import environment

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PAGE = environment.ROOT / "docs" / "reference" / "performance.md"
IMAGES = environment.ROOT / "docs" / "images"
TARGETS = HERE / "targets.toml"

# In the order of the page: what each measures, in a sentence.
ABOUT = {
    "lifecycle": "Whole lives of a no-op job (submit, given to a worker, recorded as done), beside other queues.",
    "latency": "From the submit until a parked node holds the assignment, at 50 slices a second.",
    "match": "Finding the best slot for a slice among 500 to 100,000.",
    "depth": "The same lives beside a long queue, beside work that fits nowhere, and after a long history.",
    "fleet": "10,000 nodes parked at one hub process.",
    "hubs": "A second hub; and what three hubs lose by each seeing only its own nodes.",
    "networks": "A network cut over processes, killed on the way, beside the same training in one process.",
    "sse": "Dispatch while 1,000 live views are open, beside none; and how soon a change is on a page.",
    "sandbox": "Starting Python behind each sandbox, beside none at all; and every known way out, tried in each.",
    "web": "The dashboard in a real browser: its first page, and the map with 10,000 nodes.",
    "agent": "What an idle agent takes of the machine; and how soon that is its owner's again when they sit down.",
    "ledger": "The same lives with money in the books, and without. All the others run without.",
}
COMPARE = {">=": operator.ge, "<=": operator.le}

INTRODUCTION = """\
# Performance

One run of every benchmark, as it came; `make bench/all` makes this page anew from a run on your machine, and the raw
results are in `benchmarks/results/`. What is compared with what, and why that is fair:
[benchmarks](../internals/benchmarks.md). Ratios compare two sides measured in turns in the same run; absolute figures
say more about the machine than about the code. A dash means that it was not measured in this run.
"""


def is_met(figure: float | None, target: str) -> bool | None:
    if figure is None:
        return None
    sign, _, limit = target.partition(" ")
    return COMPARE[sign](figure, float(limit))


def write_summary(results: Mapping[str, Any], targets: Mapping[str, Mapping[str, str]]) -> list[str]:
    lines = ["| benchmark | figure | measured | target | |", "|---|---|---|---|---|"]
    for name in ABOUT:
        figures = results[name]["figures"] if name in results else {}
        rough = "" if name not in results or results[name]["complete"] else ", in a shortened run"
        for key, target in targets[name].items():
            figure = figures.get(key)
            verdict = {True: f"met{rough}", False: f"**missed**{rough}", None: "not measured"}[is_met(figure, target)]
            sign = target.replace(">=", "at least").replace("<=", "at most")
            lines.append(f"| {name} | `{key}` | {_to_text(figure)} | {sign} | {verdict} |")
    return lines


def write_machine(results: Mapping[str, Any]) -> list[str]:
    machines = [result["machine"] for result in results.values()]
    if not machines:
        return []
    machine = machines[0]
    loads = [m["load_average_at_start"] for m in machines]
    days = sorted({result["at"][:10] for result in results.values()})
    return [
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gb']} GB, {machine['system']}, Python "
        f"{machine['python']}; {' and '.join(days)}. Hub, database, peers and load generator share these cores. Load "
        f"average when the benchmarks began: {min(loads)} to {max(loads)}, so the machine was "
        f"{'not always ' if max(loads) > machine['cores'] / 2 else ''}quiet."
    ]


def write_benchmark(name: str, result: Mapping[str, Any], images: Sequence[str]) -> list[str]:
    lines = [f"## {name}", "", f"{ABOUT[name]} `make bench/{name}`, {result['at']}."]
    if not result["complete"]:
        lines += ["", "A shortened form: it shows that the benchmark runs, and its figures are rough."]
    for table in result["tables"]:
        lines += ["", f"**{_escape(table['title'])}**", ""]
        lines += [_to_row(table["columns"]), "|---" * len(table["columns"]) + "|"]
        lines += [_to_row(row) for row in table["rows"]]
    told = [line.strip() for line in result["lines"] if line.strip()]
    if told:
        lines += ["", *[f"* {_escape(line)}" for line in told]]
    for image in images:
        lines += ["", f"![{name}](../images/{image})"]
    return lines


def write_page(
    results: Mapping[str, Any], targets: Mapping[str, Mapping[str, str]], images: Mapping[str, list[str]]
) -> str:
    parts = [INTRODUCTION, *write_machine(results), "", *write_summary(results, targets)]
    for name in ABOUT:
        if name in results:
            parts += ["", *write_benchmark(name, results[name], images.get(name, []))]
    return "\n".join(parts) + "\n"


def read_results(folder: Path) -> dict[str, Any]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json")) if path.stem in ABOUT}


def draw_plots(folder: Path, images: Path) -> dict[str, list[str]]:
    """The names of the images by benchmark; none where nothing can be drawn with."""
    environment.ensure_venv()
    subprocess.run(
        [str(environment.PYTHON), "-m", "benchmarks.plot", str(folder), str(images)], cwd=environment.ROOT, check=True
    )
    return {name: sorted(p.name for p in images.glob(f"performance-{name}*.png")) for name in ABOUT}


def _to_text(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.4g}"


def _to_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_escape(cell) for cell in cells) + " |"


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("_", "\\_").strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--images", type=Path, default=IMAGES)
    options = parser.parse_args()
    targets = tomllib.loads(TARGETS.read_text())
    results = read_results(options.results)
    images = draw_plots(options.results, options.images)
    options.page.write_text(write_page(results, targets, images))
    missing = [name for name in ABOUT if name not in results]
    print(
        f"{options.page.name} written from {', '.join(results)}"
        + (f"; without {', '.join(missing)}" if missing else "")
    )


if __name__ == "__main__":
    main()
