"""How the agent writes files: whole or not at all, durable before it goes on, and for its own eyes only."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

CHUNK_BYTES = 1 << 20


def write_whole(path: Path, content: bytes, *, mode: int = 0o600) -> None:
    """After this returns the file survives a power cut; before, a reader sees the old one or none."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes a rename durable: the folder is what remembers names."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def find_bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def make_private(folder: Path) -> Path:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    return folder


def remove_folder(folder: Path) -> None:
    """Moves it aside first, so that a half-removed folder is never taken for a whole one after a crash."""
    aside = folder.with_name(f".gone-{folder.name}")
    try:
        os.replace(folder, aside)
    except FileNotFoundError:
        pass
    except OSError:
        # A leftover of an earlier crash is in the way.
        shutil.rmtree(aside, ignore_errors=True)
        os.replace(folder, aside)
    shutil.rmtree(aside, ignore_errors=True)
