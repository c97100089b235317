"""Somebody who sits down at a lent machine and gets up again, and how long the machine takes to be theirs."""

from __future__ import annotations

import json
import time
from pathlib import Path

from tests.support.agent_process import AgentProcess

RULES = "idle_minutes = 1\n"
# By the number of its slice a job ends when it is asked to, or has to be made to.
JOB = """
import os, signal, time
if int(os.environ["COMPUTEPOOL_SLICE_INDEX"]) % 2:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    time.sleep(0.01)
"""
WAIT_SECONDS = 60.0


class Chair:
    def __init__(self, folder: Path) -> None:
        self.rules_path = folder / "comfort.toml"
        self.rules_path.write_text(RULES)
        self._path = folder / "seat.json"
        self.leave()

    @property
    def settings(self) -> dict[str, str]:
        """Of the agent that looks at this chair."""
        return {"comfort_file": str(self.rules_path), "seat": f"file:{self._path}"}

    def sit_down(self) -> None:
        self._play(idle_seconds=0)

    def leave(self) -> None:
        self._play(idle_seconds=3600)

    def _play(self, **readings: object) -> None:
        draft = self._path.with_suffix(".new")
        draft.write_text(json.dumps(readings))
        draft.replace(self._path)


def count_running(agent: AgentProcess) -> int:
    """Jobs that compute, by what their runners say."""
    count = 0
    for path in agent.state_dir.glob("attempts/*/run/status.json"):
        try:
            count += json.loads(path.read_text())["state"] == "running"
        except (OSError, ValueError):
            continue
    return count


def wait_for_jobs(agent: AgentProcess, count: int) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while count_running(agent) < count:
        assert time.monotonic() < deadline, f"no jobs within {WAIT_SECONDS:.0f} s\n{agent.log_text()}"
        time.sleep(0.02)


def measure_freeing(agent: AgentProcess, *, seconds_max: float) -> float | None:
    """Seconds from now until no runner, and hence no job, is left; None: they stayed."""
    began = time.monotonic()
    while agent.list_runners():
        if time.monotonic() - began > seconds_max:
            return None
        time.sleep(0.01)
    return time.monotonic() - began
