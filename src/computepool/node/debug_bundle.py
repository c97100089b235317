"""What tells how an agent does, in one file for others: secrets are removed, and nothing of the jobs' own is in it.

A summary stands first and says in plain words what looks wrong, above all of jobs that hang.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from computepool import clock
from computepool.node import processes_seen
from computepool.node.attempt_folder import AttemptFolder, list_folders
from computepool.node.job_terms import find_secrets
from computepool.node.local_status import describe, look_at
from computepool.node.runner import files as runner_files
from computepool.node.runner import handle
from computepool.node.runner.status import RUNNING
from computepool.wire.attempts import RunOrder

FILE_BYTES_MAX = 8_000_000
RUNNER_LOG_BYTES = 20_000
# A secret shorter than this would take half of the text with it.
SECRET_LENGTH_MIN = 6
REMOVED = "[removed]"
# A job that computes uses its processor; one that is stuck waits.
WATCH_SECONDS = 2.0
STILL_CPU_SECONDS = 0.02
SILENT_SECONDS = 60.0

_PATTERNS = (
    re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"),
    re.compile(r"(?i)(\bbearer\s+)[^\s\"']+"),
    re.compile(r"(?i)(\b(?:api_?key|owner_?key|secret|password|token)\b[\"']?\s*[=:]\s*[\"']?)[^\s\"',}]+"),
    re.compile(r"(://)[^/\s:@]+:[^/\s@]+(?=@)"),
    re.compile(r"\bcpk?_[A-Za-z0-9_-]{16,}"),
)


@dataclass(frozen=True, slots=True)
class AttemptFacts:
    attempt_id: str
    state: str
    slot: str
    run_seconds: float
    wall_seconds: float
    # Since its log last grew; None: it has not printed anything.
    silent_seconds: float | None
    # Used in the last look; None: its processes cannot be seen from here.
    cpu_seconds: float | None
    process_count: int
    # Where those that have no children wait in the kernel, most common first.
    waits: tuple[str, ...] = ()
    message: str = ""
    job_id: str = ""
    slice_index: int = 0
    # When it began to run, in seconds since 1970; None: it has not.
    started_at: float | None = None


def diagnose(facts: AttemptFacts) -> str:
    """What the attempt seems to do, in a sentence or two."""
    job = f" (job {facts.job_id}, slice {facts.slice_index})" if facts.job_id else ""
    name = f"attempt {facts.attempt_id}{job} on {facts.slot or 'an unknown slot'}"
    if facts.state != RUNNING:
        return f"{name} is {facts.state}{f': {facts.message}' if facts.message else ''}."
    spoken = (
        "has printed nothing"
        if facts.silent_seconds is None
        else f"has printed nothing for {facts.silent_seconds:.0f} s"
        if facts.silent_seconds > SILENT_SECONDS
        else f"printed something {facts.silent_seconds:.0f} s ago"
    )
    since = f", since {say_time(facts.started_at)}," if facts.started_at is not None else ""
    told = f"{name} has run for {facts.run_seconds:.0f} of {facts.wall_seconds:.0f} s{since} and {spoken}"
    if facts.cpu_seconds is None or not facts.process_count:
        return f"{told}; its processes cannot be seen from here."
    if facts.cpu_seconds <= STILL_CPU_SECONDS:
        waits = f" for {', or '.join(map(say_wait, facts.waits))}" if facts.waits else ""
        job_id = facts.job_id or "JOB"
        used = f"{facts.cpu_seconds:.2f} s of a processor in {WATCH_SECONDS:.0f} s"
        left = max(0.0, facts.wall_seconds - facts.run_seconds)
        return (
            f"{told}; it LOOKS HUNG: its processes ({facts.process_count}) wait{waits} and used {used}. "
            f"What to do: its submitter reads what it last said (computepool logs {job_id}) and ends it "
            f"(computepool cancel {job_id}); by itself it ends at its wall limit, in {left:.0f} s."
        )
    return f"{told}; it computes: {facts.cpu_seconds / WATCH_SECONDS:.0%} of a processor."


# Parts of the kernel's names of what is waited for, and what they mean; the first that fits counts.
_WAITS = (
    ("futex", "a lock"),
    ("pipe", "a pipe"),
    ("nanosleep", "a timer"),
    ("poll", "input or a timer"),
    ("select", "input or a timer"),
    ("accept", "a connection"),
    ("skb", "the network"),
    ("sk_wait", "the network"),
    ("unix_stream", "another process"),
    ("do_wait", "a child process"),
    ("io_schedule", "the disk"),
    ("signal", "a signal"),
    ("sigsuspend", "a signal"),
)


def say_wait(name: str) -> str:
    """In plain words, and as the kernel says it."""
    meaning = next((words for part, words in _WAITS if part in name), "something")
    return f"{meaning} ({name})"


def say_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def make_bundle(folder: Path, *, extra: Mapping[str, str], secrets: Sequence[str] = ()) -> bytes:
    """Of the agent in this folder, as tar.gz. `extra` are more texts by file name, such as the doctor's."""
    facts = look_at_attempts(folder)
    agent = look_at(folder)
    lines = describe(agent, now_seconds=clock.unix_seconds())
    lines += ["", "Attempts:", *([f"- {diagnose(each)}" for each in facts] or ["- none"])]
    texts = {"summary.txt": "\n".join(lines) + "\n", **extra}
    texts["attempts.json"] = json.dumps([msgspec.to_builtins(each) for each in facts], indent=1)
    for name in ("status.json", "comfort.toml", "wish.json", "measurements.json", "debug.log.1", "debug.log"):
        if (text := _read_tail(folder / name, FILE_BYTES_MAX)) is not None:
            texts[name] = text
    for attempt_id, kept in list_folders(folder / "attempts"):
        texts |= {f"attempts/{attempt_id}/{name}": text for name, text in _list_texts(kept)}
    return _pack(texts, [*secrets, *list_secrets(folder)])


