"""Draws what sims.hostile found, and three ways of counting failures. Runs where matplotlib is.

.bench-venv/bin/python sims/hostile_plot.py FOUND_FILE IMAGES_FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

COLOURS = {"moving average": "tab:grey", "Beta": "tab:orange", "discounted Beta": "tab:blue"}
# Upper bounds that are promised, by forgers in a hundred nodes.
PROMISED = {5: 1e-4, 10: 3e-4, 20: 6e-4}


def draw_traces(traces: list[dict[str, Any]], path: Path) -> None:
    figure, axes = pyplot.subplots(2, 2, figsize=(11, 6.5), sharey=True)
    for axis, trace in zip(axes.flat, traces, strict=True):
        for name, line in trace["lines"].items():
            axis.plot(range(1, len(line) + 1), line, color=COLOURS[name], label=name, linewidth=1.6)
        axis.set_title(trace["title"], fontsize=10)
        axis.set_ylim(0, 1.02)
        axis.grid(alpha=0.3)
        axis.set_xlabel("attempts")
    figure.suptitle("The same failures, counted in three ways (both Betas: 5 % quantile)", fontsize=12)
    axes[0][0].legend(fontsize=9, loc="lower left")
    figure.tight_layout()
    figure.savefig(path, dpi=90, metadata={"Software": None})
    pyplot.close(figure)


def draw_wrong(stories: list[dict[str, Any]], path: Path) -> None:
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.8))
    for name in dict.fromkeys(story["strategy"] for story in stories):
        found = [story for story in stories if story["strategy"] == name]
        forgers = [story["hostile"] for story in found]
        left.plot(forgers, [story["wrong"] for story in found], marker="o", label=name.replace("_", " "))
        right.plot(forgers, [story["overhead"] for story in found], marker="o")
    left.plot(list(PROMISED), list(PROMISED.values()), color="black", linestyle=":", label="promised")
    left.set_yscale("log")
    left.set_title("Wrong results that were finalised, at most (95 %)", fontsize=10)
    right.set_title("Runs beyond the first, per result", fontsize=10)
    right.set_ylim(0, 0.25)
    for axis in (left, right):
        axis.set_xlabel("forgers among 100 nodes")
        axis.set_xticks(list(PROMISED))
        axis.grid(alpha=0.3)
    # Below both: within one of them it would cover what it names.
    figure.legend(loc="lower center", ncols=9, fontsize=9, frameon=False)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    figure.savefig(path, dpi=90, metadata={"Software": None})
    pyplot.close(figure)


def main(found: Path, images: Path) -> None:
    images.mkdir(parents=True, exist_ok=True)
    read = json.loads(found.read_text())
    draw_traces(read["traces"], images / "trust-counting.png")
    if read["stories"]:
        draw_wrong(read["stories"], images / "trust-forgers.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
