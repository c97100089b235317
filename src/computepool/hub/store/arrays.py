"""Lists of values as PostgreSQL's array literals, for statements that write many rows at once.

The driver would look at each element of each list, in Python, to find out whether it is a list itself; that took
longer than all our own work on a row. In SQL such a parameter is written `:name::text::uuid[]`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

_BRACKETS = str.maketrans("[]", "{}")
_encode = msgspec.json.Encoder(uuid_format="hex").encode


def to_array(values: list[Any]) -> str:
    """Of numbers, ids, enums, times and None: nothing that holds a quote, a backslash, a bracket or a control."""
    return _encode(values).decode().translate(_BRACKETS)


def to_sparse_array(values: list[Any]) -> str:
    """Of a column that is empty in most batches: `unnest` fills up what is shorter with NULL."""
    return "{}" if values.count(None) == len(values) else to_array(values)


def to_text_array(values: Iterable[str | None]) -> str:
    """Of any texts; the database refuses NUL characters, as it does everywhere."""
    quoted = ["NULL" if text is None else '"' + _escape(text) + '"' for text in values]
    return "{" + ",".join(quoted) + "}"


def to_bytes_array(values: Iterable[bytes | None]) -> str:
    return "{" + ",".join(["NULL" if raw is None else f'"\\\\x{raw.hex()}"' for raw in values]) + "}"


def _escape(text: str) -> str:
    if "\\" in text:
        text = text.replace("\\", "\\\\")
    return text.replace('"', '\\"') if '"' in text else text
