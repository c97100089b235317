"""Loss curves for people: an SVG file, and a few lines of a terminal. Needs nothing but the standard library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from math import floor, isfinite, log10
from pathlib import Path

WIDTH, HEIGHT = 860, 440
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 56, 52
_INK, _SOFT, _REFERENCE, _RUN, _KILL = "#24292f", "#d0d7de", "#f0a03c", "#1f4fa3", "#c62828"
_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened at a step."""

    step: int
    head: str
    # What followed, line by line.
    lines: tuple[str, ...] = ()


def draw_curves(
    path: Path, *, title: str, reference: Sequence[float], run: Sequence[float], marks: Sequence[Mark] = ()
) -> None:
    """The run's curve, thin and dark, on top of the reference's, wide and light: where they differ, it shows."""
    path.write_text(to_svg(title=title, reference=reference, run=run, marks=marks), encoding="utf-8")


def to_svg(*, title: str, reference: Sequence[float], run: Sequence[float], marks: Sequence[Mark] = ()) -> str:
    frame = _Frame(max(len(reference), len(run)), [*reference, *run])
    equal = sum(one == other for one, other in zip(reference, run, strict=False))
    said = f"{equal} of {max(len(reference), len(run))} losses equal, bit for bit"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="system-ui, Helvetica, Arial, sans-serif" font-size="13" fill="{_INK}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="30" font-size="17" font-weight="600">{escape(title)}</text>',
        *frame.draw_grid(),
        frame.draw_line(reference, _REFERENCE, 7),
        frame.draw_line(run, _RUN, 1.8),
        *(part for mark in marks for part in frame.draw_mark(mark)),
        *_draw_legend(said),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


class _Frame:
    """Where a step and a loss stand on the paper."""

    def __init__(self, steps: int, values: Sequence[float]) -> None:
        finite = [value for value in values if isfinite(value)] or [0.0, 1.0]
        self._steps = max(2, steps)
        self._ticks = _list_ticks(min(0.0, *finite), max(finite))
        self._low, self._high = self._ticks[0], self._ticks[-1]

    def x(self, step: float) -> float:
        return LEFT + (step - 1) / (self._steps - 1) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        share = (value - self._low) / (self._high - self._low)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)

    def draw_grid(self) -> list[str]:
        parts = []
        for value in self._ticks:
            y = self.y(value)
            parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="{_SOFT}"/>')
            parts.append(f'<text x="{LEFT - 10}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
        for step in (1, *(tick for tick in _list_ticks(0, self._steps) if 1 < tick <= self._steps)):
            x = self.x(step)
            parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{step:g}</text>')
        middle = (LEFT + WIDTH - RIGHT) / 2
        parts.append(f'<text x="{middle}" y="{HEIGHT - 10}" text-anchor="middle">step</text>')
        parts.append(f'<text transform="translate(18 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)">loss</text>')
        return parts

    def draw_line(self, values: Sequence[float], colour: str, width: float) -> str:
        points = [
            f"{self.x(step):.2f},{self.y(value):.2f}" for step, value in enumerate(values, start=1) if isfinite(value)
        ]
        return (
            f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="{width:g}" '
            'stroke-linejoin="round" stroke-linecap="round"/>'
        )

    def draw_mark(self, mark: Mark) -> list[str]:
        x, bottom = self.x(mark.step), HEIGHT - BOTTOM
        # Words stand on the side where there is more room for them.
        anchor, shift = ("start", 8) if x < WIDTH * 0.6 else ("end", -8)
        words = f'<text x="{x + shift:.1f}" text-anchor="{anchor}"'
        # At the foot, where curves that fall have left room.
        top = bottom - 18 * len(mark.lines) - 16
        return [
            f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}" stroke="{_KILL}" stroke-dasharray="5 4"/>',
            f'{words} y="{top}" fill="{_KILL}" font-weight="600">{escape(mark.head)}</text>',
            *(
                f'{words} y="{top + 18 * number}">{escape(line)}</text>'
                for number, line in enumerate(mark.lines, start=1)
            ),
        ]


def _draw_legend(said: str) -> list[str]:
    x, y = WIDTH - RIGHT - 300, TOP + 14
    return [
        f'<line x1="{x}" y1="{y}" x2="{x + 34}" y2="{y}" stroke="{_REFERENCE}" stroke-width="7"/>',
        f'<text x="{x + 44}" y="{y + 4}">one machine, one process</text>',
        f'<line x1="{x}" y1="{y + 20}" x2="{x + 34}" y2="{y + 20}" stroke="{_RUN}" stroke-width="1.8"/>',
        f'<text x="{x + 44}" y="{y + 24}">the run</text>',
        f'<text x="{x + 44}" y="{y + 44}" fill="#57606a">{escape(said)}</text>',
    ]


def _list_ticks(low: float, high: float, wanted: int = 6) -> list[float]:
    """Round numbers that hold both ends between them."""
    span = (high - low) or 1.0
    rough = span / wanted
    unit = 10.0 ** floor(log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
    first = floor(low / step)
    ticks = [first * step]
    while ticks[-1] < high:
        ticks.append((first + len(ticks)) * step)
    return [round(tick, 10) for tick in ticks]


def to_bars(values: Sequence[float], width: int = 72) -> str:
    """One line of bars, each the mean of a stretch; the highest is the largest."""
    finite = [value for value in values if isfinite(value)]
    if not finite:
        return ""
    count = min(width, len(finite))
    edges = [round(number * len(finite) / count) for number in range(count + 1)]
    means = [sum(finite[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    span = (high - low) or 1.0
    return "".join(_BARS[min(len(_BARS) - 1, int((mean - low) / span * len(_BARS)))] for mean in means)


def print_curve(losses: Sequence[float]) -> None:
    if losses:
        print(f"loss {losses[0]:.3f} {to_bars(losses)} {losses[-1]:.3f}", flush=True)
