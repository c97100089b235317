"""Composition: settings, database, services, dispatch, transport; then serve until told to end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import uvicorn

from computepool import entropy, settings
from computepool.core.errors import StoreError
from computepool.core.jobs.polling import beat_seconds
from computepool.hub.blobs.local import LocalBlobs
from computepool.hub.config import PREFIX, HubSettings
from computepool.hub.context import Hub
from computepool.hub.dispatch.beats import Beats
from computepool.hub.dispatch.group_commit import Answer, Commit, GroupCommit, Item, SingleCommit, tell_blocked
from computepool.hub.dispatch.listener import run_listener
from computepool.hub.dispatch.parked import ParkedCalls
from computepool.hub.dispatch.registry import Registry
from computepool.hub.dispatch.rounds import Rounds
from computepool.hub.http.app import build_app
from computepool.hub.metrics import HubMetrics
from computepool.hub.services.accounts import ensure_operator
from computepool.hub.services.attempts import finish_attempts
from computepool.hub.services.callers import Callers
from computepool.hub.services.jobs import expire_jobs, submit_jobs
from computepool.hub.services.keyring import Keyring, ensure_keys
from computepool.hub.services.leases import Leases
from computepool.hub.store import hub as hub_store
from computepool.hub.store import nodes as node_store
from computepool.hub.store.connect import Pool, create_pool
from computepool.hub.store.embedded import EmbeddedPostgres
from computepool.hub.store.migrate import migrate
from computepool.hub.sweepers import lease_reaper
from computepool.hub.sweepers.loop import run_every

log = logging.getLogger("computepool.hub")

SHUTDOWN_SECONDS = 5
EXPIRY_BATCH = 100
# Calls that share one transaction at most.
GROUP_MAX = 128


def run_hub(**overrides: Any) -> int:
    """Runs until SIGTERM or SIGINT. `overrides` are settings given on the command line."""
    config = settings.load(HubSettings, os.environ, prefix=PREFIX, **overrides)
    logging.basicConfig(
        level=config.log_level.value.upper(),
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
        stream=sys.stderr,
    )
    runner = asyncio.Runner(loop_factory=_loop_factory())
    with runner:
        runner.run(serve(config))
    return 0


async def serve(config: HubSettings) -> None:
    async with open_database(config) as dsn, open_hub(config, dsn) as hub:
        server = _Server(
            uvicorn.Config(
                build_app(hub),
                host=config.host,
                port=config.port,
                log_level="warning",
                access_log=False,
                lifespan="off",
                timeout_graceful_shutdown=SHUTDOWN_SECONDS,
                timeout_keep_alive=75,
                ws="none",
            ),
            hub,
        )
        await server.serve()
        log.info("hub_stopped")


@contextlib.asynccontextmanager
async def open_database(config: HubSettings) -> AsyncIterator[str]:
    if config.database_url:
        yield config.database_url
        return
    server = EmbeddedPostgres(data_root(config) / "database" if config.data_dir else None)
    dsn = await server.start()
    watching = asyncio.create_task(server.watch())
    try:
        yield dsn
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await server.stop()


@contextlib.asynccontextmanager
async def open_hub(config: HubSettings, dsn: str) -> AsyncIterator[Hub]:
    await migrate(dsn)
    pool = await create_pool(dsn, size_max=config.pool_size_max)
    try:
        hub = await _compose(config, pool)
        await _greet_operator(hub)
        chores = [asyncio.create_task(chore) for chore in _list_chores(hub, dsn)]
        try:
            yield hub
        finally:
            hub.close_calls()
            await asyncio.gather(hub.submits.close(), hub.completions.close())
            for chore in chores:
                chore.cancel()
            await asyncio.gather(*chores, return_exceptions=True)
            # What was heard must not be forgotten because we end.
            with contextlib.suppress(Exception):
                await hub.beats.flush()
    finally:
        await _close_pool(pool)


async def _compose(config: HubSettings, pool: Pool) -> Hub:
    blobs = LocalBlobs(data_root(config) / "blobs")
    blob_store_id = blobs.open_store()
    async with pool.acquire() as conn:
        facts = await hub_store.get_or_insert_facts(conn, hub_id=entropy.new_id(), blob_store_id=blob_store_id)
    if facts.blob_store_id != blob_store_id:
        raise StoreError(
            f"The files in {data_root(config) / 'blobs'} belong to another database. Set COMPUTEPOOL_HUB_DATA_DIR to "
            "the folder this database was used with (the hubs of one grid share it)."
        )
    await ensure_keys(pool)
    keyring = Keyring(facts.hub_id)
    await keyring.refresh(pool)
    parked, registry = ParkedCalls(), Registry()
    return Hub(
        settings=config,
        pool=pool,
        keyring=keyring,
        blobs=blobs,
        callers=Callers(pool, keyring),
        parked=parked,
        rounds=Rounds(pool, parked, Leases(pool, keyring, config), registry),
        registry=registry,
        beats=Beats(pool, config),
        metrics=HubMetrics(),
        submits=_group(config, lambda batch: submit_jobs(pool, batch)),
        completions=_group(config, lambda batch: finish_attempts(pool, batch)),
        beat_seconds=config.beat_seconds,
    )


def _group(
    config: HubSettings, commit: Commit[Item, Answer]
) -> GroupCommit[Item, Answer] | SingleCommit[Item, Answer]:
    if config.group_commit:
        return GroupCommit(tell_blocked(commit), batch_max=GROUP_MAX)
    return SingleCommit(commit)


def _list_chores(hub: Hub, dsn: str) -> list[Any]:
    config, metrics = hub.settings, hub.metrics
    return [
        hub.rounds.run(),
        hub.beats.run(),
        run_listener(dsn, lambda topic: hub.rounds.wake(look_around=topic == "controls")),
        run_every(min(1.0, config.lease_seconds / 4), "lease_reaper", lambda: lease_reaper.run_once(hub), metrics),
        run_every(1.0, "expiry", lambda: expire_jobs(hub.pool, limit=EXPIRY_BATCH), metrics),
        run_every(5.0, "keyring", lambda: hub.keyring.refresh(hub.pool), metrics),
        run_every(5.0, "used_keys", hub.callers.flush_used_keys, metrics),
        run_every(10.0, "fleet", lambda: _measure_fleet(hub), metrics),
    ]


async def _measure_fleet(hub: Hub) -> None:
    async with hub.pool.acquire() as conn:
        count = await node_store.count_online(conn, seconds=hub.settings.lease_seconds)
    hub.metrics.nodes_online.set(count)
    # The lease must outlast the beat, whatever the fleet's size.
    stretched = beat_seconds(
        count, seconds_min=hub.settings.beat_seconds, beats_per_second_max=hub.settings.beats_per_second_max
    )
    hub.beat_seconds = min(stretched, hub.settings.lease_seconds / 2)


async def _greet_operator(hub: Hub) -> None:
    token = await ensure_operator(hub.pool, hub.settings)
    if token is not None:
        print(
            f"\nSign in as the operator with this link (it works once, for 24 hours):\n\n"
            f"  {hub.settings.url}/sign-in?token={token}\n",
            flush=True,
        )


def data_root(config: HubSettings) -> Path:
    if config.data_dir:
        return Path(config.data_dir)
    if os.geteuid() == 0:
        return Path("/var/lib/computepool")
    return Path(os.environ.get("XDG_DATA_HOME", Path.home() / ".local" / "share")) / "computepool"


async def _close_pool(pool: Pool) -> None:
    try:
        async with asyncio.timeout(SHUTDOWN_SECONDS):
            await pool.close()
    except TimeoutError:
        pool.terminate()


class _Server(uvicorn.Server):
    """Parked calls would hold up the shutdown: they are answered as soon as the signal comes."""

    def __init__(self, config: uvicorn.Config, hub: Hub) -> None:
        super().__init__(config)
        self._hub = hub

    async def startup(self, sockets: list[Any] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            log.info("hub_started url=%s demo=%s", self._hub.settings.url, self._hub.settings.demo)

    def handle_exit(self, sig: int, frame: Any) -> None:
        asyncio.get_event_loop().call_soon_threadsafe(self._hub.close_calls)
        super().handle_exit(sig, frame)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        with super().capture_signals():
            yield
            # uvicorn would raise the signal once more, and the process would be gone before it has left the database.
            self._captured_signals.clear()


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def main() -> int:
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        return run_hub()
    except (settings.InvalidSettings, StoreError) as error:
        print(f"error: {error.message} ({error.code})", file=sys.stderr)
        return 2
