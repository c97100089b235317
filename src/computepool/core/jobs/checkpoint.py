"""Checkpoints of slices: what a node may save of an attempt's work, when it counts, and how far it is paid by it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from computepool.core.jobs.checkpoint_limits import CHECKPOINT_BYTES_MAX, CHECKPOINT_FILES_MAX
from computepool.core.jobs.manifest import manifest_sha256
from computepool.core.jobs.spec import is_safe_relative_path, is_sha256
from computepool.core.jobs.state import ATTEMPT_LIVE, AttemptState

NUMBER_MAX = 1_000_000_000


@dataclass(frozen=True, slots=True)
class SavedFile:
    path: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True)
class Claim:
    """What a node says that it has saved. `number` only grows within an attempt."""

    number: int
    # How long the job had run when its files were as they are here.
    run_seconds: float
    files: tuple[SavedFile, ...]
    # The job's own word on how much of it is done, 0 to 1.
    progress: float | None = None

    @cached_property
    def sha256(self) -> str:
        return manifest_sha256((file.path, file.sha256) for file in self.files)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class Kept:
    """The last accepted checkpoint of a slice."""

    attempt_number: int
    number: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Standing:
    """The attempt that a checkpoint is claimed for, by the hub's own record."""

    number: int
    state: AttemptState
    # By the database's clock.
    held_seconds: float
    saved_seconds: int
    # Of its slice, by whichever attempt.
    kept: Kept | None


@dataclass(frozen=True, slots=True)
class Saved:
    """The claim counts. Not news: nothing is to be written, the slice has these very files already."""

    saved_seconds: int
    is_news: bool


@dataclass(frozen=True, slots=True)
class Refusal:
    reason: str
    # The attempt is over: nothing that the node sends for it will count.
    is_stale: bool = False


def find_fault(claim: Claim) -> str | None:
    """What is wrong with a claim whoever makes it."""
    if not claim.files:
        return "An empty checkpoint saves nothing. Send one with files in it."
    if len(claim.files) > CHECKPOINT_FILES_MAX:
        return f"A checkpoint has {CHECKPOINT_FILES_MAX} files at most; pack them into an archive."
    if not all(is_sha256(file.sha256) and file.size_bytes >= 0 for file in claim.files):
        return "Every file needs its sha256 as 64 lower-case hex digits, and its size."
    paths = [file.path for file in claim.files]
    if len(set(paths)) != len(paths) or not all(is_safe_relative_path(path) for path in paths) or _are_nested(paths):
        return "Paths must be relative, without '..', each once, and none the folder of another."
    if claim.size_bytes > CHECKPOINT_BYTES_MAX:
        return f"A checkpoint has {CHECKPOINT_BYTES_MAX:,} bytes at most; this one has {claim.size_bytes:,}."
    if not 1 <= claim.number <= NUMBER_MAX:
        return f"number must be between 1 and {NUMBER_MAX:,}."
    if not 0 <= claim.run_seconds < 1e12:
        return "run_seconds must be the seconds that the job had run."
    if claim.progress is not None and not 0 <= claim.progress <= 1:
        return "progress must be between 0 and 1, or absent."
    return None


def decide_checkpoint(standing: Standing, claim: Claim) -> Saved | Refusal:
    """Only who holds the slice may save for it, and only time that it has had.

    Files that the slice has already hold no more work than before: sent again, by this attempt or by the next one
    that began with them, they count and earn nothing further.
    """
    if standing.state not in ATTEMPT_LIVE:
        return Refusal(f"this attempt is {standing.state.value}", is_stale=True)
    kept = standing.kept
    if kept is not None and kept.attempt_number > standing.number:
        return Refusal("a newer attempt has saved its work already", is_stale=True)
    if claim.run_seconds > standing.held_seconds:
        return Refusal(
            f"run_seconds is {claim.run_seconds:.0f}; the lease has lasted {max(0.0, standing.held_seconds):.0f} s."
        )
    if kept is not None and kept.sha256 == claim.sha256:
        return Saved(standing.saved_seconds, is_news=False)
    if kept is not None and kept.attempt_number == standing.number and claim.number <= kept.number:
        return Refusal(f"checkpoint {kept.number} of this attempt is newer than number {claim.number}.")
    return Saved(max(standing.saved_seconds, int(claim.run_seconds)), is_news=True)


def find_risk_seconds(
    state: AttemptState, *, leased_at: datetime, started_at: datetime | None, saved_at: datetime | None, now: datetime
) -> float | None:
    """What would be done again if the machine went now; None: nothing, for it does not run."""
    if state not in ATTEMPT_LIVE:
        return None
    return max(0.0, (now - (saved_at or started_at or leased_at)).total_seconds())


def _are_nested(paths: Iterable[str]) -> bool:
    """Whether a file would have to be a folder as well."""
    known = set(paths)
    return any(
        "/".join(path.split("/")[:depth]) in known for path in known for depth in range(1, path.count("/") + 1)
    )
