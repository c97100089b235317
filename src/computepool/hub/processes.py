"""Several hub processes on one machine behind one port: started, watched, started again, ended together.

The parent knows only processes, signals and the port. It serves nobody and opens no database, so that nothing which
ends a hub process can end it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from computepool import clock
from computepool.core.errors import ComputePoolError
from computepool.settings import InvalidSettings

log = logging.getLogger("computepool.processes")

# All is over this long after SIGTERM, whatever hangs.
STOP_SECONDS = 4.5
# A hub process that lived this long has not died of its own start.
SETTLED_SECONDS = 30.0
PAUSE_SECONDS = 0.5
PAUSE_SECONDS_MAX = 30.0
EXIT_REFUSED = 2
BACKLOG = 2048
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)

# What a hub process does with its life, given its number (from 1) and the parent's sign of life: a file descriptor
# that can be read once the parent is gone. Returns its exit code.
Live = Callable[[int, int], int]


@dataclass(slots=True)
class _HubProcess:
    number: int
    pid: int | None = None
    started_at: float = 0.0
    start_at: float = 0.0
    pause_seconds: float = PAUSE_SECONDS
    exit_codes: list[int] = field(default_factory=list)

    @property
    def has_refused_to_start(self) -> bool:
        return self.exit_codes[:1] == [EXIT_REFUSED]

    def note_end(self, exit_code: int, *, now: float) -> None:
        self.pid = None
        # The first says whether it could ever start, the last is for the log.
        self.exit_codes = [*self.exit_codes[:1], exit_code]
        if now - self.started_at >= SETTLED_SECONDS:
            self.pause_seconds = PAUSE_SECONDS
        self.start_at = now + self.pause_seconds
        self.pause_seconds = min(2 * self.pause_seconds, PAUSE_SECONDS_MAX)


@dataclass(slots=True)
class HubProcesses:
    count: int
    live: Live
    _all: list[_HubProcess] = field(default_factory=list)
    # The parent holds the end that is written to, and never writes: it is closed when the parent dies.
    _life: tuple[int, int] = (-1, -1)
    _wakeup: tuple[int, int] = (-1, -1)
    _caught: list[int] = field(default_factory=list)

    def run(self) -> int:
        """Until SIGTERM or SIGINT. The exit code: 0, or 2 when every hub process refuses to start."""
        self._all = [_HubProcess(number) for number in range(1, self.count + 1)]
        with self._signals_caught():
            try:
                return self._watch()
            finally:
                self._end_all()

    def _watch(self) -> int:
        while not self._caught:
            now = clock.seconds()
            self._reap(now)
            # One that refuses may be alone with its trouble; when all do from the first, the settings are wrong.
            if all(each.has_refused_to_start for each in self._all):
                return EXIT_REFUSED
            for each in self._all:
                if each.pid is None and each.start_at <= now:
                    self._start(each)
            pauses = [each.start_at - now for each in self._all if each.pid is None]
            self._wait(min(pauses, default=1.0))
        return 0

    def _start(self, each: _HubProcess) -> None:
        # What stands in the buffers would be written twice.
        sys.stdout.flush()
        sys.stderr.flush()
        # A signal that comes between the fork and the child's first steps waits until the child can take it.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            pid = os.fork()
            if pid == 0:
                self._become(each.number)
        except OSError as error:
            each.start_at = clock.seconds() + PAUSE_SECONDS_MAX
            log.error("hub_process_not_started number=%d error=%s", each.number, error)
            return
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        each.pid, each.started_at = pid, clock.seconds()
        log.info("hub_process_started number=%d pid=%d", each.number, pid)

    def _become(self, number: int) -> None:
        """In the child: never returns."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for each in _SIGNALS:
                signal.signal(each, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            # Ctrl-C goes to the whole group of the terminal; the parent alone decides when this process ends.
            os.setpgid(0, 0)
            for fd in (self._life[1], *self._wakeup):
                os.close(fd)
            code = self.live(number, self._life[0])
        except ComputePoolError as error:
            print(f"error: hub process {number}: {error.message} ({error.code})", file=sys.stderr)
            code = EXIT_REFUSED
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _reap(self, now: float) -> None:
        for each in self._all:
            if each.pid is None:
                continue
            pid, status = os.waitpid(each.pid, os.WNOHANG)
            if pid == 0:
                continue
            each.note_end(os.waitstatus_to_exitcode(status), now=now)
            log.warning(
                "hub_process_died number=%d pid=%d exit_code=%d next_start_seconds=%.1f",
                each.number,
                pid,
                each.exit_codes[-1],
                each.start_at - now,
            )

    def _end_all(self) -> None:
        self._signal_all(signal.SIGTERM)
        deadline = clock.seconds() + STOP_SECONDS
        told = len(self._caught)
        while any(each.pid is not None for each in self._all):
            # Told a second time, we are in a hurry.
            if clock.seconds() >= deadline or len(self._caught) > max(told, 1):
                self._signal_all(signal.SIGKILL)
            self._wait(0.1)
            for each in self._all:
                if each.pid is not None and os.waitpid(each.pid, os.WNOHANG)[0] != 0:
                    each.pid = None
        log.info("hub_processes_ended count=%d", self.count)

    def _signal_all(self, number: int) -> None:
        for each in self._all:
            if each.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each.pid, number)

    def _wait(self, seconds: float) -> None:
        """Sleeps until a signal comes, at most this long."""
        select.select([self._wakeup[0]], [], [], max(0.0, seconds))
        with contextlib.suppress(BlockingIOError):
            os.read(self._wakeup[0], 4096)

    @contextlib.contextmanager
    def _signals_caught(self) -> Iterator[None]:
        self._life, self._wakeup = os.pipe(), os.pipe()
        for fd in self._wakeup:
            os.set_blocking(fd, False)
        before = {
            number: signal.signal(number, lambda caught, _: self._caught.append(caught))
            for number in (signal.SIGTERM, signal.SIGINT)
        }
        before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        wakeup = signal.set_wakeup_fd(self._wakeup[1], warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(wakeup)
            for number, earlier in before.items():
                signal.signal(number, earlier)
            for fd in (*self._life, *self._wakeup):
                os.close(fd)


@contextlib.contextmanager
def port_held(host: str, port: int) -> Iterator[None]:
    """The port is ours alone, for as long as this lasts: also while no hub process is there to listen.

    Sockets that share a port would share it with anyone of this user, so it is asked first whether somebody has it.
    """
    if not hasattr(socket, "SO_REUSEPORT") or not hasattr(os, "fork"):
        raise InvalidSettings(
            "Several hub processes on one port need Linux or macOS. Start one: COMPUTEPOOL_HUB_WORKERS=1."
        )
    family = _family(host)
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        raise InvalidSettings(f"The hub cannot listen on {host}, port {port}: {error.strerror or error}.") from error
    with socket.socket(family) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind((host, port))
        yield


def listen_shared(host: str, port: int) -> socket.socket:
    """A listening socket of this process alone; the kernel spreads callers over all that share the port."""
    return socket.create_server((host, port), family=_family(host), backlog=BACKLOG, reuse_port=True)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
