"""How the agent stands, as a file for whoever sits at the machine: `computepool node status` needs no hub."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import msgspec

from computepool import clock
from computepool.node import journal, locks

LOOK_SECONDS = 1.0
# So that a reader knows how old the rest is.
WRITE_SECONDS = 30.0


class RunningHere(msgspec.Struct, frozen=True):
    attempt_id: UUID
    slot: str


class LocalStatus(msgspec.Struct, frozen=True, kw_only=True):
    pid: int
    node_id: UUID
    name: str
    hub_url: str
    version: str
    # Why the machine is its owner's at the moment; empty: it is lent.
    owner_words: str = ""
    # Paused by a word on this machine, or by one at the hub.
    paused_here: bool = False
    paused_at_hub: bool = False
    draining: bool = False
    # Why no work is taken although the owner would lend: disk, clock, keys.
    doubt: str = ""
    running: list[RunningHere] = []
    free_slots: list[str] = []
    rules_path: str = ""
    log_path: str = ""
    # Seconds since 1970, of the writing of this file and of the hub's last answer.
    at: float = 0.0
    hub_answered_at: float = 0.0


@dataclass(frozen=True, slots=True)
class LocalAgent:
    """One agent's folder on this machine."""

    folder: Path
    status: LocalStatus | None
    is_alive: bool

    @property
    def name(self) -> str:
        return self.status.name if self.status is not None else self.folder.name


async def run_status(path: Path, make: Callable[[], LocalStatus]) -> None:
    """For ever: writes the file when something has changed, and now and then."""
    written = (0.0, b"")
    while True:
        status = make()
        # Times alone are no change.
        content = msgspec.json.encode(msgspec.structs.replace(status, at=0.0, hub_answered_at=0.0))
        if content != written[1] or status.at - written[0] >= WRITE_SECONDS:
            written = (status.at, content)
            try:
                await asyncio.to_thread(_write, path, msgspec.json.encode(status))
            except OSError as error:
                journal.debug("status_not_written", reason=error)
        await asyncio.sleep(LOOK_SECONDS)


def list_agents(home: Path) -> list[LocalAgent]:
    """All that ever worked in this user's folders, those that live first."""
    folders = sorted(path.parent for path in home.glob("*/*/status.json"))
    return sorted((look_at(folder) for folder in folders), key=lambda agent: not agent.is_alive)


def look_at(folder: Path) -> LocalAgent:
    try:
        status = msgspec.json.decode((folder / "status.json").read_bytes(), type=LocalStatus)
    except (OSError, msgspec.DecodeError):
        status = None
    return LocalAgent(folder, status, _is_locked(folder / "lock"))


def find_node_here(home: Path, node_id: UUID) -> LocalAgent | None:
    return next((a for a in list_agents(home) if a.is_alive and a.status and a.status.node_id == node_id), None)


def describe(agent: LocalAgent, *, now_seconds: float) -> list[str]:
    """In plain words, the most important first."""
    status = agent.status
    if status is None or not agent.is_alive:
        return [f"{agent.name}: no agent is running here. Start it: computepool node, or computepool node install."]
    lines = [f"{status.name}: {_say_state(status)}"]
    if status.running:
        held = ", ".join(f"{each.slot} ({each.attempt_id})" for each in status.running)
        lines.append(f"  runs {held}")
    if status.free_slots:
        lines.append(f"  free: {', '.join(status.free_slots)}")
    silent = max(0.0, now_seconds - status.hub_answered_at)
    heard = f"answered {silent:.0f} s ago" if silent < 120 else f"has not answered for {silent / 60:.0f} minutes"
    lines.append(f"  the hub {status.hub_url} {heard}")
    lines.append(
        f"  rules: {status.rules_path}; log: {status.log_path}; agent {status.version}, process {status.pid}"
    )
    return lines


def _say_state(status: LocalStatus) -> str:
    if status.owner_words:
        return f"yours at the moment, takes no work. {status.owner_words}"
    if status.draining:
        return "drains: finishes what runs, then ends."
    if status.paused_here:
        return "paused on this machine: finishes what runs. computepool node resume takes it back."
    if status.paused_at_hub:
        return f"paused at the hub: finishes what runs. computepool nodes {status.name} resume takes it back."
    if status.doubt:
        return f"takes no work. {status.doubt}"
    return "lent."


def _is_locked(path: Path) -> bool:
    """By trying: the lock ends with its process, whatever ended that."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        locks.lock(descriptor)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _write(path: Path, content: bytes) -> None:
    """Whole, but not durable: after a power cut nothing of it is true any more."""
    draft = path.with_suffix(".new")
    draft.write_bytes(content)
    os.replace(draft, path)


def make_times(hub_heard_at: float) -> Mapping[str, float]:
    """From the process's clock to the wall's."""
    now = clock.unix_seconds()
    return {"at": now, "hub_answered_at": now - (clock.seconds() - hub_heard_at)}
