"""Carries one attempt's log to the hub: new bytes about once a second, the rest at the end.

Never in the way of the job: when the hub is away the bytes wait in the file.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

from computepool.core.errors import ComputePoolError
from computepool.node import journal, patience
from computepool.node.hub_client import HubClient

PIECE_BYTES = 256 * 1024
SHIP_SECONDS = 1.0
# A hub that has all it wants of a log answers with the same offset again and again.
STANDSTILLS_MAX = 3


class LogShipper:
    def __init__(self, hub: HubClient, *, attempt_id: UUID, lease_secret: str, path: Path) -> None:
        self._hub = hub
        self._attempt_id = attempt_id
        self._lease_secret = lease_secret
        self._path = path
        # Where the hub wants to go on; after a restart of the agent the hub corrects the zero.
        self._offset = 0
        self._standstills = 0
        self._is_over = False

    async def run(self) -> None:
        """Ships while the job runs, until cancelled."""
        await patience.keep_calling(self._ship_new, every_seconds=SHIP_SECONDS, is_over=lambda: self._is_over)

    async def finish(self) -> None:
        """Ships what is left, for as long as it takes."""
        await patience.until_answered(self._ship_new, what="log", attempt_id=self._attempt_id)

    async def _ship_new(self) -> None:
        """Raises only what is worth repeating."""
        try:
            await self._ship()
        except ComputePoolError as error:
            if patience.is_worth_repeating(error):
                raise
            # A hub that refuses the log may still want the result: whoever took over may be slower than we are.
            self._is_over = True
            journal.info("log_refused", attempt_id=self._attempt_id, code=error.code, reason=error.message)

    async def _ship(self) -> None:
        while not self._is_over:
            piece = await asyncio.to_thread(self._read_piece)
            if not piece:
                return
            answer = await self._hub.send_log(self._attempt_id, self._lease_secret, offset=self._offset, piece=piece)
            self._note_progress(answer.next_offset)

    def _note_progress(self, next_offset: int) -> None:
        moved = next_offset > self._offset
        self._standstills = 0 if moved else self._standstills + 1
        self._offset = max(0, next_offset)
        if self._standstills >= STANDSTILLS_MAX:
            self._is_over = True

    def _read_piece(self) -> bytes:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                return file.read(PIECE_BYTES)
        except FileNotFoundError:
            # The job has not printed anything yet.
            return b""
