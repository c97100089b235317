"""The life of one attempt: start the sandbox, pass on its words, end it in time, bring out what it made.

One thread, one poll(). Between events it sleeps; twice a second it looks for a stop, for memory kills and
for its agent.
"""

from __future__ import annotations

import math
import os
import select
import sys
import time

from computepool.node.runner import files, status
from computepool.node.runner.checkpoints import CheckpointTaker
from computepool.node.runner.liveness import get_own_birth
from computepool.node.runner.log import CappedLog
from computepool.node.runner.outputs import Collector
from computepool.node.runner.redaction import Redactor
from computepool.node.runner.request import AttemptRequest, InvalidAttempt
from computepool.node.runner.status import RefusedOutput, Status
from computepool.node.runner.stops import Stop, StopWatch, Wakeups
from computepool.node.runner.verdict import Ending, judge
from computepool.node.sandbox.backends import get_backend
from computepool.node.sandbox.port import (
    OUTPUT_DIR,
    Exit,
    InputMissing,
    Sandbox,
    SandboxRefused,
    SandboxRequest,
    StartCancelled,
    Usage,
)

TICK_SECONDS = 0.5
READ_BYTES = 1024 * 1024
# Reading and dropping what is printed beyond the limit costs CPU outside of the job's own share: a pause
# after each megabyte holds a flood at some 250 MB/s. The job waits meanwhile, as on any slow terminal.
FLOOD_PAUSE_SECONDS = 0.004
DRAIN_SECONDS_MAX = 2.0
FIRST_WORDS_BYTES = 500
DISK_FULL_BYTES = 64 * 1024


def run_attempt(state_dir: str) -> None:
    """All of it, from request.json to the finished status. Returns when nothing of the job is left."""
    wakeups = Wakeups()
    current = Status(runner_pid=os.getpid(), runner_started=get_own_birth())
    files.write_json(state_dir, files.STATUS, current.to_json())
    try:
        finished = _run(state_dir, wakeups, current)
    except (InvalidAttempt, SandboxRefused) as error:
        finished = current._replace(cause=status.SANDBOX_REFUSED, message=str(error))
    except InputMissing as error:
        finished = current._replace(cause=status.INPUT_MISSING, message=str(error))
    except Exception as error:
        _finish(state_dir, current._replace(cause=status.SANDBOX_REFUSED, message=f"the runner failed: {error!r}"))
        raise  # into runner.log, with its traceback
    _finish(state_dir, finished)


def _finish(state_dir: str, finished: Status) -> None:
    finished = finished._replace(state=status.FINISHED, finished_at=time.time())
    files.write_json(state_dir, files.STATUS, finished.to_json(), durable=True)


def _run(state_dir: str, wakeups: Wakeups, current: Status) -> Status:
    content = files.find_json(state_dir, files.REQUEST)
    if content is None:
        raise InvalidAttempt("request.json is missing or unreadable")
    request = AttemptRequest.from_json(content)
    watch = StopWatch(state_dir, request, wakeups)
    try:
        sandbox = _start(state_dir, request, watch)
    except StartCancelled:
        stop = watch.find_stop() or Stop(status.CANCELLED, "stopped before it began", 0.0)
        return current._replace(cause=stop.cause, message=stop.message)
    log = CappedLog(os.path.join(state_dir, files.LOG), request.limits.log_bytes)
    try:
        return _Supervisor(state_dir, request, sandbox, watch, wakeups, log).run(current)
    finally:
        log.close()
        _close(sandbox)


def _close(sandbox: Sandbox) -> None:
    try:
        sandbox.close()
    except OSError as error:
        # The result stands. What could not be given back is in the note, and the next sweep tries again.
        print(f"not everything could be given back: {error}", file=sys.stderr)


def _start(state_dir: str, request: AttemptRequest, watch: StopWatch) -> Sandbox:
    backend = get_backend(request.backend)
    if not backend.level.meets(request.isolation):
        raise SandboxRefused(f"{backend.name} does not give isolation {request.isolation.value}")
    if watch.is_stopped():
        raise StartCancelled
    return backend.start(
        SandboxRequest(
            name=request.attempt_id,
            command=request.command,
            env=request.env,
            inputs=request.inputs,
            limits=request.limits,
            state_dir=state_dir,
            image=request.image,
            devices=request.devices,
            environment=request.environment,
            egress=request.egress,
        ),
        is_cancelled=watch.is_stopped,
    )


