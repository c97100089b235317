"""Weights of the scorers, as data: named sets, and the split that hands each job one of two of them.

Reads text, never a file: whoever has the file hands its text in.
"""

from __future__ import annotations

import hashlib
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from computepool.core.ids import JobId

# Bounded, so that no set of weights can outweigh the rule that CPU work leaves the GPUs alone (scorers.py).
WEIGHT_MAX = 10.0


class Preference(str, Enum):
    """What the submitter wants most. The value is the wire string."""

    VALUE = "value"
    CHEAPEST = "cheapest"
    FASTEST = "fastest"


@dataclass(frozen=True, slots=True)
class Weights:
    """One factor per scorer, none below zero."""

    price: float = 0.0
    speed: float = 0.0
    reliability: float = 0.0
    vram_fit: float = 0.0
    cores_fit: float = 0.0

    def under(self, preference: Preference) -> Weights:
        """The same weights for a job with this wish: `cheapest` ignores speed, `fastest` ignores the price."""
        if preference is Preference.VALUE:
            return self
        price = 0.0 if preference is Preference.FASTEST else self.price
        speed = 0.0 if preference is Preference.CHEAPEST else self.speed
        return Weights(price, speed, self.reliability, self.vram_fit, self.cores_fit)


@dataclass(frozen=True, slots=True)
class Split:
    """Two sets and the share of jobs that the second one gets."""

    first: str
    second: str
    second_share: float

    @property
    def names_in_use(self) -> tuple[str, ...]:
        """The sets that some job may be given."""
        return (self.first,) if self.second_share <= 0 or self.first == self.second else (self.first, self.second)

    def choose(self, job_id: JobId) -> str:
        """The same on every hub and at every retry. The names are hashed too: another comparison draws anew."""
        if self.second_share <= 0:
            return self.first
        text = f"{self.first}|{self.second}|{job_id}"
        draw = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64
        return self.second if draw < self.second_share else self.first


@dataclass(frozen=True, slots=True)
class WeightBook:
    """All that `placement.toml` says."""

    sets: Mapping[str, Weights]
    split: Split


def parse_weights(text: str) -> WeightBook:
    """Raises ValueError with every fault at once."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"the weights are not TOML: {error}") from error
    faults = [f"{key!r} is unknown; there are split and sets" for key in table if key not in ("split", "sets")]
    sets = _parse_sets(table.get("sets"), faults)
    split = _parse_split(table.get("split"), sets, faults)
    if faults:
        raise ValueError("the weights cannot be used: " + "; ".join(faults))
    return WeightBook(sets, split)


def _parse_sets(table: Any, faults: list[str]) -> dict[str, Weights]:
    if not isinstance(table, dict) or not table:
        faults.append("there is no set of weights: name one, such as [sets.default]")
        return {}
    return {name: _parse_set(name, values, faults) for name, values in table.items()}


def _parse_set(name: str, values: Any, faults: list[str]) -> Weights:
    known = [field.name for field in fields(Weights)]
    if not isinstance(values, dict):
        faults.append(f"sets.{name} is not a table")
        return Weights()
    faults += [f"sets.{name}.{key} is unknown; there are {', '.join(known)}" for key in values if key not in known]
    faults += [
        f"sets.{name}.{key} is {value!r}; it must be a number from 0 to {WEIGHT_MAX:g}"
        for key, value in values.items()
        if key in known and not _is_number(value, WEIGHT_MAX)
    ]
    return Weights(**{key: float(values[key]) for key in known if _is_number(values.get(key), WEIGHT_MAX)})


def _parse_split(table: Any, sets: Mapping[str, Weights], faults: list[str]) -> Split:
    if not isinstance(table, dict):
        faults.append("there is no [split]: name its first and second set and the second_share")
        return Split("", "", 0.0)
    known = [field.name for field in fields(Split)]
    faults += [f"split.{key} is unknown; there are {', '.join(known)}" for key in table if key not in known]
    for key in ("first", "second"):
        if table.get(key) not in sets:
            faults.append(f"split.{key} is {table.get(key)!r}; the sets are {', '.join(sets) or 'none'}")
    share = table.get("second_share")
    if not _is_number(share, 1.0):
        faults.append(f"split.second_share is {share!r}; it must be a number from 0 to 1")
        return Split("", "", 0.0)
    return Split(str(table.get("first")), str(table.get("second")), float(table["second_share"]))


def _is_number(value: Any, most: float) -> bool:
    # A truth value counts as a number in Python; in a table of weights it is a slip of the pen.
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and 0 <= value <= most
    )
