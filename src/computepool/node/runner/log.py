"""What the job prints, kept up to a limit. Beyond it bytes are counted and dropped; the job goes on."""

from __future__ import annotations

import os

CUT_LINE = "[computepool] the log was cut here: the job printed more than its limit of {} bytes\n"


class CappedLog:
    """A file that ends, once the limit is passed, with one line that says so."""

    def __init__(self, path: str, bytes_max: int) -> None:
        # Append: what somebody else truncates or a restart finds is never overwritten in the middle.
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._bytes_max = bytes_max
        self._ends_with_newline = True
        self.bytes_seen = 0
        self.is_cut = False

    def add(self, chunk: bytes) -> None:
        room = max(0, self._bytes_max - self.bytes_seen)
        self.bytes_seen += len(chunk)
        kept = chunk[:room]
        if kept:
            self._write(kept)
            self._ends_with_newline = kept.endswith(b"\n")
        if len(kept) < len(chunk) and not self.is_cut:
            self.is_cut = True
            newline = "" if self._ends_with_newline else "\n"
            self._write((newline + CUT_LINE.format(self._bytes_max)).encode())

    def close(self) -> None:
        os.close(self._fd)

    def _write(self, content: bytes) -> None:
        try:
            while content:
                content = content[os.write(self._fd, content) :]
        except OSError:
            # The node's disk is full. The job shall not die of that; its log ends early and says so if it can.
            self.is_cut = True
            self._bytes_max = 0
