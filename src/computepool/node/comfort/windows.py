"""Windows: the seat and the power by its own calls. Written from their documentation; never run on Windows yet."""

from __future__ import annotations

import csv
import ctypes
from typing import Any

from computepool.node.comfort.port import Rest, Seat
from computepool.node.hardware.port import Sight

TOOL_SECONDS = 5.0
_TICKS = 1 << 32
_OFFLINE = 0


class _LastInput(ctypes.Structure):
    _fields_ = (("size", ctypes.c_uint32), ("tick", ctypes.c_uint32))


class _Power(ctypes.Structure):
    _fields_ = (
        ("ac_line", ctypes.c_uint8),
        ("battery", ctypes.c_uint8),
        ("percent", ctypes.c_uint8),
        ("saver", ctypes.c_uint8),
        ("seconds_left", ctypes.c_uint32),
        ("seconds_full", ctypes.c_uint32),
    )


class WindowsReader:
    def __init__(self, sight: Sight | None = None) -> None:
        self._sight = sight or Sight(tool_seconds=TOOL_SECONDS)
        # Absent elsewhere, and mypy looks at this file elsewhere.
        self._system: Any = getattr(ctypes, "windll", None)

    def look_at_seat(self) -> Seat:
        last = _LastInput(size=ctypes.sizeof(_LastInput))
        if self._system is None or not self._system.user32.GetLastInputInfo(ctypes.byref(last)):
            return Seat(None, "Windows tells no time of the last input")
        return Seat(ticks_between(last.tick, self._system.kernel32.GetTickCount()) / 1000, "by GetLastInputInfo")

    def look_at_rest(self, *, programs: bool, gpus: bool) -> Rest:
        listed = self._sight.run("tasklist", "/fo", "csv", "/nh").text if programs else ""
        return Rest(on_battery=self._is_on_battery(), programs=parse_programs(listed))

    def _is_on_battery(self) -> bool | None:
        power = _Power()
        if self._system is None or not self._system.kernel32.GetSystemPowerStatus(ctypes.byref(power)):
            return None
        return bool(power.ac_line == _OFFLINE)


def ticks_between(earlier: int, later: int) -> int:
    """Milliseconds; the counter starts again from zero every 49.7 days."""
    return (later - earlier) % _TICKS


def parse_programs(text: str) -> frozenset[str]:
    return frozenset(row[0].lower() for row in csv.reader(text.splitlines()) if row and row[0])
