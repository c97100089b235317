"""Composition: settings, database, services, dispatch, transport; then serve until told to end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import Any

import msgspec
import uvicorn

from computepool import clock, entropy, settings
from computepool.core.errors import StoreError
from computepool.core.jobs.polling import beat_seconds
from computepool.hub.blobs.local import LocalBlobs
from computepool.hub.config import PREFIX, HubSettings
from computepool.hub.context import Hub
from computepool.hub.dispatch.backlog import Backlog
from computepool.hub.dispatch.beats import Beats
from computepool.hub.dispatch.door import Door
from computepool.hub.dispatch.elsewhere import Elsewhere
from computepool.hub.dispatch.evidence import Evidence
from computepool.hub.dispatch.fair_share import FairShare
from computepool.hub.dispatch.group_commit import Answer, Commit, GroupCommit, Item, SingleCommit, tell_blocked
from computepool.hub.dispatch.listener import run_listener
from computepool.hub.dispatch.parked import ParkedCalls
from computepool.hub.dispatch.reception import Reception
from computepool.hub.dispatch.registry import Registry
from computepool.hub.dispatch.rounds import Rounds
from computepool.hub.http.app import all_routes, build_app
from computepool.hub.http.hot import HotCalls
from computepool.hub.http.jobs import to_job
from computepool.hub.http.market import load_spots
from computepool.hub.http.networks import to_line
from computepool.hub.http.nodes import to_node
from computepool.hub.http.site import load_site
from computepool.hub.live.feed import Live, Shapes
from computepool.hub.metrics import HubMetrics
from computepool.hub.payments.providers import close_providers, open_providers
from computepool.hub.processes import HubProcesses, listen_shared, port_held
from computepool.hub.rpc.process import check_settings as check_rpc_settings
from computepool.hub.rpc.process import rpc_beside
from computepool.hub.services.accounts import ensure_operator
from computepool.hub.services.callers import Callers
from computepool.hub.services.cash_terms import CashBook
from computepool.hub.services.job_secrets import delete_ended
from computepool.hub.services.jobs import expire_jobs
from computepool.hub.services.keyring import Keyring, ensure_keys
from computepool.hub.services.leaderboard import count_days
from computepool.hub.services.leases import Leases
from computepool.hub.services.market import keep_rate_card
from computepool.hub.services.mesh import sample_grid
from computepool.hub.services.prices import PriceBook, read_rate_card
from computepool.hub.services.sittings import Sittings
from computepool.hub.services.submissions import Submissions
from computepool.hub.services.weights import load_weights
from computepool.hub.store import hub as hub_store
from computepool.hub.store import live as live_store
from computepool.hub.store import nodes as node_store
from computepool.hub.store.connect import Pool, create_pool
from computepool.hub.store.embedded import EmbeddedPostgres
from computepool.hub.store.migrate import migrate
from computepool.hub.sweepers import (
    auditor,
    bans,
    deadlines,
    inspector,
    lease_reaper,
    market,
    payout_runner,
    sealer,
    settler,
    sittings,
)
from computepool.hub.sweepers.loop import run_every

log = logging.getLogger("computepool.hub")

SHUTDOWN_SECONDS = 5
HANG_UP_SECONDS = 0.2
# Of uvicorn's ticks, ten a second, between two looks for connections that nobody uses.
IDLE_TICKS = 50
EXPIRY_BATCH = 100
SECRETS_BATCH = 1_000
# Calls that share one transaction at most.
GROUP_MAX = 512
# One batch is made while the database writes another, as soon as this many calls wait beside it: were it many more,
# hub and database would take turns. Of what was tried (2 to 1,000 of each) these gave most; with 64 callers submits
# are what the rest waits for, so their second lane opens sooner.
GROUP_LANES = 2
SUBMITS_FOR_A_LANE = 6
COMPLETIONS_FOR_A_LANE = 16
# Large submits that are written at the same time; others wait for their turn, and hold up nobody else.
LARGE_LANES = 2


def run_hub(**overrides: Any) -> int:
    """Runs until SIGTERM or SIGINT. `overrides` are settings given on the command line."""
    config = settings.load(HubSettings, os.environ, prefix=PREFIX, **overrides)
    check_rpc_settings(config)
    if config.workers == 1:
        _start_log(config)
        return _run(serve(config))
    _start_log(config, name=" parent")
    with port_held(config.host, config.port):
        return HubProcesses(config.workers, lambda number, parent: _run_process(config, number, parent)).run()


def _run_process(config: HubSettings, number: int, parent: int) -> int:
    """One of several. A link for the operator is printed once, not by each; gRPC is served beside the first."""
    _start_log(config, name=f" hub-{number}")
    if number > 1:
        config = msgspec.structs.replace(config, operator_link=False)
    return _run(serve(config, parent=parent, with_rpc=number == 1))


def _start_log(config: HubSettings, name: str = "") -> None:
    """`name` tells apart the processes that write to one log."""
    logging.basicConfig(
        level=config.log_level.value.upper(),
        format=f"%(asctime)s %(levelname)s{name} %(name)s %(message)s",
        stream=sys.stderr,
        force=True,
    )


def _run(serving: Coroutine[Any, Any, None]) -> int:
    _calm_collector()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(serving)
    return 0


def _calm_collector() -> None:
    """A hub remembers a lot and makes few cycles: looking through all of it every few thousand calls is a waste, and
    a pause that somebody waits for."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


