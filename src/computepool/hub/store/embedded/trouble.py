"""Turns what the system and PostgreSQL say into a `StoreError` that says what is wrong and what to do next.

It only reads texts and error numbers; it never repairs anything.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from computepool.core.errors import StoreError

DATABASE_URL_HINT = "or set DATABASE_URL to a PostgreSQL of your own"


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Every refusal of the operating system inside this block becomes a `StoreError` about `path`."""
    try:
        yield
    except OSError as error:
        raise from_os_error(error, path) from error


def from_os_error(error: OSError, path: Path) -> StoreError:
    where = error.filename or path
    # Copying a tree collects its errors into one that has no number of its own, only a text.
    if error.errno in (errno.ENOSPC, errno.EDQUOT) or is_about_full_disk(str(error)):
        return full_disk(path)
    if error.errno == errno.EROFS:
        return StoreError(
            f"{where} is on a read-only file system, so the embedded database cannot live there. "
            f"Choose a data directory that can be written, {DATABASE_URL_HINT}."
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return StoreError(
            f"The hub may not use {where} ({error.strerror}). Give the hub's user access to it, "
            f"choose another data directory, {DATABASE_URL_HINT}."
        )
    return StoreError(
        f"The embedded database cannot use {where}: {error.strerror or error}. "
        f"Repair this and start the hub again, choose another data directory, {DATABASE_URL_HINT}."
    )


def from_output(output: str, *, doing: str, folder: Path, port: int | None = None) -> StoreError:
    """The reason why one of PostgreSQL's programs gave up, read from what it wrote (its locale is C)."""
    if is_about_full_disk(output):
        return full_disk(folder)
    if port is not None and "Address already in use" in output:
        return StoreError(
            f"Port {port} on 127.0.0.1 is taken by another program, so the embedded database cannot start. "
            "Stop that program, choose another port, or give no port at all: the hub then uses a socket file."
        )
    if "is not compatible with this version" in output or "incompatible with server" in output:
        return StoreError(
            f"The database in {folder} was written by another version of PostgreSQL than this hub brings. "
            f"Install the version of computepool[hub] that wrote it, {DATABASE_URL_HINT}."
        )
    return StoreError(
        f"The embedded database failed while {doing}. PostgreSQL said: {last_words(output)} "
        f"The whole log is in {folder / 'postgres.log'}. Repair what it names and start the hub again, "
        f"{DATABASE_URL_HINT}."
    )


def full_disk(path: Path) -> StoreError:
    return StoreError(
        f"The disk that holds {path} is full, so the embedded database cannot write. "
        "Free some space there and start the hub again; what was committed is kept."
    )


def is_about_full_disk(text: str) -> bool:
    return "No space left on device" in text or "Disk quota exceeded" in text


def is_refused_by_predecessor(output: str) -> bool:
    """PostgreSQL saw processes of a killed server that are still attached; they go away, so trying again helps."""
    return "pre-existing shared memory block" in output


def last_words(output: str, *, line_count: int = 6, character_count: int = 1200) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return " | ".join(lines[-line_count:])[-character_count:] or "(nothing)"
