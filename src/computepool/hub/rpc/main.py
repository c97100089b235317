"""Composition of the process that serves gRPC: database, relay, services; then serve until the hub ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import grpc
import httpx
import msgspec
from grpc_reflection.v1alpha import reflection

from computepool.core.errors import ComputePoolError
from computepool.hub.blobs.local import LocalBlobs
from computepool.hub.config import HubSettings
from computepool.hub.rpc import blobs, edges, inference, jobs, membership, networks, resolve
from computepool.hub.rpc.context import RpcContext
from computepool.hub.rpc.health import Health
from computepool.hub.rpc.hosting import open_hosting
from computepool.hub.rpc.process import EXIT_REFUSED, Handover
from computepool.hub.rpc.reach import Reach
from computepool.hub.rpc.relay import Relay
from computepool.hub.rpc.routing import Rpc, build_handlers, service_names
from computepool.hub.services.callers import Callers
from computepool.hub.services.keyring import Keyring
from computepool.hub.services.plugs import Plugs
from computepool.hub.store.connect import Pool, create_pool
from computepool.settings import InvalidSettings
from computepool.wire.grpc_poller import keep_poller
from computepool.wire.rpc import SERVER_OPTIONS

log = logging.getLogger("computepool.rpc")

# Streams of hosts never end by themselves: they are told, and then cut.
SHUTDOWN_SECONDS = 0.5
CHORE_SECONDS = 5.0
# Whoever pulls a plug looks at what follows.
PLUGS_SECONDS = 1.0
# The port may still be held by the process before us, which is ending.
EXIT_TRY_AGAIN = 1


class PortTaken(Exception):
    """Nothing can be served on the address that was set."""


def all_rpcs() -> list[Rpc]:
    """Every RPC that is served. A room with more of them is named here and nowhere else."""
    rooms = (jobs, edges, networks, inference, membership, resolve, blobs)
    return [rpc for room in rooms for rpc in room.rpcs.rpcs]


def list_chores(rpc: RpcContext) -> list[Coroutine[Any, Any, None]]:
    """What goes on beside the calls, until the process ends. What runs of networks need is named here."""
    return [
        rpc.health.watch(rpc.pool),
        _repeat("keyring", lambda: rpc.keyring.refresh(rpc.pool)),
        _repeat("used_keys", rpc.callers.flush_used_keys),
        _repeat("market", lambda: rpc.hosting.follow_market(rpc.pool)),
        *([_repeat("plugs", lambda: rpc.plugs.refresh(rpc.pool), PLUGS_SECONDS)] if rpc.settings.demo else []),
        rpc.hosting.owner.run(),
    ]


async def _repeat(name: str, run_once: Any, seconds: float = CHORE_SECONDS) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            await run_once()
        except Exception as error:
            log.warning("sweep_failed sweeper=%s error=%r", name, error)


async def serve(handover: Handover, *, ended: asyncio.Event) -> None:
    """Until `ended` is set."""
    settings = handover.settings
    pool = await create_pool(handover.dsn, size_max=settings.rpc_pool_size_max, pooler=settings.database_pooler)
    http = open_hub_http(settings)
    try:
        rpc = await _compose(handover, pool, http)
        server = build_server(rpc)
        listen(server, settings)
        await server.start()
        log.info("rpc_started address=%s tls=%s", settings.rpc_address, bool(settings.rpc_tls_certificate_file))
        chores = [asyncio.create_task(chore) for chore in list_chores(rpc)]
        try:
            await ended.wait()
        finally:
            rpc.closing = True
            for chore in chores:
                chore.cancel()
            await asyncio.gather(*chores, return_exceptions=True)
            with contextlib.suppress(Exception):
                # Others need not wait until the leases on our runs have run out.
                await rpc.hosting.owner.close()
            await rpc.health.end()
            rpc.relay.close()
            await server.stop(SHUTDOWN_SECONDS)
            log.info("rpc_stopped")
    finally:
        await http.aclose()
        pool.terminate()


async def _compose(handover: Handover, pool: Pool, http: httpx.AsyncClient) -> RpcContext:
    settings = handover.settings
    keyring = Keyring(handover.hub_id)
    await keyring.refresh(pool)
    local_blobs, reach, plugs = LocalBlobs(Path(handover.blobs_dir)), Reach(), Plugs()
    return RpcContext(
        settings=settings,
        pool=pool,
        keyring=keyring,
        callers=Callers(pool, keyring),
        blobs=local_blobs,
        relay=Relay(
            keyring,
            bytes_per_second_max=settings.relay_bytes_per_second_max,
            bytes_in_flight_max=settings.relay_bytes_in_flight_max,
        ),
        http=http,
        health=Health(service_names(all_rpcs())),
        hosting=open_hosting(settings, pool, keyring, local_blobs, reach, plugs),
        reach=reach,
        plugs=plugs,
    )


def build_server(rpc: RpcContext) -> Any:
    keep_poller()
    server = grpc.aio.server(options=SERVER_OPTIONS)
    rpcs = all_rpcs()
    server.add_generic_rpc_handlers(tuple(build_handlers(rpc, rpcs)))
    rpc.health.add_to(server)
    names = (*service_names(rpcs), "grpc.health.v1.Health", reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
    return server


def listen(server: Any, settings: HubSettings) -> None:
    host = f"[{settings.rpc_host}]" if ":" in settings.rpc_host else settings.rpc_host
    address = f"{host}:{settings.rpc_port}"
    try:
        if settings.rpc_tls_certificate_file:
            server.add_secure_port(address, read_tls(settings))
        else:
            server.add_insecure_port(address)
    except RuntimeError:
        raise PortTaken(
            f"gRPC cannot listen on {address}: somebody else does, or it is no address of this machine. Set "
            "COMPUTEPOOL_HUB_RPC_HOST and COMPUTEPOOL_HUB_RPC_PORT."
        ) from None


def read_tls(settings: HubSettings) -> Any:
    try:
        certificate = Path(settings.rpc_tls_certificate_file).read_bytes()
        key = Path(settings.rpc_tls_key_file).read_bytes()
    except OSError as error:
        raise InvalidSettings(f"The certificate or key for gRPC cannot be read: {error}.") from None
    return grpc.ssl_server_credentials([(key, certificate)])


def open_hub_http(settings: HubSettings) -> httpx.AsyncClient:
    """To the hub on this machine. As many calls at a time as nodes wait; none may wait for another's connection."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(settings.host, settings.host)
    url = f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
    return httpx.AsyncClient(base_url=url, limits=limits, trust_env=False)


