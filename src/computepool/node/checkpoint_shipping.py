"""Carries what one attempt has saved to the hub: the files that it lacks, then the word that they belong together.

Never in the way of the job: when the hub is away the files wait, and the runner takes no more of them meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from uuid import UUID

import msgspec

from computepool.core.errors import ComputePoolError, InvalidRequest, NodeRemoved, NotFound, StaleBoot, StaleLease
from computepool.node import files, journal, patience
from computepool.node.hub_client import HubClient
from computepool.node.runner import files as runner_files
from computepool.node.threads import finish_in_thread
from computepool.wire.attempts import Checkpoint

LOOK_SECONDS = 0.5
# How long the end of an attempt waits for its last checkpoint to arrive.
FINISH_SECONDS_MAX = 900.0
# Files that the hub does not have after they were sent so often are not what they were called.
ROUNDS_MAX = 3


class CheckpointShipper:
    def __init__(self, hub: HubClient, *, attempt_id: UUID, lease_secret: str, run_path: Path) -> None:
        self._hub = hub
        self._attempt_id = attempt_id
        self._lease_secret = lease_secret
        self._run_path = run_path
        self._is_over = False

    async def run(self) -> None:
        """Ships while the job runs, until cancelled."""
        await patience.keep_calling(self._ship_new, every_seconds=LOOK_SECONDS, is_over=lambda: self._is_over)

    async def finish(self) -> None:
        """Ships what the job saved last. Its owner is paid to it, so that it is worth some patience."""
        ship = partial(patience.until_answered, self._ship_new, what="checkpoint", attempt_id=self._attempt_id)
        try:
            async with asyncio.timeout(FINISH_SECONDS_MAX):
                await ship()
        except TimeoutError:
            journal.warning("checkpoint_given_up", attempt_id=self._attempt_id, seconds=FINISH_SECONDS_MAX)

    async def _ship_new(self) -> None:
        """Raises only what is worth repeating."""
        found = await asyncio.to_thread(self._find_new)
        if found is None or self._is_over:
            return
        try:
            saved_seconds = await self._ship(found)
        except (StaleLease, NotFound, StaleBoot, NodeRemoved) as error:
            # Whoever speaks for the attempt as a whole hears the same, and acts on it.
            self._is_over = True
            journal.info("checkpoint_refused", attempt_id=self._attempt_id, code=error.code, reason=error.message)
        except ComputePoolError as error:
            if patience.is_worth_repeating(error):
                raise
            journal.warning("checkpoint_refused", attempt_id=self._attempt_id, code=error.code, reason=error.message)
            await finish_in_thread(partial(self._record, found.number, accepted=False))
        except OSError as error:
            # Its files are not where the runner said.
            journal.warning("checkpoint_unreadable", attempt_id=self._attempt_id, reason=error)
            await finish_in_thread(partial(self._record, found.number, accepted=False))
        else:
            journal.info(
                "checkpoint_saved", attempt_id=self._attempt_id, number=found.number, saved_seconds=saved_seconds
            )
            await finish_in_thread(partial(self._record, found.number, accepted=True))

    async def _ship(self, found: Checkpoint) -> int:
        sizes = {file.sha256: file.size_bytes for file in found.files}
        for _ in range(ROUNDS_MAX):
            answer = await self._hub.save_checkpoint(self._attempt_id, self._lease_secret, found)
            if answer.accepted:
                return answer.saved_seconds
            for sha256 in answer.missing:
                if sha256 not in sizes:
                    raise InvalidRequest("The hub asks for files that the checkpoint does not have.")
                await self._hub.put_output(
                    self._attempt_id,
                    self._lease_secret,
                    sha256=sha256,
                    size_bytes=sizes[sha256],
                    body=partial(read_blocks, self._run_path / runner_files.SAVED / sha256),
                )
        raise InvalidRequest("The hub does not keep the checkpoint's files.")

    def _find_new(self) -> Checkpoint | None:
        content = files.find_bytes(self._run_path / runner_files.CHECKPOINT)
        try:
            found = msgspec.json.decode(content, type=Checkpoint) if content is not None else None
        except msgspec.DecodeError:
            return None
        shipped = runner_files.find_json(str(self._run_path), runner_files.SHIPPED) or {}
        return found if found is not None and found.number > int(shipped.get("number", 0)) else None

    def _record(self, number: int, *, accepted: bool) -> None:
        runner_files.write_json(
            str(self._run_path), runner_files.SHIPPED, {"number": number, "accepted": accepted}, durable=True
        )


async def read_blocks(path: Path) -> AsyncIterator[bytes]:
    with await asyncio.to_thread(path.open, "rb") as file:
        while block := await asyncio.to_thread(file.read, files.CHUNK_BYTES):
            yield block
