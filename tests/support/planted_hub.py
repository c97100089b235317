"""Runs a hub with a guard taken out, to show that the tests would notice. Never part of the product.

Usage: python -m tests.support.planted_hub BUG; the SQL is changed in a copy, before the hub loads it.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from computepool.hub.store import queries

# bug -> (file, text, replacement)
BUGS = {
    "none": ("slices.sql", "", ""),
    "no_row_locks": ("slices.sql", " FOR UPDATE SKIP LOCKED", ""),
}


def plant(bug: str) -> None:
    file, text, replacement = BUGS[bug]
    copy = Path(tempfile.mkdtemp(prefix="planted-sql-"))
    shutil.copytree(queries.SQL_DIR, copy, dirs_exist_ok=True)
    original = (copy / file).read_text()
    assert text in original, f"the guard to take out is not there any more: {text!r}"
    (copy / file).write_text(original.replace(text, replacement))
    queries.SQL_DIR = copy


if __name__ == "__main__":
    plant(sys.argv[1])
    from computepool.hub.main import main

    sys.exit(main())
