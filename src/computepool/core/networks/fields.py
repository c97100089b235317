"""What a block can be told: typed fields with bounds and defaults, read strictly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from math import isfinite
from reprlib import repr as shorten
from typing import cast

from computepool.core.networks.spec import DIMENSION_MAX, Config, ConfigValue


class FieldKind(Enum):
    INT = "a whole number"
    FLOAT = "a number"
    BOOL = "true or false"
    TEXT = "a word"
    INTS = "a list of whole numbers"
    BLOCKS = "a list of blocks"


@dataclass(frozen=True, slots=True)
class Field:
    kind: FieldKind
    # None: it must be given.
    default: ConfigValue | None = None
    # Bounds of a number, or of each number of a list.
    low: float = 0
    high: float = DIMENSION_MAX
    # For words.
    choices: tuple[str, ...] = ()
    # Bounds of a list's length. A single number stands for a list of `length_min` equal ones.
    length_min: int = 1
    length_max: int = 64


class Values:
    """A block's config after reading: every field is there and of its kind."""

    __slots__ = ("_values",)

    def __init__(self, values: Config) -> None:
        self._values = values

    def whole(self, name: str) -> int:
        return cast(int, self._values[name])

    def number(self, name: str) -> float:
        return cast(float, self._values[name])

    def flag(self, name: str) -> bool:
        return cast(bool, self._values[name])

    def text(self, name: str) -> str:
        return cast(str, self._values[name])

    def ints(self, name: str) -> tuple[int, ...]:
        return cast("tuple[int, ...]", self._values[name])

    def pair(self, name: str) -> tuple[int, int]:
        first, second = self.ints(name)
        return first, second

    def blocks(self, name: str) -> tuple[Config, ...]:
        return cast("tuple[Config, ...]", self._values[name])


def read_config(fields: Mapping[str, Field], config: Config) -> tuple[Values, list[str]]:
    """The values, with defaults where nothing was said, and everything that is wrong. Faults make the values void."""
    values: dict[str, ConfigValue] = {}
    faults = [say_unknown_key(name, fields) for name in config if name not in fields]
    for name, field in fields.items():
        given = config.get(name, field.default)
        if given is None:
            faults.append(f"config.{name} is missing; it is {field.kind.value}")
            continue
        value, fault = _read_value(name, field, given)
        values[name] = value
        faults += [fault] if fault else []
    return Values(values), faults


def say_unknown_key(name: object, known: Mapping[str, object]) -> str:
    close = get_close_matches(str(name), list(known), n=1)
    hint = f"did you mean {close[0]}?" if close else f"known are: {', '.join(known) or 'none'}"
    return f"config.{name} is unknown; {hint}"


def _read_value(name: str, field: Field, given: ConfigValue) -> tuple[ConfigValue, str | None]:
    if field.kind in (FieldKind.INT, FieldKind.FLOAT):
        return _read_number(name, field, given)
    if field.kind is FieldKind.INTS:
        return _read_ints(name, field, given)
    wanted = {FieldKind.BOOL: bool, FieldKind.TEXT: str, FieldKind.BLOCKS: tuple}[field.kind]
    if not isinstance(given, wanted):
        return given, f"config.{name} is {shorten(given)}; it must be {field.kind.value}"
    if field.choices and given not in field.choices:
        return given, f"config.{name} is {shorten(given)}; it is one of {', '.join(field.choices)}"
    if field.kind is FieldKind.BLOCKS and not all(isinstance(each, Mapping) for each in cast("tuple[object]", given)):
        return given, f"config.{name} must be a list of blocks, each with its block, config and path"
    return given, None


def _read_number(name: str, field: Field, given: ConfigValue) -> tuple[ConfigValue, str | None]:
    whole = isinstance(given, int) and not isinstance(given, bool)
    if not whole and not (field.kind is FieldKind.FLOAT and isinstance(given, float) and isfinite(given)):
        return given, f"config.{name} is {shorten(given)}; it must be {field.kind.value}"
    number = cast(float, given)
    if not field.low <= number <= field.high:
        return given, f"config.{name} is {given}; it must be between {field.low} and {field.high}"
    return (float(number) if field.kind is FieldKind.FLOAT else given), None


def _read_ints(name: str, field: Field, given: ConfigValue) -> tuple[ConfigValue, str | None]:
    items = given if isinstance(given, tuple) else (given,) * field.length_min
    if not field.length_min <= len(items) <= field.length_max:
        lengths = sorted({field.length_min, field.length_max})
        return given, f"config.{name} has {len(items)} entries; it takes {' to '.join(map(str, lengths))}"
    for item in items:
        _, fault = _read_number(name, Field(FieldKind.INT, low=field.low, high=field.high), item)
        if fault:
            return given, fault
    return items, None
