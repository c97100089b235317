"""Child processes that a command starts and must end again, whatever happens to it. Their output goes to files."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from computepool import clock

_LOOK_SECONDS = 0.05
_PR_SET_PDEATHSIG = 1
_STOP_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


@dataclass(frozen=True, slots=True)
class Child:
    name: str
    process: subprocess.Popen[bytes]
    log_path: Path
    # The file grows over several starts; this one's words begin here.
    log_offset: int

    @property
    def exit_code(self) -> int | None:
        return self.process.poll()

    def last_lines(self, count: int) -> list[str]:
        with self.log_path.open("rb") as file:
            file.seek(self.log_offset)
            return file.read().decode(errors="replace").splitlines()[-count:]


class Children:
    """Ends all its children when the block is left."""

    def __init__(self, *, grace_seconds: float) -> None:
        self._grace_seconds = grace_seconds
        self._children: list[Child] = []

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, name: str, arguments: Sequence[str], *, env: Mapping[str, str], log_path: Path) -> Child:
        log_path.parent.mkdir(parents=True, exist_ok=True)
        # A hub prints its first sign-in link: only the user who started it may read that.
        with os.fdopen(os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as log:
            log_offset = log.tell()
            process = subprocess.Popen(
                arguments,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # A Ctrl-C in the terminal reaches only us; we end the children in the right order.
                start_new_session=True,
                preexec_fn=_die_with_parent(),
            )
        child = Child(name, process, log_path, log_offset)
        self._children.append(child)
        return child

    def list_ended(self) -> list[Child]:
        return [child for child in self._children if child.exit_code is not None]

    def stop(self) -> None:
        """Ask, wait, insist. An impatient second Ctrl-C must not leave half of them behind."""
        alive = [child for child in self._children if child.exit_code is None]
        with _deaf_to_signals():
            for child in alive:
                child.process.terminate()
            deadline = clock.seconds() + self._grace_seconds
            while any(child.exit_code is None for child in alive) and clock.seconds() < deadline:
                time.sleep(_LOOK_SECONDS)
            for child in alive:
                if child.exit_code is None:
                    child.process.kill()
                    child.process.wait()
        self._children.clear()


@contextmanager
def signals_end_the_block() -> Iterator[None]:
    """SIGTERM and SIGHUP unwind as Ctrl-C does, so that `with` blocks end what they started."""

    def unwind(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, unwind) for number in _STOP_SIGNALS}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def _deaf_to_signals() -> Iterator[None]:
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _STOP_SIGNALS}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _die_with_parent() -> Callable[[], None] | None:
    """Even kill -9 on us must not leave a grid running. Linux has a word for it; elsewhere the file of logs tells."""
    if not sys.platform.startswith("linux"):
        return None
    # Loaded before the fork: between fork and exec as little as possible may happen.
    prctl = ctypes.CDLL(None).prctl

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

    return ask
