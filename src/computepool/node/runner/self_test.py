"""Which sandboxes hold on this machine: found by trying to break out of each, not by looking at versions.

Called by the agent at its start, in a thread; takes a second or two for each that is installed. A backend that
lets one try through is not offered.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from computepool import entropy
from computepool.core.jobs.isolation import IsolationLevel
from computepool.node.runner import handle, self_test_job, status
from computepool.node.runner.request import AttemptRequest
from computepool.node.runner.status import Status
from computepool.node.sandbox.backends import list_backends
from computepool.node.sandbox.bubblewrap_line import plan_shm_bytes
from computepool.node.sandbox.port import Backend, InputFile, Limits, Report

PYTHON = "/usr/bin/python3"
MEGABYTE = 1 << 20
TRY_LIMITS = Limits(128 * MEGABYTE, 32, 1.0, 8 * MEGABYTE, 10.0, 64 * 1024)
HOG_LIMITS = Limits(48 * MEGABYTE, 16, 1.0, MEGABYTE, 10.0, 64 * 1024)
FORK_LIMITS = Limits(128 * MEGABYTE, 16, 1.0, 8 * MEGABYTE, 20.0, 64 * 1024)
HOG_SCRIPT = "x = bytearray(); [x.extend(b'x' * (1 << 20)) for _ in range(256)]"
SECONDS_MAX = 60.0


def check_backends(work_dir: Path, wanted: Sequence[str] = ()) -> tuple[Report, ...]:
    """One report per known backend, or per wanted one; offer only those that are `usable`.

    `work_dir` is for the tries' files.
    """
    known = [backend for backend in list_backends() if not wanted or backend.name in wanted]
    with ThreadPoolExecutor(max_workers=len(known) or 1) as threads:
        return tuple(threads.map(lambda backend: check_backend(backend, work_dir), known))


def check_backend(backend: Backend, work_dir: Path) -> Report:
    report = backend.probe()
    if not report.usable:
        return report
    if not Path(PYTHON).exists():
        return report._replace(usable=False, reasons=(f"{PYTHON} is missing: jobs are run by it",))
    reasons = tuple(_find_holes(backend, work_dir))
    return report._replace(usable=not reasons, reasons=reasons)


def _find_holes(backend: Backend, work_dir: Path) -> Iterator[str]:
    name = f"self-test-{entropy.new_id()}"
    with ExitStack() as stack:
        port, abstract_name = stack.enter_context(_host_listeners(name))
        script = InputFile("self_test_job.py", str(Path(self_test_job.__file__).resolve()))
        sizes = (str(TRY_LIMITS.disk_bytes), str(plan_shm_bytes(TRY_LIMITS)))
        arguments = (str(port), abstract_name, *sizes, backend.level.value)
        tries = (PYTHON, "-I", script.path, *arguments)
        tries_dir = _spawn(backend, work_dir / f"{name}-tries", tries, (script,), TRY_LIMITS)
        stack.callback(_discard, tries_dir)
        hog_dir = _spawn(backend, work_dir / f"{name}-hog", (PYTHON, "-I", "-c", HOG_SCRIPT), (), HOG_LIMITS)
        stack.callback(_discard, hog_dir)
        tried, hogged = _await_end(tries_dir), _await_end(hog_dir)
        lines = _read_lines(tries_dir / "log")
        if backend.level is IsolationLevel.GVISOR:
            fork_dir = _spawn(backend, work_dir / f"{name}-fork", (PYTHON, "-I", script.path), (script,), FORK_LIMITS)
            stack.callback(_discard, fork_dir)
            if _await_end(fork_dir).state != status.FINISHED or "FORKED True" in _read_lines(fork_dir / "log"):
                yield "the limit of processes does not hold"
    yield from _judge_tries(tried, lines)
    if hogged.cause != status.OUT_OF_MEMORY:
        yield f"the memory limit does not hold: {hogged.cause or 'no cause'}: {hogged.message}"


def _judge_tries(tried: Status, lines: list[str]) -> Iterator[str]:
    if tried.cause is not None or "DONE" not in lines:
        yield f"the tries did not run to their end: {tried.message or 'no last line'}"
    for line in lines:
        if line.startswith("ESCAPED "):
            yield f"a job can {line.removeprefix('ESCAPED ')}"


def _spawn(
    backend: Backend, state_dir: Path, command: tuple[str, ...], inputs: tuple[InputFile, ...], limits: Limits
) -> Path:
    request = AttemptRequest(
        attempt_id=state_dir.name,
        command=command,
        env={},
        inputs=inputs,
        limits=limits,
        isolation=backend.level,
        backend=backend.name,
        slot="self-test",
        lease_seconds=SECONDS_MAX,
        agent_alive_path=str(state_dir),
    )
    handle.spawn(state_dir, request)
    return state_dir


def _await_end(state_dir: Path) -> Status:
    # Counted in sleeps, not read from a clock: a machine that stalls may take longer, never for ever.
    for _ in range(int(SECONDS_MAX / 0.01)):
        found = handle.read_status(state_dir)
        if found.state in (status.FINISHED, status.VANISHED):
            return found
        time.sleep(0.01)
    return found


def _discard(state_dir: Path) -> None:
    handle.request_stop(state_dir, cause=status.CANCELLED, grace_seconds=0.0)
    _await_end(state_dir)
    handle.cleanup(state_dir)


@contextmanager
def _host_listeners(name: str) -> Iterator[tuple[int, str]]:
    """Doors on the host that a job must not find: a port on loopback and an abstract socket."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind("\0" + name)
        abstract.listen()
        yield server.getsockname()[1], name


def _read_lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines() if path.exists() else []
