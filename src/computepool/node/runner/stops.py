"""Why a running job must end: the agent's word, a signal, the wall clock, or an agent that fell silent.

Only looks and remembers; ending the job is the supervisor's work.
"""

from __future__ import annotations

import os
import signal
import time
from types import FrameType
from typing import NamedTuple

from computepool.node.runner import files, status
from computepool.node.runner.request import AttemptRequest

GRACE_SECONDS = 2.0
GRACE_SECONDS_MAX = 300.0


class Stop(NamedTuple):
    cause: str
    message: str
    grace_seconds: float


class Wakeups:
    """Signals as bytes in a pipe, so that one poll() waits for everything. Must be made in the main thread."""

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.is_term_seen = False
        signal.set_wakeup_fd(self._write_fd, warn_on_full_buffer=False)
        # Not SIG_DFL or SIG_IGN: only a Python function makes the byte appear. The shell that detached us
        # has switched SIGINT off.
        signal.signal(signal.SIGCHLD, _ignore)
        signal.signal(signal.SIGTERM, self._note_term)
        signal.signal(signal.SIGINT, self._note_term)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def drain(self) -> bool:
        """Empty the pipe; True when anything was in it."""
        try:
            return bool(os.read(self.fd, 4096))
        except BlockingIOError:
            return False

    def _note_term(self, number: int, frame: FrameType | None) -> None:
        self.is_term_seen = True


def _ignore(number: int, frame: FrameType | None) -> None:
    pass


class StopWatch:
    """Looks for a reason to stop, each time it is asked."""

    def __init__(self, state_dir: str, request: AttemptRequest, wakeups: Wakeups) -> None:
        self._state_dir = state_dir
        self._request = request
        self._wakeups = wakeups
        self._deadline: float | None = None
        # Monotonic time of the last *change* we saw, not the file's own age: a laptop that slept for an
        # hour wakes up with an old file and a living agent.
        self._sign = self._read_sign()
        self._sign_seen_at = time.monotonic()

    def start_clock(self) -> None:
        """From now on the wall limit counts."""
        self._deadline = time.monotonic() + self._request.limits.wall_seconds

    def find_stop(self) -> Stop | None:
        return self._find_wish() or self._find_timeout() or self._find_silence()

    def is_stopped(self) -> bool:
        return self.find_stop() is not None

    def _find_wish(self) -> Stop | None:
        wish = files.find_json(self._state_dir, files.STOP)
        if wish is not None:
            cause = wish.get("cause")
            grace = wish.get("grace_seconds", GRACE_SECONDS)
            grace = float(grace) if isinstance(grace, (int, float)) else GRACE_SECONDS
            cause = cause if cause in status.STOP_CAUSES else status.CANCELLED
            return Stop(cause, f"stopped: {cause}", min(max(grace, 0.0), GRACE_SECONDS_MAX))
        if self._wakeups.is_term_seen:
            # A bare SIGTERM comes from whoever runs this machine (shutdown, service manager), not from the hub.
            return Stop(status.OWNER_RETURNED, "the machine's owner or its shutdown ended the job", GRACE_SECONDS)
        return None

    def _find_timeout(self) -> Stop | None:
        if self._deadline is None or time.monotonic() < self._deadline:
            return None
        message = f"the job ran longer than its {self._request.limits.wall_seconds:g} seconds"
        return Stop(status.TIMED_OUT, message, GRACE_SECONDS)

    def _find_silence(self) -> Stop | None:
        sign, now = self._read_sign(), time.monotonic()
        if sign != self._sign:
            self._sign, self._sign_seen_at = sign, now
        if now - self._sign_seen_at <= self._request.lease_seconds:
            return None
        # node_vanished, not network_lost: the line to the hub may be fine; it is the node that fell silent.
        message = f"the agent gave no sign of life for {self._request.lease_seconds:g} seconds"
        return Stop(status.NODE_VANISHED, message, GRACE_SECONDS)

    def _read_sign(self) -> int | None:
        try:
            return os.stat(self._request.agent_alive_path).st_mtime_ns
        except OSError:
            return None
