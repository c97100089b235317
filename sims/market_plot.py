"""Draws the stories of sims.market: price, wait and use over time. Runs where matplotlib is.

.bench-venv/bin/python sims/market_plot.py STORIES_FILE IMAGES_FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

TITLES = {
    "thunderstorm": "Thunderstorm: 400 nodes of one region arrive at once",
    "spike": "Spike: demand for the smaller cards trebles",
    "dark": "Dark: the nodes of one region vanish",
    "whale": "Whale: one account submits 5,000 slices",
    "cartel": "Cartel: owners of two slots in five withdraw half of them",
}
# One colour per tier, one line per region.
COLOURS = {"rtx-4090": "tab:purple", "rtx-3060": "tab:blue"}
LINES = {"us": "-", "eu": "--", "in": ":"}


def smooth(series: list[float], count: int = 5) -> list[float]:
    """Mean of the last few ticks."""
    return [sum(series[max(0, end - count) : end]) / min(end, count) for end in range(1, len(series) + 1)]


def draw(story: dict[str, Any], path: Path) -> None:
    figure, (price, wait, use) = pyplot.subplots(1, 3, figsize=(13, 3.4))
    for name, series in story["surge"].items():
        tier, region = name.split()
        price.plot(story["minutes"], series, color=COLOURS[tier], linestyle=LINES[region], label=name, linewidth=1.3)
    price.set_ylabel("spot / reference price")
    price.set_ylim(0.5, None)
    price.legend(fontsize=7, ncol=2)
    waits = smooth(story["wait_minutes"])
    wait.plot(story["minutes"], waits, color="tab:orange", linewidth=1.3)
    wait.set_ylabel("mean wait of what starts, minutes")
    wait.set_ylim(0, max(1.0, *waits) * 1.05)
    use.plot(story["minutes"], story["use"], color="tab:green", linewidth=1.3)
    use.set_ylabel("slots in use")
    use.set_ylim(0, 1.05)
    for axis in (price, wait, use):
        axis.axvline(0, color="grey", linewidth=0.8)
        axis.set_xlabel("minutes since the event")
        axis.grid(alpha=0.3)
    figure.suptitle(TITLES[story["name"]], fontsize=11)
    figure.tight_layout()
    # Without the date and the version of the program, the same stories make the same file.
    figure.savefig(path, dpi=90, metadata={"Software": None})
    pyplot.close(figure)


def main(stories: Path, images: Path) -> None:
    images.mkdir(parents=True, exist_ok=True)
    for story in json.loads(stories.read_text()):
        draw(story, images / f"market-{story['name']}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
