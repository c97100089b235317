"""Draws the stories of sims.market: price, wait and use over time. Runs where matplotlib is.

.bench-venv/bin/python sims/market_plot.py STORIES_FILE IMAGES_FOLDER

A line is the mean of a story's histories, its shade goes from the lowest to the highest of them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

# What the story is, and what happens at minute 0.
TITLES = {
    "thunderstorm": ("Thunderstorm: 400 nodes arrive at once, all in India, in a grid of 102", "they arrive"),
    "spike": ("Spike: demand for the smaller cards trebles", "it trebles"),
    "undamped": ("The same spike without damping: the price goes straight to what the moment asks for", "it trebles"),
    "dark": ("Dark: India's nodes vanish with all they were running; the price there stands still", "they vanish"),
    "whale": ("Whale: one account submits 5,000 slices for the smaller cards", "it submits"),
    "cartel": ("Cartel: owners of two large cards in five withdraw half of theirs", "they withdraw"),
}
REGIONS = {"us": ("United States", "tab:blue"), "eu": ("Europe", "tab:orange"), "in": ("India", "tab:green")}
TIERS = {"rtx-4090": "RTX 4090", "rtx-3060": "RTX 3060"}
MINUTES = (-40, 118)


def draw(story: dict[str, Any], path: Path) -> None:
    title, event = TITLES[story["name"]]
    figure, axes = pyplot.subplots(2, 2, figsize=(11, 6), sharex=True)
    highest = max(max(path) for paths in story["surge"].values() for path in paths)
    for axis, (tier, name) in zip(axes[0], TIERS.items(), strict=True):
        for region, (said, colour) in REGIONS.items():
            _draw_paths(axis, story, story["surge"][f"{tier} {region}"], colour, label=said)
        axis.axhline(1, color="black", linewidth=0.8, linestyle=":")
        axis.set_title(f"{name}: spot, in parts of the reference price", fontsize=10)
        axis.set_ylim(0.6, max(1.6, highest * 1.05))
    wait, use = axes[1]
    _draw_paths(wait, story, [_smooth(path) for path in story["wait_minutes"]], "tab:purple")
    wait.set_title("Wait of what starts, in minutes (mean of ten minutes)", fontsize=10)
    wait.set_ylim(0, None)
    _draw_paths(use, story, story["use"], "tab:red")
    use.set_title("Slots in use, as a part of all", fontsize=10)
    use.set_ylim(0, 1.05)
    for axis in axes.flat:
        axis.axvline(0, color="grey", linewidth=1)
        axis.grid(alpha=0.3)
        axis.set_xlim(*MINUTES)
    axes[0][0].annotate(
        event,
        (0, 0.97),
        xycoords=("data", "axes fraction"),
        xytext=(4, 0),
        textcoords="offset points",
        va="top",
        fontsize=9,
        color="dimgrey",
    )
    for axis in axes[1]:
        axis.set_xlabel("minutes since the event")
    count = len(story["use"])
    spread = f"lines are the mean of {count} histories, shades go from the lowest to the highest"
    figure.suptitle(title, fontsize=12)
    figure.legend(
        *axes[0][0].get_legend_handles_labels(),
        loc="lower center",
        ncol=3,
        fontsize=9,
        frameon=False,
        title=f"Prices by region; {spread if count > 1 else 'one history'}",
        title_fontsize=9,
    )
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    # Without the date and the version of the program, the same stories make the same file.
    figure.savefig(path, dpi=90, metadata={"Software": None})
    pyplot.close(figure)


def _draw_paths(axis: Any, story: dict[str, Any], paths: list[list[float]], colour: str, label: str = "") -> None:
    ticks = list(zip(*paths, strict=True))
    means = [sum(values) / len(values) for values in ticks]
    axis.plot(story["minutes"], means, color=colour, linewidth=1.8, label=label)
    axis.fill_between(story["minutes"], [min(v) for v in ticks], [max(v) for v in ticks], color=colour, alpha=0.15)


def _smooth(series: list[float], count: int = 5) -> list[float]:
    """Mean of the last few ticks."""
    return [sum(series[max(0, end - count) : end]) / min(end, count) for end in range(1, len(series) + 1)]


def main(stories: Path, images: Path) -> None:
    images.mkdir(parents=True, exist_ok=True)
    for story in json.loads(stories.read_text()):
        draw(story, images / f"market-{story['name']}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
