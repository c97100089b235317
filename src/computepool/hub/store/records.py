"""Rows as records: a column goes into the field of the same name."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

Record = TypeVar("Record")

# By record: what its fields are called. To find out takes longer than to read them.
_names: dict[Any, tuple[str, ...]] = {}


def read_record(kind: type[Record], row: Any, /, **given: Any) -> Record:
    """`given` are the fields that are not a column as it stands: enums, records within, what is called otherwise."""
    return kind(**{name: row[name] for name in _list_names(kind) if name not in given}, **given)


def _list_names(kind: Any) -> tuple[str, ...]:
    if kind not in _names:
        _names[kind] = tuple(field.name for field in fields(kind))
    return _names[kind]
