"""A seat that a file plays, for tests: {"idle_seconds": 0, "on_battery": true, "programs": ["game"]}."""

from __future__ import annotations

from pathlib import Path

import msgspec

from computepool.node.comfort.port import Rest, Seat


class Played(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    idle_seconds: float | None = None
    on_battery: bool | None = None
    is_metered: bool | None = None
    programs: list[str] = []
    gpu_celsius: float | None = None
    cpu_percent: float | None = None


class PlayedReader:
    def __init__(self, path: Path) -> None:
        self._path = path

    def look_at_seat(self) -> Seat:
        played = self._read()
        return Seat(played.idle_seconds, "by a file" if played.idle_seconds is not None else "the file does not say")

    def look_at_rest(self, *, programs: bool, gpus: bool) -> Rest:
        played = self._read()
        return Rest(
            on_battery=played.on_battery,
            is_metered=played.is_metered,
            programs=frozenset(name.lower() for name in played.programs),
            gpu_celsius=played.gpu_celsius,
            cpu_percent=played.cpu_percent,
        )

    def _read(self) -> Played:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Played)
        except (OSError, msgspec.DecodeError):
            return Played()
