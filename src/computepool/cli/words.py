"""How values are said in a terminal: ids, times, sizes, and other people's text. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

# The end of an id tells jobs apart; its beginning is the time, which neighbours share.
SHORT_ID_LENGTH = 8

_COLOUR = re.compile(r"\x1b\[[0-9;]{0,32}m")
_ESCAPE = re.compile(
    r"\x9b[0-?]*[ -/]*[@-~]|\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_].*?(?:\x07|\x1b\\)|[@-Z\\-_]|.?)", re.DOTALL
)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f]")
_SECONDS = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d|)\Z")
_SECONDS_OF = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400}
_BARS = "▁▂▃▄▅▆▇█"
_BARS_ASCII = "_.-=+*#@"


def short_id(value: UUID) -> str:
    return str(value)[-SHORT_ID_LENGTH:]


def plain(text: str) -> str:
    """A stranger's words on one's terminal: no colours, no cursor moves, no window titles, no clipboard."""
    return _CONTROL.sub("", _ESCAPE.sub("", text))


def tame(text: str) -> str:
    """A job's log: its colours stay, everything else that would command the terminal goes."""
    kept = [plain(piece) for piece in _COLOUR.split(text)]
    colours = _COLOUR.findall(text)
    return kept[0] + "".join(colour + piece for colour, piece in zip(colours, kept[1:], strict=True))


def parse_seconds(text: str) -> int:
    """`90`, `90s`, `15m`, `2h` or `1d`."""
    match = _SECONDS.match(text.strip().lower())
    if match is None:
        raise ValueError(f"{text!r} is not a time; write 90s, 15m, 2h or 1d")
    return max(1, round(float(match[1]) * _SECONDS_OF[match[2]]))


def format_seconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds < 0.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3_600:
        return f"{whole // 60} min {whole % 60:02d}"
    if whole < 86_400:
        return f"{whole // 3_600} h {whole % 3_600 // 60:02d}"
    return f"{whole // 86_400} d {whole % 86_400 // 3_600:02d} h"


def format_ago(at: datetime | None, now: datetime) -> str:
    """The age in its largest unit only: `12 s`, `3 min`, `5 h`, `9 d`."""
    if at is None:
        return "never"
    seconds = max(0.0, (now - at).total_seconds())
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return f"{seconds:.0f} s"


def seconds_between(start: datetime | None, end: datetime | None) -> float | None:
    return None if start is None or end is None else (end - start).total_seconds()


def sparkline(values: Sequence[float], *, width: int, ascii_only: bool = False) -> str:
    """A curve in one line of text, from its least value to its greatest."""
    if not values:
        return ""
    count = min(width, len(values))
    sampled = [values[i * len(values) // count] for i in range(count)]
    low, high = min(sampled), max(sampled)
    bars = _BARS_ASCII if ascii_only else _BARS
    steps = len(bars) / (high - low) if high > low else 0.0
    return "".join(bars[min(int((value - low) * steps), len(bars) - 1)] for value in sampled)
