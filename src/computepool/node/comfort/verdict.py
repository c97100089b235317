"""Lend or make way: decided from readings, rules and the time, in words for log, doctor and CLI. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from computepool.core.market.hours import say_hours
from computepool.node.comfort.rules import Rules

# A card that stopped for its heat must cool down by so much, or it would stop and start all day.
COOL_DOWN_CELSIUS = 10.0


class Ground(str, Enum):
    OWNER_PRESENT = "owner_present"
    SEAT_UNSEEN = "seat_unseen"
    OUTSIDE_HOURS = "outside_hours"
    PROGRAM_RUNS = "program_runs"
    ON_BATTERY = "on_battery"
    METERED_NETWORK = "metered_network"
    TOO_HOT = "too_hot"
    BUSY = "busy"
    PAUSED = "paused"
    WATCH_BROKE = "watch_broke"


@dataclass(frozen=True, slots=True)
class Readings:
    """What the machine shows now. None: it cannot be known here."""

    idle_seconds: float | None = None
    # By what the seat is seen, or why it is not.
    seat: str = ""
    on_battery: bool | None = None
    is_metered: bool | None = None
    # File names of running programs, lower case.
    programs: frozenset[str] = frozenset()
    # Of the hottest card.
    gpu_celsius: float | None = None
    # All processors together, whoever keeps them busy.
    cpu_percent: float | None = None
    # Whether jobs run: then the processors are busy because of them.
    has_jobs: bool = False


@dataclass(frozen=True, slots=True)
class Reason:
    ground: Ground
    words: str


@dataclass(frozen=True, slots=True)
class Verdict:
    reasons: tuple[Reason, ...] = ()

    @property
    def lends(self) -> bool:
        return not self.reasons

    @property
    def words(self) -> str:
        return " ".join(reason.words for reason in self.reasons)

    def has(self, ground: Ground) -> bool:
        return any(reason.ground is ground for reason in self.reasons)


LEND = Verdict()


def decide(readings: Readings, rules: Rules, *, now: datetime, before: Verdict = LEND) -> Verdict:
    """`now` is on the machine's own clock; `before` is what was decided last."""
    found = (
        _judge_seat(readings, rules),
        _judge_hours(rules, now),
        _judge_programs(readings, rules),
        _judge_power(readings, rules),
        _judge_heat(readings, rules, was_hot=before.has(Ground.TOO_HOT)),
        _judge_load(readings, rules),
    )
    return Verdict(tuple(reason for reason in found if reason is not None))


def _judge_seat(readings: Readings, rules: Rules) -> Reason | None:
    if not rules.idle_minutes:
        return None
    if readings.idle_seconds is None:
        return Reason(
            Ground.SEAT_UNSEEN,
            f"Whether someone is at this machine cannot be seen ({readings.seat or 'no reader fits'}); "
            "idle_minutes = 0 lends it all the same.",
        )
    if readings.idle_seconds >= rules.idle_minutes * 60:
        return None
    return Reason(
        Ground.OWNER_PRESENT,
        f"You are at this machine: it is lent after {rules.idle_minutes:g} minutes without keyboard and mouse.",
    )


def _judge_hours(rules: Rules, now: datetime) -> Reason | None:
    hours = rules.open_hours
    if hours is None or hours >> (24 * now.weekday() + now.hour) & 1:
        return None
    return Reason(Ground.OUTSIDE_HOURS, f"It is {now:%H:%M}; your rules lend this machine {say_hours(hours)}.")


def _judge_programs(readings: Readings, rules: Rules) -> Reason | None:
    running = sorted(name for name in rules.never_while if name.lower() in readings.programs)
    if not running:
        return None
    return Reason(Ground.PROGRAM_RUNS, f"{', '.join(running)} runs, and your rules lend nothing meanwhile.")


def _judge_power(readings: Readings, rules: Rules) -> Reason | None:
    if readings.on_battery and not rules.on_battery:
        return Reason(Ground.ON_BATTERY, "This machine runs on its battery.")
    if readings.is_metered and not rules.on_metered_network:
        return Reason(Ground.METERED_NETWORK, "This network counts its bytes (metered).")
    return None


def _judge_heat(readings: Readings, rules: Rules, *, was_hot: bool) -> Reason | None:
    if not rules.gpu_celsius_max or readings.gpu_celsius is None:
        return None
    limit = rules.gpu_celsius_max - (COOL_DOWN_CELSIUS if was_hot else 0.0)
    if readings.gpu_celsius <= limit:
        return None
    return Reason(
        Ground.TOO_HOT, f"A graphics card has {readings.gpu_celsius:.0f} °C; it rests until it has {limit:.0f} °C."
    )


def _judge_load(readings: Readings, rules: Rules) -> Reason | None:
    """Only while no job of ours runs: a running one is not ended because it works."""
    if readings.has_jobs or readings.cpu_percent is None or readings.cpu_percent <= rules.others_cpu_percent_max:
        return None
    return Reason(Ground.BUSY, f"Other programs keep the processors busy ({readings.cpu_percent:.0f} %).")
