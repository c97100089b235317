"""Draws the curves of the stored results, cost against size, in the environment of the peers: there is matplotlib.

.bench-venv/bin/python -m benchmarks.plot RESULTS_FOLDER IMAGES_FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

MARKS = "osD^v"


def draw(name: str, curves: list[dict[str, Any]], path: Path) -> None:
    figure, axes = pyplot.subplots(1, len(curves), figsize=(5.2 * len(curves), 3.6), squeeze=False)
    for curve, axis in zip(curves, axes[0], strict=True):
        for mark, (label, points) in zip(MARKS, curve["series"].items(), strict=False):
            axis.plot([x for x, _ in points], [y for _, y in points], marker=mark, label=label)
        values = [y for points in curve["series"].values() for _, y in points]
        axis.set_xscale("log")
        # Where figures differ by orders of magnitude, steps are ratios; otherwise the axis begins at nothing.
        if values and min(values) > 0 and max(values) / min(values) > 30:
            axis.set_yscale("log")
        else:
            axis.set_ylim(0, max(values, default=1) * 1.1)
        axis.set_xlabel(curve["x"])
        axis.set_ylabel(curve["y"])
        axis.set_title(curve["title"], fontsize=10)
        axis.grid(alpha=0.3)
        if len(curve["series"]) > 1:
            axis.legend(fontsize=8)
    figure.tight_layout()
    # Without the date and the version of the program, the same results make the same file.
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)


def main(results: Path, images: Path) -> None:
    images.mkdir(parents=True, exist_ok=True)
    for path in sorted(results.glob("*.json")):
        curves = [curve for curve in json.loads(path.read_text())["curves"] if curve["series"]]
        if curves:
            draw(path.stem, curves, images / f"performance-{path.stem}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