def look_at_attempts(folder: Path) -> list[AttemptFacts]:
    """Takes WATCH_SECONDS: what a process has used tells nothing, what it uses now does."""
    found = list(list_folders(folder / "attempts"))
    statuses = {id: handle.read_status(kept.run_path) for id, kept in found}
    pids = {id: status.runner_pid for id, status in statuses.items() if status.runner_pid is not None}
    used = processes_seen.watch(pids, WATCH_SECONDS)
    facts = []
    for id, kept in found:
        status, seen = statuses[id], used.get(id)
        order = _find_order(kept)
        now = clock.unix_seconds()
        facts.append(
            AttemptFacts(
                attempt_id=str(id),
                state=status.state,
                slot=order.slot if order else "",
                run_seconds=max(0.0, now - status.started_at) if status.started_at else status.run_seconds,
                wall_seconds=float(order.wall_seconds) if order else 0.0,
                silent_seconds=_find_silence(kept.log_path, now),
                cpu_seconds=seen.cpu_seconds if seen else None,
                process_count=seen.count if seen else 0,
                waits=seen.waits if seen else (),
                message=status.message,
                job_id=str(order.job_id) if order else "",
                slice_index=order.slice_index if order else 0,
                started_at=status.started_at,
            )
        )
    return facts


def list_secrets(folder: Path) -> list[str]:
    """What the agent's own files hold and nobody else may see: leases, and all that jobs were given to know."""
    found: list[str] = []
    for _, kept in list_folders(folder / "attempts"):
        assignment = kept.find_assignment()
        if assignment is not None:
            found.append(assignment.lease_secret)
        order = _find_order(kept)
        if order is not None:
            found += [str(value) for value in (*order.env.values(), *find_secrets(order).values())]
    return found


def redact(text: str, secrets: Iterable[str]) -> str:
    for secret in sorted(set(secrets), key=len, reverse=True):
        if len(secret) >= SECRET_LENGTH_MIN:
            text = text.replace(secret, REMOVED)
    for pattern in _PATTERNS:
        text = pattern.sub(lambda found: f"{found[1] if found.re.groups else ''}{REMOVED}", text)
    return text


def _list_texts(kept: AttemptFolder) -> list[tuple[str, str]]:
    """Never the log, the inputs or the outputs: they are the submitter's."""
    texts = []
    for name, size in ((runner_files.STATUS, FILE_BYTES_MAX), (runner_files.RUNNER_LOG, RUNNER_LOG_BYTES)):
        if (text := _read_tail(kept.run_path / name, size)) is not None:
            texts.append((name, text))
    return texts


def _find_order(kept: AttemptFolder) -> RunOrder | None:
    assignment = kept.find_assignment()
    try:
        return msgspec.json.decode(assignment.order, type=RunOrder) if assignment is not None else None
    except msgspec.DecodeError:
        return None


def _find_silence(log: Path, now: float) -> float | None:
    try:
        seen = log.stat()
    except OSError:
        return None
    return max(0.0, now - seen.st_mtime) if seen.st_size else None


def _read_tail(path: Path, bytes_max: int) -> str | None:
    try:
        with path.open("rb") as file:
            file.seek(0, io.SEEK_END)
            file.seek(max(0, file.tell() - bytes_max))
            return file.read(bytes_max).decode(errors="replace")
    except OSError:
        return None


def _pack(texts: Mapping[str, str], secrets: Sequence[str]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in texts.items():
            content = redact(text, secrets).encode()
            entry = tarfile.TarInfo(f"computepool-debug/{name}")
            entry.size, entry.mode, entry.mtime = len(content), 0o600, int(clock.unix_seconds())
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def describe_settings(env: Mapping[str, str], *, prefix: str) -> dict[str, Any]:
    """Settings by name; those that are secrets by their name say only that they are set."""
    hidden = ("KEY", "SECRET", "PASSWORD", "TOKEN")
    return {
        name: REMOVED if any(word in name for word in hidden) else value
        for name, value in sorted(env.items())
        if name.startswith(prefix) or name == "HUB_URL"
    }
