"""Heat and power of graphics cards, by their drivers' own tools. A card that tells nothing is left in peace."""

from __future__ import annotations

from dataclasses import dataclass

from computepool.node.hardware.port import Sight


@dataclass(frozen=True, slots=True)
class PowerLimit:
    """One card's, as it was before we changed it."""

    card: int
    watts_before: float


def read_celsius(sight: Sight) -> float | None:
    """Of the hottest card; None when no driver tells."""
    printed = sight.run("nvidia-smi", "--query-gpu=temperature.gpu", "--format=csv,noheader,nounits")
    degrees = [] if printed.trouble else parse_figures(printed.text)
    for path in sight.glob("/sys/class/drm/card[0-9]/device/hwmon/hwmon*/temp1_input"):
        if (milli := sight.read_int(path)) is not None:
            degrees.append(milli / 1000)
    return max(degrees, default=None)


def parse_figures(text: str) -> list[float]:
    """One a line; "[N/A]" and the like are left out."""
    found = []
    for line in text.splitlines():
        try:
            found.append(float(line.strip()))
        except ValueError:
            continue
    return found


def limit_power(sight: Sight, watts_max: int) -> tuple[list[PowerLimit], list[str]]:
    """Lowers what NVIDIA's cards may draw; returns what was changed, and why the rest was not."""
    printed = sight.run("nvidia-smi", "--query-gpu=power.limit", "--format=csv,noheader,nounits")
    if printed.trouble:
        return [], [f"no driver here sets the power of a card ({printed.trouble})"]
    changed: list[PowerLimit] = []
    troubles: list[str] = []
    for card, line in enumerate(printed.text.splitlines()):
        figures = parse_figures(line)
        if not figures:
            troubles.append(f"card {card} tells no power limit")
        elif figures[0] > watts_max:
            answer = sight.run("nvidia-smi", "-i", str(card), "-pl", str(watts_max))
            if answer.trouble:
                troubles.append(f"card {card}: {answer.trouble}")
            else:
                changed.append(PowerLimit(card, figures[0]))
    return changed, troubles


def restore_power(sight: Sight, limits: list[PowerLimit]) -> None:
    for limit in limits:
        sight.run("nvidia-smi", "-i", str(limit.card), "-pl", f"{limit.watts_before:g}")
