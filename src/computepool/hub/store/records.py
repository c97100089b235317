"""Rows as records: a column goes into the field of the same name."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

Record = TypeVar("Record")


def read_record(kind: type[Record], row: Any, /, **given: Any) -> Record:
    """`given` are the fields that are not a column as it stands: enums, records within, what is called otherwise."""
    # Every record is a dataclass; typing has no word for that.
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: row[name] for name in names if name not in given}, **given)