async def serve(config: HubSettings, *, parent: int | None = None, with_rpc: bool = True) -> None:
    """`parent` can be read once the parent is gone; a hub process that has one shares the port with its siblings."""
    if parent is not None:
        _end_with_parent(parent)
    site = load_site(config.site_dir)
    async with open_database(config) as dsn, open_hub(config, dsn) as hub:
        hub.has_site = site is not None
        hot = HotCalls(hub, all_routes())
        server = _Server(
            uvicorn.Config(
                build_app(hub, site),
                # It stands where uvicorn expects the class of a protocol, and is called like one.
                http=hot,  # type: ignore[arg-type]
                host=config.host,
                port=config.port,
                log_level="warning",
                access_log=False,
                lifespan="off",
                timeout_graceful_shutdown=SHUTDOWN_SECONDS,
                timeout_keep_alive=75,
                ws="none",
                # The app does it where it is needed.
                proxy_headers=False,
            ),
            hub,
            hot,
        )
        sockets = None if parent is None else [listen_shared(config.host, config.port)]
        async with _rpc_process(config, hub, dsn) if with_rpc else contextlib.nullcontext():
            await server.serve(sockets)
        log.info("hub_stopped")


def _rpc_process(config: HubSettings, hub: Hub, dsn: str) -> contextlib.AbstractAsyncContextManager[None]:
    return rpc_beside(config, hub_id=hub.keyring.hub_id, dsn=dsn, blobs_dir=data_root(config) / "blobs")


