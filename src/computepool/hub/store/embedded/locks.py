"""File locks between hub processes. The kernel drops them when their holder dies, however it dies.

They are flock locks: bound to the open file, not to the process. So a lock can be handed to a child (see
`cluster.launch`), and a hub must not leave one open in a child that is forked without exec.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from computepool import clock
from computepool.core.errors import StoreError
from computepool.hub.store.embedded.trouble import explained

POLL_SECONDS = 0.05


class Deadline:
    """A moment in the future of this process."""

    def __init__(self, seconds: float) -> None:
        self._at = clock.seconds() + seconds

    @property
    def is_over(self) -> bool:
        return clock.seconds() >= self._at


class FileLock:
    """One open lock file. Two of these on one path exclude each other, also inside one process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._is_exclusive = False

    def try_shared(self) -> bool:
        return self._try(exclusive=False)

    def try_exclusive(self) -> bool:
        """True when this lock is, or has just become, the only one.

        An upgrade from shared is not atomic: when it fails, the shared lock is gone too. Callers upgrade only
        on their way out, and under the control lock.
        """
        if self._is_exclusive:
            return True
        return self._try(exclusive=True)

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None
        self._is_exclusive = False

    def hand_over(self) -> int:
        """The open file itself, for a child that shall hold the lock from now on."""
        if self._descriptor is None:
            raise RuntimeError("a lock that is not held cannot be handed over")
        return self._descriptor

    def _try(self, *, exclusive: bool) -> bool:
        # Imported here because the module does not exist on Windows, where a hub with DATABASE_URL still runs.
        import fcntl

        with explained(self._path):
            if self._descriptor is None:
                # The mode matters: the folder may be open to others for passing through.
                self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
            try:
                fcntl.flock(self._descriptor, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                self.release()
                return False
        self._is_exclusive = exclusive
        return True


@asynccontextmanager
async def exclusively(path: Path, *, timeout: float) -> AsyncIterator[None]:
    """Hold the lock file for a short while. It is polled, so a cancelled hub stops waiting at once."""
    lock = FileLock(path)
    deadline = Deadline(timeout)
    try:
        while not lock.try_exclusive():
            if deadline.is_over:
                raise StoreError(
                    f"Another hub process has been starting or stopping the database in {path.parent} for more "
                    f"than {timeout:.0f} s. Look for hub processes that hang, end them, and start the hub again."
                )
            await asyncio.sleep(POLL_SECONDS)
        yield
    finally:
        lock.release()
