"""macOS: the seat and the power by its own tools. Written from their formats; never run on a Mac yet."""

from __future__ import annotations

import re

from computepool.node.comfort.paced import Paced
from computepool.node.comfort.port import Rest, Seat
from computepool.node.hardware.port import Sight

TOOL_SECONDS = 3.0
SEAT_SECONDS = 0.5
POWER_SECONDS = 5.0


class MacReader:
    def __init__(self, sight: Sight | None = None) -> None:
        self._sight = sight or Sight(tool_seconds=TOOL_SECONDS)
        self._idle = Paced(
            lambda: parse_idle(self._sight.run("ioreg", "-c", "IOHIDSystem", "-d", "4").text), SEAT_SECONDS
        )
        self._battery = Paced(lambda: parse_power(self._sight.run("pmset", "-g", "batt").text), POWER_SECONDS)

    def look_at_seat(self) -> Seat:
        idle = self._idle.get()
        return Seat(idle, "by IOHIDSystem" if idle is not None else "ioreg tells no HIDIdleTime")

    def look_at_rest(self, *, programs: bool, gpus: bool) -> Rest:
        listed = self._sight.run("ps", "-axo", "comm=").text if programs else ""
        return Rest(on_battery=self._battery.get(), programs=parse_programs(listed))


def parse_idle(text: str) -> float | None:
    found = re.search(r'"HIDIdleTime"\s*=\s*(\d+)', text)
    return int(found[1]) / 1e9 if found else None


def parse_power(text: str) -> bool | None:
    found = re.search(r"Now drawing from '([^']+)'", text)
    return found[1] == "Battery Power" if found else None


def parse_programs(text: str) -> frozenset[str]:
    return frozenset(line.strip().rpartition("/")[2].lower() for line in text.splitlines() if line.strip())
