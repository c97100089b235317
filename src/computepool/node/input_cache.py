"""Input files by content hash, kept between jobs up to a size. Every file is hashed again before each use.

Refuses to hand out a file whose bytes are not what its name says, wherever they came from.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import BinaryIO
from weakref import WeakValueDictionary

from computepool import entropy
from computepool.node import files, journal

Download = Callable[[], AbstractAsyncContextManager[AsyncIterator[bytes]]]
DOWNLOAD_TRIES = 3
WRITE_BYTES = 1 << 20


class WrongBytes(Exception):
    """What arrived is not what was asked for."""


class InputCache:
    def __init__(self, folder: Path, *, bytes_max: int) -> None:
        self._folder = folder
        self._bytes_max = bytes_max
        self._pins: Counter[str] = Counter()
        # Two attempts that want the same file download it once.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        for draft in folder.glob("*.part"):
            draft.unlink(missing_ok=True)

    def pin(self, sha256s: Iterable[str]) -> None:
        """Pinned files stay until every holder has let go: a runner may still be copying them."""
        self._pins.update(sha256s)

    def unpin(self, sha256s: Iterable[str]) -> None:
        self._pins.subtract(sha256s)
        self._pins = +self._pins

    async def fetch(self, sha256: str, size_bytes: int, download: Download) -> Path:
        """The file's path, downloaded if need be. Raises WrongBytes when three downloads did not match the hash."""
        lock = self._locks.setdefault(sha256, asyncio.Lock())
        async with lock:
            path = self._folder / sha256
            if await asyncio.to_thread(self._is_whole, path, sha256):
                return path
            await asyncio.to_thread(self._make_room, size_bytes)
            for tries_left in reversed(range(DOWNLOAD_TRIES)):
                try:
                    async with download() as pieces:
                        await self._store(path, pieces, sha256=sha256, size_bytes=size_bytes)
                    return path
                except WrongBytes as error:
                    journal.warning("input_did_not_match", sha256=sha256, reason=error, tries_left=tries_left)
                    if not tries_left:
                        raise
        raise AssertionError("unreachable")

    def _is_whole(self, path: Path, sha256: str) -> bool:
        try:
            whole = files.sha256_of(path) == sha256
            if whole:
                # The time of modification is the time of last use; the oldest goes first.
                os.utime(path)
            else:
                path.unlink()
        except FileNotFoundError:
            return False
        return whole

    async def _store(self, path: Path, pieces: AsyncIterator[bytes], *, sha256: str, size_bytes: int) -> None:
        draft = path.with_name(f"{sha256}.{entropy.new_secret(6)}.part")
        digest = hashlib.sha256()
        received = 0
        try:
            with await asyncio.to_thread(_create_private, draft) as file:
                async for block in _in_blocks(pieces):
                    received += len(block)
                    if received > size_bytes:
                        raise WrongBytes(f"more than the announced {size_bytes} bytes arrive")
                    await asyncio.to_thread(_write_and_hash, file.write, digest.update, block)
            if digest.hexdigest() != sha256:
                raise WrongBytes(f"{received} bytes arrived with another hash")
            os.replace(draft, path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise

    def _make_room(self, needed_bytes: int) -> None:
        """Removes the longest unused files. Pinned ones stay even if that means too many bytes for a while."""
        entries = [(path, path.stat()) for path in self._folder.iterdir() if not path.name.endswith(".part")]
        total = sum(found.st_size for _, found in entries) + needed_bytes
        for path, found in sorted(entries, key=lambda entry: entry[1].st_mtime_ns):
            if total <= self._bytes_max:
                return
            if not self._pins[path.name]:
                path.unlink(missing_ok=True)
                total -= found.st_size


async def _in_blocks(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Small pieces are gathered, so that each trip to a thread is worth its cost."""
    gathered = bytearray()
    async for piece in pieces:
        gathered += piece
        if len(gathered) >= WRITE_BYTES:
            yield bytes(gathered)
            gathered.clear()
    if gathered:
        yield bytes(gathered)


def _write_and_hash(write: Callable[[bytes], object], update: Callable[[bytes], object], block: bytes) -> None:
    write(block)
    update(block)


def _create_private(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
