"""Tables as CSV: the same rows always give the same text. What people wrote cannot become a formula."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import Enum

# A spreadsheet would run a cell that begins so.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")

Cell = str | int | float | datetime | Enum | None | object


def to_csv(heads: Sequence[str], rows: Iterable[Sequence[Cell]], *, with_heads: bool = True) -> str:
    """Lines end with CR and LF, as the standard has it; cells that are absent are empty."""
    text = io.StringIO()
    writer = csv.writer(text)
    if with_heads:
        writer.writerow(heads)
    writer.writerows([_to_text(cell) for cell in row] for row in rows)
    return text.getvalue()


def quote_formula(text: str) -> str:
    """For what strangers wrote: a leading apostrophe tells a spreadsheet that it is text."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def _to_text(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, datetime):
        return cell.isoformat()
    return str(cell.value) if isinstance(cell, Enum) else str(cell)
