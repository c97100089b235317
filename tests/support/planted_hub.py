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


def answer_before_commit() -> None:
    """Acknowledges results before they are written, as a hub would that queues its writes in memory."""
    import asyncio

    from computepool.hub.http import attempts as http
    from computepool.hub.services import attempts as service
    from computepool.wire.attempts import CompleteAnswer

    really = service.finish_attempts
    pending = set()

    async def later(*args):
        await asyncio.sleep(0.3)
        await really(*args)

    async def at_once(*args):
        task = asyncio.create_task(later(*args))
        pending.add(task)
        task.add_done_callback(pending.discard)
        return [CompleteAnswer(accepted=True)]

    http.service.finish_attempts = at_once


def plant(bug: str) -> None:
    if bug == "answer_before_commit":
        answer_before_commit()
        return
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
