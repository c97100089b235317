"""A training run on machines that die or are taken back, and what is found out about it afterwards.

The script is deterministic, so that its result tells whether it went on from where it was. Every step is printed with
its time, so that the log of a dead machine tells what was lost with it.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg

from computepool.core.ledger.charging import price_seconds
from computepool.core.ledger.fee import split_price
from computepool.node.job_terms import list_module
from computepool.node.sandbox.port import MODULE_NAME, NODE_NAME
from computepool.sdk import Client, JobHandle
from computepool.wire.jobs import Attempt
from tests.support.agent_process import AgentProcess

# Jobs run the system's interpreter, and so does the run that they are compared with.
PYTHON = "/usr/bin/python3"
WAIT_SECONDS = 120.0
PAUSE_SECONDS = 0.05
STEPS = 10_000

# Fits a line through noise by stochastic gradients; 16 weights, and numbers from a generator of its own.
TRAIN = """
import json, os, signal, time
from computepool import job

STEPS = int(os.environ["STEPS"])
# Slow until enough has happened to it, so that no machine is too slow or too quick for the story.
PAUSE = float(os.environ["PAUSE"]) if job.attempt_number < int(os.environ["FAST_FROM"]) else 0.0

if "DEAF" in os.environ:
    # Whoever asks it to stop is not heard: it saves nothing then, and has to be made to end.
    job.should_stop()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

def draw(seed):
    seed = (seed * 6364136223846793005 + 1442695040888963407) % 2**64
    return seed, (seed >> 11) / 2**53 - 0.5

path = job.checkpoint_dir / "state.json"
state = json.loads(path.read_text()) if path.exists() else {"step": 0, "seed": 7, "weights": [0.0] * 16}
step, seed, weights = state["step"], state["seed"], state["weights"]
print("from", step, time.time(), flush=True)
while step < STEPS:
    inputs = []
    for _ in weights:
        seed, value = draw(seed)
        inputs.append(value)
    seed, noise = draw(seed)
    wanted = sum((i + 1) * x for i, x in enumerate(inputs)) + 0.1 * noise
    error = sum(w * x for w, x in zip(weights, inputs)) - wanted
    weights = [w - 0.3 * error * x for w, x in zip(weights, inputs)]
    step += 1
    time.sleep(PAUSE)
    print("step", step, time.time(), flush=True)
    if job.is_checkpoint_due():
        with job.checkpoint(progress=step / STEPS) as draft:
            (draft / "state.json").write_text(json.dumps({"step": step, "seed": seed, "weights": weights}))
    if job.should_stop():
        job.leave()
