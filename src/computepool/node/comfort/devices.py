"""Linux' input devices: sees that a key or a mouse moved, and throws away which. For root and the group `input`."""

from __future__ import annotations

import os
from pathlib import Path

from computepool import clock

FOLDER = Path("/dev/input")
READ_BYTES = 4096
READS_MAX = 64
# Keyboards come and go.
LIST_SECONDS = 10.0


class InputDevices:
    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder
        self._open: dict[str, int] = {}
        self._listed_at = -LIST_SECONDS
        self._moved_at = clock.seconds()

    def find_idle_seconds(self) -> float | None:
        """Since something moved, or since this agent began to look. None: there is nothing to look at."""
        now = clock.seconds()
        if now - self._listed_at >= LIST_SECONDS:
            self._listed_at = now
            self._open_new()
        for name, descriptor in list(self._open.items()):
            if self._has_moved(name, descriptor):
                self._moved_at = now
        return now - self._moved_at if self._open else None

    def _open_new(self) -> None:
        for path in sorted(self._folder.glob("event*")):
            if path.name not in self._open:
                try:
                    self._open[path.name] = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                except OSError:
                    continue

    def _has_moved(self, name: str, descriptor: int) -> bool:
        moved = False
        try:
            for _ in range(READS_MAX):
                if not os.read(descriptor, READ_BYTES):
                    break
                moved = True
        except BlockingIOError:
            pass
        except OSError:
            # It was pulled out.
            os.close(self._open.pop(name))
        return moved
