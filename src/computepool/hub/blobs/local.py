"""Content-addressed files in one directory. A file appears under its hash only when whole and checked.

Of an upload that was cut, what has arrived may be kept for a while: then only the rest is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from uuid import UUID

from computepool import clock, entropy
from computepool.core.errors import (
    ComputePoolError,
    HubUnavailable,
    InvalidRequest,
    NotFound,
    PayloadTooLarge,
    StoreError,
)

READ_BYTES = 1 << 20
# What nobody has gone on with for so long is removed.
PART_KEEP_SECONDS = 86_400.0
SWEEP_SECONDS = 3_600.0


class _Arrived(NamedTuple):
    """What of a file is here already."""

    digest: Any
    size_bytes: int


class LocalBlobs:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._incoming = root / "incoming"
        self._swept_at: float | None = None

    def open_store(self) -> UUID:
        """The store's id, made on first use. The database remembers it, so that a wrong directory is noticed."""
        self._incoming.mkdir(parents=True, exist_ok=True)
        id_file = self._root / "store-id"
        if not id_file.exists():
            fresh = self._root / f"store-id.{entropy.new_id()}"
            fresh.write_text(str(entropy.new_id()))
            try:
                # Linking fails when another hub was quicker: then its id is the store's.
                os.link(fresh, id_file)
            except FileExistsError:
                pass
            finally:
                fresh.unlink()
        return UUID(id_file.read_text().strip())

    async def write(self, sha256: str, chunks: AsyncIterator[bytes], *, size_bytes_max: int) -> int:
        """Stores the stream if its hash is the one promised. Returns its size."""
        path = self._incoming / str(entropy.new_id())
        try:
            with path.open("wb") as file:
                arrived = _Arrived(hashlib.sha256(), 0)
                return await self._receive(file, path, sha256, chunks, arrived, size_bytes_max=size_bytes_max)
        except OSError as error:
            raise _to_store_error(error) from error
        finally:
            path.unlink(missing_ok=True)

    async def write_rest(
        self, part: str, sha256: str, chunks: AsyncIterator[bytes], *, offset: int, size_bytes_max: int
    ) -> int:
        """The same for an upload that may be cut: `chunks` go on after the first `offset` bytes, which have arrived
        before under the same name of a part. If the stream breaks, what has arrived is kept.

        Every call has a file of its own: one whose line is dead may hang on for long, and must not disturb the next.
        """
        self._sweep()
        earlier = self._list_parts(part, sha256)
        path = self._incoming / f"{_name_part(part, sha256)}{entropy.new_id()}"
        try:
            with path.open("wb") as file:
                arrived = await asyncio.to_thread(_copy_first, earlier, file, offset)
                for _, old in [each for each in earlier if not offset or each[0] <= offset]:
                    old.unlink(missing_ok=True)
                size_bytes = await self._receive(file, path, sha256, chunks, arrived, size_bytes_max=size_bytes_max)
        except (ComputePoolError, OSError) as error:
            # Nobody can go on from there.
            path.unlink(missing_ok=True)
            if isinstance(error, OSError):
                raise _to_store_error(error) from error
            if isinstance(error, PayloadTooLarge) or not offset or not isinstance(error, InvalidRequest):
                raise
            self._remove_parts(part, sha256)
            raise HubUnavailable("What had arrived of the file was damaged. Begin again.") from error
        self._remove_parts(part, sha256)
        return size_bytes

    def count_arrived(self, part: str, sha256: str) -> int:
        """How many bytes of such an upload are here."""
        return max((size for size, _ in self._list_parts(part, sha256)), default=0)

    def _list_parts(self, part: str, sha256: str) -> list[tuple[int, Path]]:
        """What calls that were cut have left, each with its size."""
        found = []
        for path in self._incoming.glob(f"{_name_part(part, sha256)}*"):
            with contextlib.suppress(FileNotFoundError):
                found.append((path.stat().st_size, path))
        return found

    def _remove_parts(self, part: str, sha256: str) -> None:
        for _, path in self._list_parts(part, sha256):
            path.unlink(missing_ok=True)

    async def _receive(
        self,
        file: BinaryIO,
        path: Path,
        sha256: str,
        chunks: AsyncIterator[bytes],
        arrived: _Arrived,
        *,
        size_bytes_max: int,
    ) -> int:
        """Adds the stream to what the file has, and puts it in its place if all of it hashes to what was promised."""
        digest, size_bytes = arrived
        async for chunk in chunks:
            size_bytes += len(chunk)
            if size_bytes > size_bytes_max:
                raise PayloadTooLarge(f"A file may have {size_bytes_max:,} bytes here. Split it.")
            digest.update(chunk)
            await asyncio.to_thread(file.write, chunk)
        file.flush()
        # On disk before it is acknowledged, like everything else.
        await asyncio.to_thread(os.fsync, file.fileno())
        if digest.hexdigest() != sha256:
            raise InvalidRequest(f"The bytes hash to {digest.hexdigest()}, not to {sha256}. Send them again.")
        self._put_in_place(path, sha256)
        return size_bytes

    def _put_in_place(self, path: Path, sha256: str) -> None:
        target = self._path(sha256)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)

    def _sweep(self) -> None:
        """Uploads that nobody goes on with, and those of hubs that were killed."""
        now = clock.seconds()
        if self._swept_at is not None and now < self._swept_at + SWEEP_SECONDS:
            return
        self._swept_at = now
        oldest = clock.unix_seconds() - PART_KEEP_SECONDS
        for path in self._incoming.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < oldest:
                    path.unlink()

    async def read(self, sha256: str, *, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """Bytes from `start` up to, not including, `end`."""
        path = self._path(sha256)
        if not path.is_file():
            raise NotFound("The file's bytes are gone from this hub's store.")
        left = (path.stat().st_size if end is None else end) - start
        with path.open("rb") as file:
            file.seek(start)
            while left > 0:
                chunk = await asyncio.to_thread(file.read, min(READ_BYTES, left))
                if not chunk:
                    return
                left -= len(chunk)
                yield chunk

    def has(self, sha256: str) -> bool:
        return self._path(sha256).is_file()

    def remove(self, sha256: str) -> None:
        """Whoever calls has made sure that nobody needs it."""
        self._path(sha256).unlink(missing_ok=True)

    def _path(self, sha256: str) -> Path:
        return self._root / sha256[:2] / sha256[2:4] / sha256


def _name_part(part: str, sha256: str) -> str:
    return f"part-{part}-{sha256}-"


def _copy_first(parts: list[tuple[int, Path]], file: BinaryIO, offset: int) -> _Arrived:
    """The first bytes of the longest part, which only grows at its end. Blocking."""
    digest = hashlib.sha256()
    if not offset:
        return _Arrived(digest, 0)
    size_bytes, longest = max(parts, default=(0, None))
    left = offset
    if longest is not None and size_bytes >= offset:
        with contextlib.suppress(FileNotFoundError), longest.open("rb") as source:
            while chunk := source.read(min(READ_BYTES, left)):
                digest.update(chunk)
                file.write(chunk)
                left -= len(chunk)
    if left:
        raise HubUnavailable("Less of the file has arrived than that. Ask how much, and go on from there.")
    return _Arrived(digest, offset)


def _to_store_error(error: OSError) -> StoreError:
    return StoreError(f"The file could not be stored ({error.strerror}). The operator must make room.")
