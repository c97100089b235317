"""The agent's hand on its runners: start, look, stop, clean up. Speaks through the state directory only.

Every call is short and synchronous. Nothing is remembered between calls, so an agent that has just restarted
adopts its runners by looking at the same directories.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import computepool
from computepool import clock
from computepool.node.runner import files, status
from computepool.node.runner.liveness import is_alive
from computepool.node.runner.request import AttemptRequest
from computepool.node.runner.status import Status
from computepool.node.sandbox import leftovers

# A runner writes its first status some 50 ms after its start. One that has not after this long never will.
START_SECONDS_MAX = 15.0
RUNNER = (
    "import sys; sys.path.append(sys.argv[1]); from computepool.node.runner.__main__ import main; "
    "sys.exit(main(sys.argv[2:]))"
)
# The shell detaches the runner: it is nobody's child, so that no agent has to reap it and none takes it along.
DETACHING_SHELL = '"$@" >>"$0" 2>&1 </dev/null &'


class RunnerAlive(Exception):
    """The directory belongs to a running attempt; stop it first."""


def spawn(state_dir: Path, request: AttemptRequest) -> None:
    """Start a runner for this attempt, in a directory that must not have been used before."""
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    # The request may hold the job's secrets.
    state_dir.chmod(0o700)
    where = str(state_dir.resolve())
    if (state_dir / files.REQUEST).exists():
        raise FileExistsError(f"{where} has served an attempt already")
    files.write_json(where, files.REQUEST, request.to_json())
    files.write_json(where, files.STATUS, Status().to_json())
    runner_log = os.path.join(where, files.RUNNER_LOG)
    # The same as `python -m computepool.node.runner`, but isolated (-I) and without site packages (-S), which
    # the runner does not need. Our own folder goes last in the search: it may be a site-packages folder, and a
    # package there that bears the name of a standard module must not come first.
    runner = [sys.executable, "-I", "-S", "-c", RUNNER, _package_root(), where]
    subprocess.run(
        ["/bin/sh", "-c", DETACHING_SHELL, runner_log, *runner],
        # Nothing of the agent's environment, which may hold its token.
        env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
        cwd="/",
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        timeout=30,
        check=True,
    )


def read_status(state_dir: Path) -> Status:
    """How the attempt stands. `state` is starting, running, finished, or vanished: the runner died without a word.

    A vanished runner's job is dead too, and nothing it made was brought out.
    """
    content = files.find_json(str(state_dir), files.STATUS)
    if content is None:
        return Status(state=status.VANISHED, message="there is no status: no runner was started here")
    found = Status.from_json(content)
    if found.state == status.FINISHED or is_alive(found.runner_pid, found.runner_started):
        return found
    if found.runner_pid is None and _age_seconds(state_dir / files.STATUS) < START_SECONDS_MAX:
        return found
    # It may have finished between our two looks.
    again = Status.from_json(files.find_json(str(state_dir), files.STATUS) or content)
    if again.state == status.FINISHED:
        return again
    return again._replace(state=status.VANISHED, cause=status.NODE_VANISHED, message="the runner was killed")


def request_stop(state_dir: Path, *, cause: str, grace_seconds: float = 2.0) -> None:
    """Ask for the end: SIGTERM to the job, its grace, then the end of everything. Returns at once.

    May be repeated; a shorter grace counts. The finished status carries `cause`, unless the job was over
    before the wish arrived.
    """
    if cause not in status.STOP_CAUSES:
        raise ValueError(f"{cause!r} is no cause for a stop")
    files.write_json(str(state_dir), files.STOP, {"cause": cause, "grace_seconds": grace_seconds})
    found = read_status(state_dir)
    if found.runner_pid is not None and is_alive(found.runner_pid, found.runner_started):
        # Only to be quick: without the signal it is seen at the runner's next look.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(found.runner_pid, signal.SIGTERM)


def list_state_dirs(state_root: Path) -> list[Path]:
    """Every attempt that has a directory here, running or not: what an agent adopts after its restart."""
    if not state_root.is_dir():
        return []
    return sorted(path for path in state_root.iterdir() if (path / files.REQUEST).exists())


def cleanup(state_dir: Path) -> None:
    """Give back whatever the attempt still holds and remove its directory, results included."""
    if _has_runner(state_dir):
        raise RunnerAlive(f"{state_dir} is in use")
    if state_dir.exists():
        leftovers.give_back(str(state_dir))
        shutil.rmtree(state_dir)


def _has_runner(state_dir: Path) -> bool:
    """Whether a process may still be at work here; a finished status is written by one that is about to end."""
    found = read_status(state_dir)
    if found.runner_pid is None:
        return found.state == status.STARTING
    return found.state != status.FINISHED and is_alive(found.runner_pid, found.runner_started)


def _package_root() -> str:
    return str(Path(computepool.__file__).resolve().parent.parent)


def _age_seconds(path: Path) -> float:
    try:
        return clock.unix_seconds() - path.stat().st_mtime
    except OSError:
        return 0.0
