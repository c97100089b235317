"""Remembers which attempts a job token has started here, across restarts: none starts twice.

A token that has run out is refused for its age, so what it started may be forgotten some time later.
"""

from __future__ import annotations

import os
from pathlib import Path
from uuid import UUID

from computepool.node import files

# Far longer than any leeway: setting the clock back by an hour must not reopen the door.
KEEP_SECONDS = 3_600
PRUNE_EVERY = 10_000


class SpentTokens:
    def __init__(self, path: Path, *, now_seconds: float) -> None:
        self._path = path
        self._expiries = _read(path)
        # Written anew at every start, so that a line cut short by a crash cannot spoil the one after it.
        self._forget_old(now_seconds)

    def is_spent(self, attempt_id: UUID) -> bool:
        return attempt_id in self._expiries

    def spend(self, attempt_id: UUID, *, expires_at: float, now_seconds: float) -> bool:
        """False when it was spent before. When this returns True, the mark survives a power cut."""
        if attempt_id in self._expiries:
            return False
        if len(self._expiries) >= self._prune_at:
            self._forget_old(now_seconds)
        self._expiries[attempt_id] = expires_at
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, _to_line(attempt_id, expires_at))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return True

    def _forget_old(self, now_seconds: float) -> None:
        oldest = now_seconds - KEEP_SECONDS
        self._expiries = {attempt_id: expiry for attempt_id, expiry in self._expiries.items() if expiry >= oldest}
        self._prune_at = len(self._expiries) + PRUNE_EVERY
        files.write_whole(self._path, b"".join(_to_line(*entry) for entry in self._expiries.items()))


def _to_line(attempt_id: UUID, expires_at: float) -> bytes:
    return f"{attempt_id} {expires_at:.0f}\n".encode()


def _read(path: Path) -> dict[UUID, float]:
    found = {}
    for line in (files.find_bytes(path) or b"").decode(errors="replace").splitlines():
        try:
            attempt_id, expires_at = line.split()
            found[UUID(attempt_id)] = float(expires_at)
        except ValueError:
            # Cut short by a crash. Its job was not started: the mark comes first.
            continue
    return found
