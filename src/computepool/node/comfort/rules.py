"""The owner's rules on when the machine is lent, as one TOML file says them. Without the file it is lent always."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from computepool.core.market.hours import parse_hours

# From the owner's return to a free machine there are two seconds; looking and ending take their part of them.
GRACE_SECONDS_MAX = 1.5
PROGRAMS_MAX = 200


class InvalidRules(Exception):
    """The file cannot be used; the words say why."""


class Rules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    # Lend only after so many minutes without keyboard and mouse. 0: whoever sits there.
    idle_minutes: Annotated[float, Meta(ge=0, le=24 * 60)] = 0.0
    # Hours of the week by this machine's clock, "mon-fri 19-7, sat-sun". Empty: always.
    hours: str = ""
    # Of all processors jobs get at most so many percent. Read at the agent's start.
    cpu_percent_max: Annotated[int, Meta(ge=1, le=100)] = 100
    # Take nothing new while other programs keep the processors busier than this. 100: never mind.
    others_cpu_percent_max: Annotated[int, Meta(ge=1, le=100)] = 100
    # Stop when a card is hotter; go on when it has cooled down. 0: never mind.
    gpu_celsius_max: Annotated[int, Meta(ge=0, le=120)] = 0
    # Ask the driver to draw at most so much per card, where it lets us. 0: as it is. Read at the agent's start.
    gpu_watts_max: Annotated[int, Meta(ge=0, le=2000)] = 0
    on_battery: bool = False
    on_metered_network: bool = False
    # Never while one of these programs runs, by the name of its file: "steam", "game.exe".
    never_while: Annotated[tuple[str, ...], Meta(max_length=PROGRAMS_MAX)] = ()
    # How long a job may take to save its work once you are back.
    grace_seconds: Annotated[float, Meta(ge=0, le=GRACE_SECONDS_MAX)] = 1.0

    @property
    def open_hours(self) -> int | None:
        """As bits of the week; None: always."""
        return parse_hours(self.hours) if self.hours.strip() else None


ALWAYS = Rules(on_battery=True, on_metered_network=True)


def parse_rules(text: str) -> Rules:
    """Raises InvalidRules."""
    try:
        rules = msgspec.toml.decode(text, type=Rules)
        _ = rules.open_hours
    except (msgspec.DecodeError, ValueError) as error:
        raise InvalidRules(f"the rules cannot be used: {error}") from None
    return rules


def render_rules(*, idle_minutes: float) -> str:
    """The file to begin with: every rule, each with a word on what it does."""
    return f"""\
# When this machine is lent. The agent reads this file again when it changes.

# Only after so many minutes without keyboard and mouse; 0: whoever sits there.
idle_minutes = {idle_minutes:g}

# Only in these hours by this machine's clock; empty: always.
hours = ""                          # "mon-fri 19-7, sat-sun"

# Never while one of these programs runs.
never_while = []                    # ["steam", "blender", "game.exe"]

on_battery = false
on_metered_network = false

# Nothing new while other programs keep the processors busier than this, in percent; 100: never mind.
others_cpu_percent_max = 100

# Stop when a graphics card is hotter than this; 0: never mind.
gpu_celsius_max = 0

# How long a job may take to save its work once you are back; 1.5 at most.
grace_seconds = 1.0

# From the agent's next start on: share of the processors that is lent, and what a card may draw (0: as it is).
cpu_percent_max = 100
gpu_watts_max = 0
"""