def read_handover() -> Handover:
    line = sys.stdin.buffer.readline()
    if not line:
        raise InvalidSettings("This process is started by a hub: set COMPUTEPOOL_HUB_RPC_PORT and start the hub.")
    return msgspec.json.decode(line, type=Handover)


async def _serve_until_told(handover: Handover) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)

    def hear_end() -> None:
        loop.remove_reader(sys.stdin.fileno())
        log.warning("hub_gone")
        ended.set()

    # The hub never writes again: when there is something to read, the pipe is closed.
    loop.add_reader(sys.stdin.fileno(), hear_end)
    await serve(handover, ended=ended)


def main() -> int:
    try:
        handover = read_handover()
        logging.basicConfig(
            level=handover.settings.log_level.value.upper(),
            format="%(asctime)s %(levelname)s rpc %(name)s %(message)s",
            stream=sys.stderr,
        )
        # httpx tells of every request; the hub's own counters do that.
        logging.getLogger("httpx").setLevel(logging.WARNING)
        asyncio.run(_serve_until_told(handover))
    except ComputePoolError as error:
        print(f"error: gRPC: {error.message} ({error.code})", file=sys.stderr)
        return EXIT_REFUSED
    except PortTaken as error:
        log.error("rpc_not_started reason=%s", error)
        return EXIT_TRY_AGAIN
    return 0
