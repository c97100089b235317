"""Whether this machine may take paid work: what was looked at, what is wrong, and the fix, in plain words.

The doctor prints it all; the agent takes no work while something is in the way.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from enum import Enum
from pathlib import Path

import msgspec

from computepool.node.comfort.port import Seat
from computepool.node.comfort.rules import InvalidRules
from computepool.node.comfort.watch import read_rules
from computepool.node.hardware.detect import Detected
from computepool.node.hub_client import CLOCK_SKEW_SECONDS_MAX
from computepool.node.local_status import LocalAgent, describe
from computepool.node.sandbox.port import Report

# Below this a job cannot even keep its log and its outputs.
DISK_FREE_BYTES_MIN = 1 << 30


class Grade(str, Enum):
    FINE = "fine"
    NOTE = "note"  # nothing is in the way, but something could be better
    TROUBLE = "trouble"  # no work is taken


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    # What was looked at: one word.
    topic: str
    grade: Grade
    words: str
    # What to do about it.
    fix: str = ""


def find_doubt(findings: Sequence[Finding]) -> str | None:
    """Why no work is taken, if so."""
    troubles = [f"{each.words} {each.fix}".strip() for each in findings if each.grade is Grade.TROUBLE]
    return " ".join(troubles) or None


def check_cards(detected: Detected) -> list[Finding]:
    found = [
        Finding(topic="gpu", grade=Grade.FINE, words=_describe(card.name, card.vram_bytes, card.driver, card.runtime))
        for card in detected.hardware.gpus
    ]
    found += [
        Finding(
            topic="gpu", grade=Grade.NOTE, words=f"{remark.what[:1].upper()}{remark.what[1:]}.", fix=_end(remark.fix)
        )
        for remark in detected.troubles
    ]
    if not found:
        found.append(Finding(topic="gpu", grade=Grade.FINE, words="There is no GPU here. The processor can be lent."))
    return found


def check_disk(folder: Path) -> Finding:
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Finding(topic="disk", grade=Grade.TROUBLE, words=f"The disk of {folder} cannot be read: {error}.")
    words = f"{free / 1e9:.1f} GB are free in {folder}."
    if free >= DISK_FREE_BYTES_MIN:
        return Finding(topic="disk", grade=Grade.FINE, words=words)
    return Finding(
        topic="disk",
        grade=Grade.TROUBLE,
        words=f"{words} Jobs need {DISK_FREE_BYTES_MIN / 1e9:.1f} GB at least.",
        fix="Free some, or name a folder on another disk with --state-dir.",
    )


def check_seat(seat: Seat) -> Finding:
    if seat.idle_seconds is not None:
        words = f"Whether someone is at this machine is seen {seat.words}."
        return Finding(topic="seat", grade=Grade.FINE, words=words)
    return Finding(
        topic="seat",
        grade=Grade.NOTE,
        words=f"Whether someone is at this machine cannot be seen: {seat.words}.",
        fix="Run the agent in your desktop's session, or lend by hours and programs: comfort.toml.",
    )


def check_agent(agent: LocalAgent, *, now_seconds: float) -> Finding:
    """An agent that works here already, and its owner's rules."""
    try:
        read_rules(Path(agent.status.rules_path) if agent.status else agent.folder / "comfort.toml")
    except InvalidRules as error:
        words = f"{agent.name} cannot use its comfort.toml: {error}."
        return Finding(
            topic="agent", grade=Grade.TROUBLE, words=words, fix="Mend the file; it is read again at once."
        )
    is_yours = agent.status is not None and bool(agent.status.owner_words)
    grade = Grade.NOTE if is_yours or not agent.is_alive else Grade.FINE
    return Finding(topic="agent", grade=grade, words=describe(agent, now_seconds=now_seconds)[0])


def check_clock(skew_seconds: float) -> Finding:
    words = f"This clock differs from the hub's by {abs(skew_seconds):.0f} s."
    if abs(skew_seconds) <= CLOCK_SKEW_SECONDS_MAX:
        return Finding(topic="clock", grade=Grade.FINE, words=words)
    return Finding(
        topic="clock",
        grade=Grade.TROUBLE,
        words=f"{words} Jobs' tokens could not be judged.",
        fix="Let the machine set its clock by the network: `sudo timedatectl set-ntp true`.",
    )


def check_sandboxes(reports: Sequence[Report]) -> list[Finding]:
    """One that holds is enough; the others are said all the same."""
    some = any(report.usable for report in reports)
    found = []
    for report in reports:
        if report.usable:
            words = f"{report.backend} holds: jobs are locked in ({report.level.value})."
            found.append(Finding(topic="sandbox", grade=Grade.FINE, words=words))
            continue
        words = f"{report.backend} cannot be used: {'; '.join(report.reasons)}."
        found.append(
            Finding(
                topic="sandbox",
                grade=Grade.NOTE if some else Grade.TROUBLE,
                words=words,
                fix=""
                if some
                else "Without a sandbox no job is taken. docs/internals/sandbox.md tells what one needs.",
            )
        )
    return found


def _describe(name: str, vram_bytes: int, driver: str, runtime: str) -> str:
    also = ", ".join(filter(None, (f"{vram_bytes / (1 << 30):.1f} GiB", driver and f"driver {driver}", runtime)))
    return f"{name} ({also})."


def _end(text: str) -> str:
    return f"{text}." if text else ""
