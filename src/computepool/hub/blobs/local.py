"""Content-addressed files in one directory. A file appears under its hash only when whole and checked."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

from computepool import entropy
from computepool.core.errors import InvalidRequest, NotFound, PayloadTooLarge, StoreError

READ_BYTES = 1 << 20


class LocalBlobs:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._incoming = root / "incoming"

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
        digest = hashlib.sha256()
        size_bytes = 0
        try:
            with path.open("wb") as file:
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
            target = self._path(sha256)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
        except OSError as error:
            raise StoreError(
                f"The file could not be stored ({error.strerror}). The operator must make room."
            ) from error
        finally:
            path.unlink(missing_ok=True)
        return size_bytes

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
