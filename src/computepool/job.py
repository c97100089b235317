"""For scripts that run on the grid: where to save, when to, and which part of the work is theirs.

    from computepool import job

    state = job.checkpoint_dir / "state.json"
    step = json.loads(state.read_text())["step"] if state.exists() else 0
    while step < STEPS:
        step += 1
        ...
        if job.is_checkpoint_due():
            with job.checkpoint(progress=step / STEPS) as draft:
                (draft / "state.json").write_text(json.dumps({"step": step}))
        if job.should_stop():
            job.leave()

Needs the standard library alone. Outside of the grid the same script saves in a local folder, and goes on from there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

__all__ = [
    "attempt_number",
    "checkpoint",
    "checkpoint_dir",
    "checkpoint_seconds",
    "is_checkpoint_due",
    "is_on_grid",
    "leave",
    "output_dir",
    "progress",
    "should_stop",
    "slice_count",
    "slice_index",
]

# "I have saved my work, run me again": ends no slice and spends no retry.
EXIT_CODE_CHECKPOINTED = 85

# Saved with so much of the interval left, it has left the machine when the interval is over. As in
# core/jobs/checkpoint_pace.py, which is not here; once something was saved the machine knows better, and says so.
_LEAD_SHARE, _LEAD_SHARE_MAX, _FIRST_COST_SECONDS = 0.25, 0.5, 1.0
_SEAL, _PROGRESS, _DRAFT, _LEAD = ".sealed", ".progress", ".draft", ".lead"

is_on_grid = "COMPUTEPOOL_JOB_ID" in os.environ
slice_index = int(os.environ.get("COMPUTEPOOL_SLICE_INDEX", "0"))
slice_count = int(os.environ.get("COMPUTEPOOL_SLICE_COUNT", "1"))
# From 1; above it, an earlier attempt may have left a checkpoint.
attempt_number = int(os.environ.get("COMPUTEPOOL_ATTEMPT_NUMBER", "1"))
# What the last accepted checkpoint held lies here when the script begins.
checkpoint_dir = Path(os.environ.get("COMPUTEPOOL_CHECKPOINT_DIR", f"checkpoint/{slice_index}"))
# What is here at the end is the result.
output_dir = Path(os.environ.get("COMPUTEPOOL_OUTPUT_DIR", f"out/{slice_index}"))
# No more work than this is to be lost: so often what lies in the folder leaves the machine.
checkpoint_seconds = float(os.environ.get("COMPUTEPOOL_CHECKPOINT_SECONDS", "300"))

checkpoint_dir.mkdir(parents=True, exist_ok=True)
output_dir.mkdir(parents=True, exist_ok=True)

_stop_asked = threading.Event()
_is_watching = False
_saved_at = time.monotonic()
_lead_seconds: float | None = None
_seal_count = 0


def progress(done: float) -> None:
    """Say how much of the work is done, from 0 to 1. It is shown with the next checkpoint."""
    _write(checkpoint_dir / _PROGRESS, f"{min(1.0, max(0.0, done)):.6f}")


@contextlib.contextmanager
def checkpoint(*, progress: float | None = None) -> Iterator[Path]:
    """A folder to write into: when the block ends, its files take the place of those of the same name, all together.

    What the block does not write stays as it was. If it raises, nothing has changed.
    """
    global _saved_at, _lead_seconds, _seal_count
    # What is written from here on is the work as it is now: the next interval counts from here.
    began = time.monotonic()
    draft = checkpoint_dir / _DRAFT
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    try:
        yield draft
        seal = checkpoint_dir / _SEAL
        with contextlib.suppress(FileNotFoundError):
            seal.unlink()
        for path in sorted(draft.rglob("*")):
            if path.is_file():
                target = checkpoint_dir / path.relative_to(draft)
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(path, target)
        if progress is not None:
            _write(checkpoint_dir / _PROGRESS, f"{min(1.0, max(0.0, progress)):.6f}")
        _seal_count += 1
        _write(seal, f"{_seal_count} {time.monotonic() - began:.3f}")
        _saved_at, _lead_seconds = began, None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def is_checkpoint_due() -> bool:
    """Whether it is time to save: most of the interval has passed, or the script has been asked to stop.

    Early enough for what is saved to arrive within the interval, as far as half of it is enough for that.
    """
    global _lead_seconds
    if should_stop():
        return True
    seconds_left = checkpoint_seconds - (time.monotonic() - _saved_at)
    if seconds_left > _LEAD_SHARE_MAX * checkpoint_seconds:
        return False
    if _lead_seconds is None:
        # Once for each checkpoint, and late: scripts ask at every step, and the last one has to arrive first.
        _lead_seconds = _find_lead_seconds()
    return seconds_left <= _lead_seconds


def should_stop() -> bool:
    """Whether the machine's owner wants it back: there is about a second to save and `leave()`.

    From the first call on, SIGTERM is noted and no longer ends the script by itself.
    """
    global _is_watching
    if not _is_watching and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda number, frame: _stop_asked.set())
        _is_watching = True
    return _stop_asked.is_set()


def leave() -> NoReturn:
    """End here and be run again, elsewhere, from the last checkpoint. Spends no retry."""
    sys.stdout.flush()
    sys.stderr.flush()
    # Without the interpreter's own ways of ending, which may take longer than there is time.
    os._exit(EXIT_CODE_CHECKPOINTED)


def _find_lead_seconds() -> float:
    """How long before the end of the interval to save."""
    try:
        told = float((checkpoint_dir / _LEAD).read_text())
    except (OSError, ValueError):
        told = max(_LEAD_SHARE * checkpoint_seconds, _FIRST_COST_SECONDS)
    return min(_LEAD_SHARE_MAX * checkpoint_seconds, told)


def _write(path: Path, text: str) -> None:
    draft = path.with_name(path.name + ".tmp")
    draft.write_text(text)
    os.replace(draft, path)
