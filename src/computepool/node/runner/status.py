"""How an attempt stands, as the runner tells it and as the agent reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

STARTING, RUNNING, FINISHED = "starting", "running", "finished"
VANISHED = "vanished"  # never written: what a reader concludes when the runner is gone without a word

# Why an attempt failed. A subset of the causes that cross the wire: only those a runner can know of itself
# or be told by a stop.
OUT_OF_MEMORY = "out_of_memory"
TIMED_OUT = "timed_out"
EXIT_CODE = "exit_code"
SANDBOX_REFUSED = "sandbox_refused"
INPUT_MISSING = "input_missing"
OWNER_RETURNED = "owner_returned"
NODE_VANISHED = "node_vanished"
CANCELLED = "cancelled"
STOP_CAUSES = frozenset(
    {CANCELLED, OWNER_RETURNED, "superseded", "gpu_lost", "network_lost", NODE_VANISHED, TIMED_OUT, "hub_fault"}
)


class Output(NamedTuple):
    path: str  # relative to the output folder
    size_bytes: int
    sha256: str


class RefusedOutput(NamedTuple):
    path: str
    reason: str


class Status(NamedTuple):
    state: str = STARTING
    runner_pid: int | None = None
    runner_started: str | None = None  # boot and ticks since boot: tells a reused pid from ours
    started_at: float | None = None  # seconds since 1970, as are all *_at here
    finished_at: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    cause: str | None = None  # None and finished: the job's command returned 0
    message: str = ""
    run_seconds: float = 0.0
    cpu_seconds: float = 0.0
    memory_bytes_peak: int = 0
    log_bytes: int = 0  # what the job printed; the file holds less when log_truncated
    log_truncated: bool = False
    outputs: tuple[Output, ...] = ()
    outputs_refused: tuple[RefusedOutput, ...] = ()

    def to_json(self) -> dict[str, Any]:
        outputs = [each._asdict() for each in self.outputs]
        refused = [each._asdict() for each in self.outputs_refused]
        return {**self._asdict(), "outputs": outputs, "outputs_refused": refused}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Status:
        """Unknown fields are dropped: a newer runner may say more than this reader knows."""
        values = {name: value for name, value in content.items() if name in cls._fields}
        values["outputs"] = tuple(Output(**each) for each in content.get("outputs", ()))
        values["outputs_refused"] = tuple(RefusedOutput(**each) for each in content.get("outputs_refused", ()))
        return cls(**values)