(job.output_dir / "weights.json").write_text(json.dumps(weights))
"""


@dataclass(frozen=True)
class Loss:
    """One machine that died with its attempt."""

    attempt_number: int
    # By the hub's record.
    saved_seconds: int
    # Where it was, and where the attempt after it began.
    step: int
    resumed_step: int
    # Between the last thing that it did and the last that was not done again.
    lost_seconds: float


def train_at_home(folder: Path, steps: int = STEPS) -> list[float]:
    """The same script without a grid and without disturbance."""
    library = folder / "library"
    for file in list_module():
        target = library / Path(file.path).relative_to(f"{NODE_NAME}/{MODULE_NAME}")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(Path(file.source).read_bytes())
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(library),
        "STEPS": str(steps),
        "PAUSE": "0",
        "FAST_FROM": "1",
    }
    command = [PYTHON, "-c", TRAIN]
    subprocess.run(command, cwd=folder, env=env, check=True, timeout=WAIT_SECONDS, stdout=subprocess.DEVNULL)
    return json.loads((folder / "out" / "0" / "weights.json").read_text())


def submit(
    client: Client, *, every_seconds: int, fast_from: int, steps: int = STEPS, is_deaf: bool = False
) -> JobHandle:
    """Its attempts are slow up to the one with that number, which brings it to its end."""
    env = {"STEPS": str(steps), "PAUSE": str(PAUSE_SECONDS), "FAST_FROM": str(fast_from)}
    return client.submit(
        script=TRAIN,
        env={**env, "DEAF": "1"} if is_deaf else env,
        checkpoint_seconds=every_seconds,
        wall_seconds=3_600,
    )


def read_result(job: JobHandle, folder: Path) -> list[float]:
    job.download(folder)
    return json.loads((folder / "weights.json").read_text())


def wait_for(check: Callable[[], Any], what: str, *, seconds: float = WAIT_SECONDS) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s for {what}"
        time.sleep(0.05)
    return found


def list_attempts(job: JobHandle) -> list[Attempt]:
    return job.get_slice(0).attempts


def find_log(agents: Sequence[AgentProcess], attempt_id: UUID) -> tuple[AgentProcess, Path] | None:
    """Of a job that has begun: who runs it, and what it prints there."""
    for agent in agents:
        log = agent.state_dir / "attempts" / str(attempt_id) / "run" / "log"
        if log.exists() and "from" in log.read_text(errors="replace"):
            return agent, log
    return None


def read_times(text: str) -> dict[int, float]:
    """When each step was done; the one that it began with, when it began. The last line may be cut."""
    lines = [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return {int(words[1]): float(words[2]) for words in lines if words[0] in ("from", "step")}


def kill_holder(
    job: JobHandle, agents: Sequence[AgentProcess], *, number: int, seconds: float, is_saved: bool = False
) -> tuple[AgentProcess, dict[int, float]]:
    """Kills the machine of an attempt so long after its job began; with `is_saved` not before it has a checkpoint.

    Returns who it was, and what it had done.
    """
    attempt = wait_for(lambda: next((a for a in list_attempts(job) if a.number == number), None), f"attempt {number}")
    agent, log = wait_for(lambda: find_log(agents, attempt.id), "its job to begin")
    if is_saved:
        wait_for(lambda: list_attempts(job)[-1].saved_at is not None, "a checkpoint")
    time.sleep(seconds)
    assert job.refresh().state == "running", "the job was over before its machine could be killed"
    agent.kill(with_runners=True)
    return agent, read_times(log.read_text(errors="replace"))


def find_loss(job: JobHandle, number: int, times: dict[int, float]) -> Loss:
    """What went with an attempt, seen from the one after it, which must have begun. Refuses what cannot be."""
    log = wait_for(lambda: _read_first(job, number + 1), "the next attempt to say where it begins")
    [lost] = [attempt for attempt in list_attempts(job) if attempt.number == number]
    resumed, last, first = min(read_times(log)), max(times), min(times)
    assert lost.state in ("lost", "failed")
    if lost.saved_seconds:
        assert resumed > first, f"attempt {number + 1} began at {resumed}: what was saved is not there"
    return Loss(number, lost.saved_seconds, last, resumed, times[last] - times.get(resumed, times[first]))


def _read_first(job: JobHandle, number: int) -> str:
    if number > len(list_attempts(job)):
        return ""
    text = "".join(job.logs(attempt=number, follow=False))
    return text if "\n" in text else ""


def find_honest_seconds(agent: AgentProcess, attempt_id: UUID) -> int:
    """What the hub has accepted of the work of an attempt, as its agent heard it, and of nobody else."""
    told = re.findall(rf"checkpoint_saved.*{attempt_id}.* saved_seconds=(\d+)", agent.log_path.read_text())
    return int(told[-1]) if told else 0


async def check_books(dsn: str, job_id: UUID) -> None:
    """Every attempt of the job was paid what the rules say, to the microcredit, and nobody paid anything else."""
    conn = await asyncpg.connect(dsn)
    try:
        [job] = await conn.fetch("SELECT * FROM jobs WHERE id = $1", job_id)
        attempts = await conn.fetch("SELECT * FROM attempts WHERE job_id = $1 ORDER BY number", job_id)
        moved = await conn.fetch("SELECT * FROM ledger_transfers WHERE job_id = $1", job_id)
        owners = await conn.fetchval(
            """SELECT coalesce(sum(amount), 0) FROM ledger_transfers
                WHERE job_id = $1 AND target_id LIKE 'owner_pending/%'""",
            job_id,
        )
    finally:
        await conn.close()
    for attempt in attempts:
        if attempt["cause"] in ("owner_returned", "node_vanished", "network_lost", "gpu_lost"):
            due = price_seconds(attempt["rate_microcredits_per_hour"], attempt["saved_seconds"])
            assert (attempt["charged_microcredits"] or 0) == due, dict(attempt)
            assert (attempt["fee_microcredits"] or 0) == split_price(due, fee_ppm=attempt["fee_ppm"])[1]
    charged = sum(attempt["charged_microcredits"] or 0 for attempt in attempts)
    fees = sum(attempt["fee_microcredits"] or 0 for attempt in attempts)
    assert job["charged_microcredits"] == charged
    assert owners == charged - fees
    if job["finished_at"] is not None:
        held = sum(t["amount"] for t in moved if t["target_id"].startswith("submitter_held/"))
        given = sum(t["amount"] for t in moved if t["source_id"].startswith("submitter_held/"))
        back = sum(t["amount"] for t in moved if t["kind"] == "refund")
        assert held == given == charged + back


def choose_seconds(seed: int, most: float) -> float:
    return random.Random(seed).uniform(0.0, most)
