"""Shards of data that this machine has fetched for a run, kept for the next one: by hash, oldest out first.

Several hosts share the folder. What is read is checked against its name, and what is written appears whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from computepool import entropy
from computepool.node import journal


class DataShelf:
    def __init__(self, folder: str, *, bytes_max: int) -> None:
        """An empty name: nothing is kept."""
        self._folder = Path(folder) if folder else None
        self._bytes_max = bytes_max

    def find(self, sha256: str) -> bytes | None:
        if self._folder is None:
            return None
        path = self._folder / sha256
        try:
            content = path.read_bytes()
            if hashlib.sha256(content).hexdigest() != sha256:
                path.unlink(missing_ok=True)
                return None
            # The time of modification is that of the last use.
            os.utime(path)
        except OSError:
            return None
        return content

    def put(self, sha256: str, content: bytes) -> None:
        """Best effort: who cannot keep it fetches it again."""
        if self._folder is None or len(content) > self._bytes_max:
            return
        draft = self._folder / f".{sha256}.{entropy.new_secret(6)}"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._make_room(len(content))
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(content)
            draft.replace(self._folder / sha256)
        except OSError as error:
            journal.warning("data_not_kept", sha256=sha256, reason=str(error))
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)

    def _make_room(self, size_bytes: int) -> None:
        assert self._folder is not None
        kept = []
        for path in self._folder.iterdir():
            # Another host may take it away at the same time.
            with contextlib.suppress(FileNotFoundError):
                stat = path.stat()
                kept.append((stat.st_mtime, stat.st_size, path))
        held = sum(size for _, size, _ in kept)
        for _, size, path in sorted(kept):
            if held + size_bytes <= self._bytes_max:
                return
            path.unlink(missing_ok=True)
            held -= size