def _end_with_parent(parent: int) -> None:
    loop = asyncio.get_running_loop()

    def end() -> None:
        loop.remove_reader(parent)
        log.warning("parent_gone")
        signal.raise_signal(signal.SIGTERM)

    loop.add_reader(parent, end)


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
    # Half of the connections are for what is written all day. Without groups every call wants one of its own.
    lent = config.pool_size_max // 2 if config.group_commit else config.pool_size_max
    pool = await create_pool(
        dsn, size_max=max(1, config.pool_size_max - config.pool_size_max // 2), pooler=config.database_pooler
    )
    writing = await create_pool(dsn, size_max=max(1, lent), pooler=config.database_pooler, keeps_plans=True)
    try:
        hub = await _compose(config, pool, writing)
        await hub.blocked_inputs.refresh(pool)
        await _greet_operator(hub)
        chores = [asyncio.create_task(chore) for chore in _list_chores(hub, config.database_listen_url or dsn)]
        try:
            yield hub
        finally:
            hub.close_calls()
            await asyncio.gather(hub.submits.close(), hub.large_submits.close(), hub.completions.close())
            with contextlib.suppress(Exception):
                await hub.elsewhere.leave()
            for chore in chores:
                chore.cancel()
            await asyncio.gather(*chores, return_exceptions=True)
            await close_providers(hub.providers)
            # What was heard must not be forgotten because we end.
            for flush in (hub.beats.flush, hub.share.sync, hub.evidence.flush):
                with contextlib.suppress(Exception):
                    await flush()
    finally:
        await asyncio.gather(_close_pool(pool), _close_pool(writing))


async def _compose(config: HubSettings, pool: Pool, writing: Pool) -> Hub:
    """`writing` is the pool for submits, leases and completions."""
    blobs = LocalBlobs(data_root(config) / "blobs")
    blob_store_id = blobs.open_store()
    async with pool.acquire() as conn:
        facts = await hub_store.get_or_insert_facts(conn, hub_id=entropy.new_id(), blob_store_id=blob_store_id)
        pseudonym_key = await live_store.get_pseudonym_key(conn)
    if facts.blob_store_id != blob_store_id:
        raise StoreError(
            f"The files in {data_root(config) / 'blobs'} belong to another database. Set COMPUTEPOOL_HUB_DATA_DIR to "
            "the folder this database was used with (the hubs of one grid share it)."
        )
    await ensure_keys(pool)
    keyring = Keyring(facts.hub_id, pepper=config.secrets_key)
    await keyring.refresh(pool)
    book = load_weights(Path(config.placement_file) if config.placement_file else None)
    sets = {name: book.sets[name] for name in book.split.names_in_use}
    hub_process_id = entropy.new_id()
    parked, backlog = ParkedCalls(), Backlog()
    share, evidence = FairShare(pool, hub_process_id), Evidence(pool)
    card, card_text = read_rate_card(config.rate_card_file)
    await keep_rate_card(pool, card, card_text)
    prices = PriceBook(card, holdback_seconds=config.holdback_seconds)
    registry = Registry(sets, evidence, prices.ask)
    leases = Leases(writing, keyring, config, prices, weight_sets=book.split.names_in_use)
    submissions = Submissions(writing, leases, book.split, lease_seconds=config.lease_seconds)
    elsewhere = Elsewhere(pool, registry.fleet, sets[book.split.first], hub_process_id)
    asked = Sittings()
    reception = Reception(pool, parked, registry, elsewhere, sittings=asked)
    rounds = Rounds(
        pool,
        reception,
        leases,
        submissions,
        registry,
        backlog,
        share,
        elsewhere,
        on_end=lambda ended: hub.on_end(ended),
    )
    callers = Callers(pool, keyring)
    shapes = Shapes(
        job=to_job,
        node=lambda found: to_node(found, silence_seconds=config.lease_seconds),
        line=to_line,
        spots=lambda: load_spots(pool, card),
    )
    hub = Hub(
        settings=config,
        pool=pool,
        keyring=keyring,
        blobs=blobs,
        callers=callers,
        live=Live(pool, callers, shapes, pseudonym_key=pseudonym_key, silence_seconds=config.lease_seconds),
        pseudonym_key=pseudonym_key,
        parked=parked,
        reception=reception,
        rounds=rounds,
        weights=book,
        door=Door(reception, leases),
        registry=registry,
        prices=prices,
        cash_book=CashBook(prices, config),
        providers=open_providers(config),
        backlog=backlog,
        share=share,
        evidence=evidence,
        elsewhere=elsewhere,
        beats=Beats(pool, config, on_end=lambda ended: hub.on_end(ended)),
        metrics=HubMetrics(),
        submissions=submissions,
        submits=_group(config, rounds.submit, further_lane_items=SUBMITS_FOR_A_LANE),
        large_submits=GroupCommit(tell_blocked(rounds.submit), batch_max=1, lanes=LARGE_LANES),
        completions=_group(
            config,
            rounds.complete if config.group_commit else rounds.complete_apart,
            further_lane_items=COMPLETIONS_FOR_A_LANE,
        ),
        beat_seconds=config.beat_seconds,
        sittings=asked,
    )
    rounds.count_completions = lambda: hub.completions.waiting_count
    return hub


def _group(
    config: HubSettings, commit: Commit[Item, Answer], *, further_lane_items: int
) -> GroupCommit[Item, Answer] | SingleCommit[Item, Answer]:
    if config.group_commit:
        return GroupCommit(
            tell_blocked(commit), batch_max=GROUP_MAX, lanes=GROUP_LANES, further_lane_items=further_lane_items
        )
    return SingleCommit(commit)


def _list_chores(hub: Hub, dsn: str) -> list[Any]:
    config, metrics = hub.settings, hub.metrics
    return [
        hub.rounds.run(),
        hub.reception.run_greeter(),
        hub.rounds.run_timer(hub.hear_changes),
        hub.elsewhere.run(),
        # Each writes once a second: not all at the same moment, or calls would wait for them.
        _begin_after(0.25, hub.beats.run()),
        _begin_after(0.5, hub.share.run()),
        _begin_after(0.75, hub.evidence.run()),
        hub.live.run(),
        run_listener(dsn, hub.rounds.hear),
        run_every(min(1.0, config.lease_seconds / 4), "lease_reaper", lambda: lease_reaper.run_once(hub), metrics),
        run_every(1.0, "expiry", lambda: expire_jobs(hub.pool, limit=EXPIRY_BATCH, on_end=hub.on_end), metrics),
        run_every(5.0, "job_secrets", lambda: delete_ended(hub.pool, limit=SECRETS_BATCH), metrics),
        run_every(1.0, "deadlines", lambda: deadlines.run_once(hub), metrics),
        run_every(5.0, "settler", lambda: settler.run_once(hub), metrics),
        run_every(60.0, "debts", lambda: settler.collect_once(hub), metrics),
        run_every(5.0, "payouts", lambda: payout_runner.send_once(hub), metrics),
        run_every(60.0, "reconciliation", lambda: payout_runner.reconcile_once(hub), metrics),
        run_every(60.0, "short_events", lambda: payout_runner.hear_again_once(hub), metrics),
        run_every(5.0, "auditor", lambda: auditor.run_once(hub), metrics),
        run_every(2.0, "bans", lambda: bans.run_once(hub), metrics),
        run_every(2.0, "sittings", lambda: sittings.run_once(hub), metrics),
        run_every(30.0, "sealer", lambda: sealer.run_once(hub), metrics),
        run_every(1.0, "inspector", lambda: inspector.run_once(hub), metrics),
        run_every(2.0, "trials", lambda: inspector.try_nodes_once(hub), metrics),
        run_every(5.0, "market", lambda: market.run_once(hub), metrics),
        run_every(5.0, "keyring", lambda: hub.keyring.refresh(hub.pool), metrics),
        run_every(5.0, "used_keys", hub.callers.flush_used_keys, metrics),
        *([run_every(1.0, "plugs", lambda: hub.plugs.refresh(hub.pool), metrics)] if config.demo else []),
        run_every(20.0, "leaderboard", lambda: count_days(hub.pool), metrics),
        run_every(20.0, "samples", lambda: sample_grid(hub.pool, silence_seconds=config.lease_seconds), metrics),
        run_every(60.0, "changes", lambda: _forget_changes(hub.pool), metrics),
        run_every(10.0, "fleet", lambda: _measure_fleet(hub), metrics),
    ]


async def _begin_after(seconds: float, chore: Coroutine[Any, Any, None]) -> None:
    try:
        await asyncio.sleep(seconds)
    except BaseException:
        chore.close()
        raise
    await chore


async def _forget_changes(pool: Pool) -> None:
    async with pool.acquire() as conn:
        await hub_store.delete_changes(conn)


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

    def __init__(self, config: uvicorn.Config, hub: Hub, hot: HotCalls) -> None:
        super().__init__(config)
        self._hub = hub
        self._hot = hot

    async def startup(self, sockets: list[Any] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            log.info("hub_started url=%s demo=%s", self._hub.settings.url, self._hub.settings.demo)
            for warning in self._hub.cash_book.list_warnings(today=clock.now().date()):
                log.warning("cash_rates_doubtful %s", warning)

    async def on_tick(self, counter: int) -> bool:
        if counter % IDLE_TICKS == 0:
            self._hot.hang_up_idle()
        return await super().on_tick(counter)

    def handle_exit(self, sig: int, frame: Any) -> None:
        asyncio.get_event_loop().call_soon_threadsafe(self._hub.close_calls)
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[Any] | None = None) -> None:
        hanging_up = asyncio.create_task(self._hang_up())
        try:
            await super().shutdown(sockets)
        finally:
            hanging_up.cancel()

    async def _hang_up(self) -> None:
        """uvicorn asks its connections once to end. One that was still being accepted then, as many are when a whole
        fleet calls again at once, would hold up the end for as long as calls may take."""
        while True:
            await asyncio.sleep(HANG_UP_SECONDS)
            for connection in list(self.server_state.connections):
                connection.shutdown()

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
