"""The hub's side of the process that serves gRPC: starts it, starts it again when it dies, ends it with the hub.

Knows nothing of gRPC. Settings and the database's address go to the process by its standard input, where no other
user of the machine can read them. That pipe is also the hub's sign of life: the process ends when it is closed,
whatever ended the hub.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import msgspec

from computepool import clock
from computepool.hub.config import HubSettings
from computepool.settings import InvalidSettings

log = logging.getLogger("computepool.processes")

PROGRAM = ("-m", "computepool.hub.rpc")
STOP_SECONDS = 2.0
# One that lived this long has not died of its own start.
SETTLED_SECONDS = 30.0
PAUSE_SECONDS = 0.5
PAUSE_SECONDS_MAX = 30.0
EXIT_REFUSED = 2


class Handover(msgspec.Struct, frozen=True, kw_only=True):
    """What the process is told in its first line."""

    settings: HubSettings
    hub_id: UUID
    dsn: str
    blobs_dir: str


@contextlib.asynccontextmanager
async def rpc_beside(settings: HubSettings, *, hub_id: UUID, dsn: str, blobs_dir: Path) -> AsyncIterator[None]:
    """While this lasts, gRPC is served by a process of its own, if the settings want it."""
    if settings.rpc_port == 0:
        yield
        return
    handover = Handover(settings=settings, hub_id=hub_id, dsn=dsn, blobs_dir=str(blobs_dir))
    watching = asyncio.create_task(_keep_running(msgspec.json.encode(handover) + b"\n"))
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def check_settings(settings: HubSettings) -> None:
    """Raises InvalidSettings when gRPC could never be served so."""
    if bool(settings.rpc_tls_certificate_file) != bool(settings.rpc_tls_key_file):
        raise InvalidSettings(
            "gRPC over TLS needs both files: COMPUTEPOOL_HUB_RPC_TLS_CERTIFICATE_FILE and "
            "COMPUTEPOOL_HUB_RPC_TLS_KEY_FILE."
        )
    if settings.rpc_port == settings.port:
        raise InvalidSettings(
            f"gRPC and HTTP cannot share port {settings.port}. Set COMPUTEPOOL_HUB_RPC_PORT to another one."
        )


async def _keep_running(handover: bytes) -> None:
    pause_seconds = PAUSE_SECONDS
    while True:
        started_at = clock.seconds()
        exit_code = await _run_once(handover)
        if exit_code == EXIT_REFUSED:
            # It has said why, and would say it again.
            log.error("rpc_process_refused hint=see above; the hub goes on without gRPC")
            return
        if clock.seconds() - started_at >= SETTLED_SECONDS:
            pause_seconds = PAUSE_SECONDS
        log.warning("rpc_process_died exit_code=%d next_start_seconds=%.1f", exit_code, pause_seconds)
        await asyncio.sleep(pause_seconds)
        pause_seconds = min(2 * pause_seconds, PAUSE_SECONDS_MAX)


async def _run_once(handover: bytes) -> int:
    # A session of its own: Ctrl-C at the terminal tells the hub, and the hub alone decides when this ends.
    process = await asyncio.create_subprocess_exec(
        sys.executable, *PROGRAM, stdin=subprocess.PIPE, start_new_session=True
    )
    log.info("rpc_process_started pid=%d", process.pid)
    try:
        assert process.stdin is not None
        with contextlib.suppress(ConnectionError):
            process.stdin.write(handover)
            await process.stdin.drain()
        return await process.wait()
    finally:
        if process.returncode is None:
            await _end(process)


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