class _Supervisor:
    def __init__(
        self,
        state_dir: str,
        request: AttemptRequest,
        sandbox: Sandbox,
        watch: StopWatch,
        wakeups: Wakeups,
        log: CappedLog,
    ) -> None:
        self._state_dir = state_dir
        self._request = request
        self._sandbox = sandbox
        self._watch = watch
        self._wakeups = wakeups
        self._log = log
        self._redactor = Redactor(request.env.get(name, "") for name in request.secrets)
        self._first_words = b""
        self._memory_bytes_peak = 0
        self._stop: Stop | None = None
        self._kill_at = math.inf
        self._poller = select.poll()
        self._poller.register(wakeups.fd, select.POLLIN)
        self._poller.register(sandbox.output_fd, select.POLLIN)
        self._is_output_open = True

    def run(self, current: Status) -> Status:
        began, current = time.monotonic(), current._replace(state=status.RUNNING, started_at=time.time())
        files.write_json(self._state_dir, files.STATUS, current.to_json())
        self._watch.start_clock()
        taker = CheckpointTaker(
            self._state_dir,
            self._sandbox,
            every_seconds=self._request.checkpoint_seconds,
            bytes_max=self._request.limits.disk_bytes,
            say=lambda text: self._log.add(text.encode()),
            now=began,
            restored=self._request.restored,
        )
        ended = self._await_end(taker)
        run_seconds = time.monotonic() - began
        # Before anything is read back: daemons that the job left behind must not go on writing.
        self._sandbox.kill()
        taker.finish(exit_code=ended.code if ended is not None else None)
        usage = self._read_usage()
        self._drain_output()
        self._show(self._redactor.finish())
        current, disk_is_full = self._collect(current)
        verdict = judge(
            Ending(
                exit_code=ended.code if ended is not None else None,
                was_built=ended is None or ended.was_built,
                stop_cause=self._stop.cause if self._stop is not None else None,
                stop_message=self._stop.message if self._stop is not None else "",
                oom_kill_count=usage.oom_kill_count,
                memory_bytes_peak=usage.memory_bytes_peak,
                memory_bytes_limit=self._request.limits.memory_bytes,
                disk_is_full=disk_is_full,
                first_words=self._first_words.decode(errors="replace").strip(),
            )
        )
        return current._replace(
            exit_code=verdict.exit_code,
            signal=verdict.signal,
            cause=verdict.cause,
            message=verdict.message,
            run_seconds=round(run_seconds, 3),
            cpu_seconds=round(usage.cpu_seconds, 3),
            memory_bytes_peak=usage.memory_bytes_peak,
            log_bytes=self._log.bytes_seen,
            log_truncated=self._log.is_cut,
        )

    def _await_end(self, taker: CheckpointTaker) -> Exit | None:
        """The job's own end, or None when it has to be killed."""
        next_look = 0.0
        while True:
            wait_seconds = max(0.0, min(next_look, self._kill_at, taker.next_at) - time.monotonic())
            self._poller.poll(math.ceil(wait_seconds * 1000))
            is_signalled = self._wakeups.drain()
            self._read_output()
            ended = self._sandbox.poll()
            if ended is not None:
                return ended
            now = time.monotonic()
            # A flood of output wakes us hundreds of times a second; these looks keep their own pace.
            if is_signalled or now >= next_look:
                next_look = now + TICK_SECONDS
                if self._read_usage().oom_kill_count > 0:
                    # On version 1 the kernel shoots one process; a job without it is broken as a whole.
                    return None
                self._look_for_stop(now)
            if now >= self._kill_at:
                return None
            if now >= taker.next_at:
                taker.step(now)

    def _look_for_stop(self, now: float) -> None:
        stop = self._watch.find_stop()
        if stop is None:
            return
        if self._stop is None:
            self._stop = stop
            self._sandbox.terminate()
        # A second wish with less grace counts; one with more gives nothing back.
        self._kill_at = min(self._kill_at, now + stop.grace_seconds)

    def _read_output(self) -> bool:
        """One portion of what the job prints; False when there is none at the moment or none any more."""
        if not self._is_output_open:
            return False
        try:
            chunk = os.read(self._sandbox.output_fd, READ_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self._poller.unregister(self._sandbox.output_fd)
            self._is_output_open = False
            return False
        if self._log.is_cut:
            # Only counted from here on: nothing of it is kept, so that nothing need be removed from it.
            self._log.add(chunk)
            time.sleep(FLOOD_PAUSE_SECONDS)
        else:
            self._show(self._redactor.add(chunk))
        return True

    def _show(self, text: bytes) -> None:
        """What others may read of what the job printed."""
        if len(self._first_words) < FIRST_WORDS_BYTES:
            self._first_words += text[:FIRST_WORDS_BYTES]
        self._log.add(text)

    def _drain_output(self) -> None:
        """What is still in the pipe. Every writer is dead, so the end of file is near."""
        deadline = time.monotonic() + DRAIN_SECONDS_MAX
        while self._is_output_open and time.monotonic() < deadline:
            if not self._read_output() and self._is_output_open:
                self._poller.poll(10)

    def _read_usage(self) -> Usage:
        usage = self._sandbox.usage()
        # Where the kernel keeps no peak it tells the present use, and the largest sample stands for the peak.
        self._memory_bytes_peak = max(self._memory_bytes_peak, usage.memory_bytes_peak)
        return usage._replace(memory_bytes_peak=self._memory_bytes_peak)

    def _collect(self, current: Status) -> tuple[Status, bool]:
        """The status with its outputs, and whether the job had filled its disk."""
        folder_fd = self._sandbox.open_outputs()
        if folder_fd is None:
            reason = f"{OUTPUT_DIR} is gone or no longer a folder"
            return current._replace(outputs_refused=(RefusedOutput("", reason),)), False
        target = os.path.join(self._state_dir, files.OUTPUTS)
        collector = Collector(target, bytes_max=self._request.limits.disk_bytes)
        try:
            space = os.fstatvfs(folder_fd)
            os.makedirs(target, mode=0o700, exist_ok=True)
            collector.collect(folder_fd)
        finally:
            os.close(folder_fd)
        is_full = space.f_bavail * space.f_frsize < DISK_FULL_BYTES
        outputs, refused = tuple(collector.collected), tuple(collector.refused)
        return current._replace(outputs=outputs, outputs_refused=refused), is_full
