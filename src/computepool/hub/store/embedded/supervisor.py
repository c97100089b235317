"""Keeps one embedded PostgreSQL running for all hubs of this machine, and stops it when the last one leaves.

It decides when to start, wait, clear away and stop; the single steps are the cluster's. Everything that changes
the server happens under the control lock, so "the last one stops it" and "a new one starts it" never cross.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from computepool.core.errors import StoreError
from computepool.hub.store.embedded import trouble
from computepool.hub.store.embedded.cluster import Cluster, Launch, Postmaster, open_cluster
from computepool.hub.store.embedded.folder import ROOT_HOME, Folder, default_data_dir, open_folder
from computepool.hub.store.embedded.locks import POLL_SECONDS, Deadline, FileLock, exclusively
from computepool.hub.store.embedded.os_user import hub_user

log = logging.getLogger(__name__)

T = TypeVar("T")

WATCH_SECONDS = 0.5
RETRY_SECONDS_MAX = 30.0
# Children of a killed server notice and leave by themselves, except those that are busy computing.
GRACE_SECONDS = 0.5
QUIT_SECONDS = 3.0
# How long the server lock may stay taken by processes that this hub cannot see.
UNSEEN_SECONDS = 20.0
LOG_LOOK_SECONDS = 60.0


class EmbeddedPostgres:
    """A share in the server of `data_dir`. Every hub process has its own; one server serves them all.

    Without a `port` the server is reached through a socket file only; with one, also on 127.0.0.1.
    """

    def __init__(
        self,
        data_dir: Path | None = None,
        *,
        port: int | None = None,
        binaries_home: Path = ROOT_HOME,
        start_timeout: float = 180.0,
        stop_timeout: float = 30.0,
    ) -> None:
        self._data_dir = data_dir
        self._port = port
        self._binaries_home = binaries_home
        self._start_timeout = start_timeout
        self._stop_timeout = stop_timeout
        self._cluster: Cluster | None = None
        self._users: FileLock | None = None
        self._supervisor: FileLock | None = None
        self._dsn = ""

    async def start(self) -> str:
        """Create, attach or recover, whatever it takes; the DSN when the server takes connections."""
        if self._users is not None:
            return self._dsn
        folder = await _to_the_end(self._open_folder)
        async with exclusively(folder.control_lock, timeout=self._start_timeout):
            users = _join(folder)
            try:
                self._cluster = await _to_the_end(
                    lambda: open_cluster(folder, port=self._port, binaries_home=self._binaries_home)
                )
                postmaster = await self._ensure_ready(self._cluster)
                if postmaster.tcp_port != self._port:
                    postmaster = await self._change_port(self._cluster, postmaster, users)
                self._dsn = self._cluster.dsn(postmaster)
            except asyncio.CancelledError:
                await self._leave(users)
                raise
            except BaseException:
                # A server that is still recovering goes on with it; the next start attaches.
                users.release()
                raise
            self._users = users
            self._supervisor = FileLock(folder.supervisor_lock)
        return self._dsn

    async def watch(self) -> None:
        """Until stop(): restart the server when it dies. One hub does so; the others wait to inherit the post."""
        pause = WATCH_SECONDS
        log_look = Deadline(LOG_LOOK_SECONDS)
        while self._cluster is not None and self._supervisor is not None and self._users is not None:
            try:
                if self._supervisor.try_exclusive():
                    await self._revive(self._cluster)
                    if log_look.is_over:
                        await asyncio.to_thread(self._cluster.folder.bound_log)
                        log_look = Deadline(LOG_LOOK_SECONDS)
                pause = WATCH_SECONDS
            except Exception as error:
                # A full disk can be emptied and a taken port freed, so it is tried again for as long as it takes.
                pause = min(max(pause, 1.0) * 2, RETRY_SECONDS_MAX)
                is_explained = isinstance(error, StoreError)
                log.error(
                    "The embedded database is down; next try in %.0f s. %s",
                    pause,
                    error,
                    exc_info=not is_explained,
                )
            await asyncio.sleep(pause)

    async def stop(self) -> None:
        """Leave. The last hub to do so stops the server; after an error the hub has left all the same."""
        if self._users is None or self._cluster is None or self._supervisor is None:
            return
        users, self._users = self._users, None
        self._supervisor.release()
        try:
            timeout = self._start_timeout + self._stop_timeout
            async with exclusively(self._cluster.folder.control_lock, timeout=timeout):
                await self._leave(users)
        finally:
            users.release()

    def _open_folder(self) -> Folder:
        if os.name != "posix":
            raise StoreError(
                "The embedded database runs on Linux and macOS so far. "
                "Install PostgreSQL on this system and set DATABASE_URL."
            )
        if self._port is not None and not 0 < self._port < 65536:
            raise StoreError(f"{self._port} is not a port. Choose one from 1024 to 65535, or none.")
        # Asked first, because a user without a name has no home either.
        hub_user()
        return open_folder(self._data_dir or default_data_dir())

    async def _revive(self, cluster: Cluster) -> None:
        if _is_serving(cluster):
            return
        async with exclusively(cluster.folder.control_lock, timeout=self._start_timeout):
            # While this hub waited for the lock, another may have started the server, or this one have left.
            if self._users is None or _is_serving(cluster):
                return
            log.warning("The embedded database has died; restarting it.")
            await self._ensure_ready(cluster)
            log.warning("The embedded database is back.")

    async def _leave(self, users: FileLock) -> None:
        # Under the control lock nobody joins between the question "am I alone?" and the end of the server.
        try:
            if users.try_exclusive() and self._cluster is not None:
                await self._shut_down(self._cluster)
        finally:
            users.release()

    async def _ensure_ready(self, cluster: Cluster) -> Postmaster:
        deadline = Deadline(self._start_timeout)
        while True:
            await self._clear_the_way(cluster, deadline)
            launch = await _to_the_end(cluster.launch) if cluster.find_postmaster() is None else None
            postmaster = await self._until_ready(cluster, launch, deadline)
            if postmaster is not None:
                return postmaster
            await asyncio.sleep(POLL_SECONDS)

    async def _clear_the_way(self, cluster: Cluster, deadline: Deadline) -> None:
        """Return when there is a server, or nothing left of the one before. Its children would block a new one.

        They write to the same files, so PostgreSQL refuses to start beside them. Ending them loses nothing:
        without their postmaster their unfinished transactions are void, and the finished ones are on disk.
        """
        grace, quit_by, unseen = Deadline(GRACE_SECONDS), Deadline(QUIT_SECONDS), Deadline(UNSEEN_SECONDS)
        while cluster.find_postmaster() is None:
            leftovers = await asyncio.to_thread(cluster.list_leftovers)
            if not leftovers and _is_free(cluster.folder.server_lock):
                return
            if deadline.is_over or (not leftovers and unseen.is_over):
                raise StoreError(
                    f"Processes of an earlier server still hold {cluster.folder.pgdata} and cannot be ended from "
                    "here; they may run in another container or as another user. Stop them and start the hub "
                    "again. Hubs in several containers need DATABASE_URL instead of the embedded database."
                )
            if grace.is_over:
                for process in leftovers:
                    cluster.signal(process.pid, signal.SIGKILL if quit_by.is_over else signal.SIGQUIT)
            await asyncio.sleep(POLL_SECONDS)

    async def _until_ready(self, cluster: Cluster, launch: Launch | None, deadline: Deadline) -> Postmaster | None:
        """The server once it takes connections; None when it went away and the whole should be tried anew."""
        while True:
            postmaster = cluster.find_postmaster()
            if postmaster is not None and postmaster.status == "ready":
                return postmaster
            if postmaster is None and (launch is None or launch.process.poll() is not None):
                _raise_reason(cluster, launch, deadline)
                return None
            if postmaster is not None and postmaster.status == "stopping":
                # Somebody else asked it to end, or a hub was killed while it did. A polite end waits for the
                # clients for ever, and takes no new ones meanwhile: hurry it, then start afresh.
                cluster.signal(postmaster.pid, signal.SIGINT)
            if deadline.is_over:
                raise StoreError(
                    f"The embedded database in {cluster.folder.path} is not ready after {self._start_timeout:.0f} s "
                    f"(it says: {(postmaster and postmaster.status) or 'nothing'}). It may still be recovering: "
                    f"look into {cluster.folder.log} and start the hub again, which goes on waiting."
                )
            await asyncio.sleep(POLL_SECONDS)

    async def _shut_down(self, cluster: Cluster) -> None:
        # Fast: open transactions are rolled back, everything is written, nothing needs recovery. Then immediate:
        # safe too, with recovery at the next start.
        for number in (signal.SIGINT, signal.SIGQUIT):
            deadline = Deadline(self._stop_timeout)
            if (postmaster := cluster.find_postmaster()) is not None:
                cluster.signal(postmaster.pid, number)
            while not deadline.is_over:
                if cluster.find_postmaster() is None:
                    return await self._clear_the_way(cluster, deadline)
                await asyncio.sleep(POLL_SECONDS)
        raise StoreError(
            f"The embedded database in {cluster.folder.path} did not stop within {2 * self._stop_timeout:.0f} s. "
            f"Look into {cluster.folder.log}, and end the process that {cluster.folder.pgdata}/postmaster.pid names."
        )

    async def _change_port(self, cluster: Cluster, running: Postmaster, users: FileLock) -> Postmaster:
        """The server was started with another port. That can be changed only while no other hub uses it."""
        is_alone = users.try_exclusive()
        if is_alone:
            await self._shut_down(cluster)
            running = await self._ensure_ready(cluster)
        # Back to a shared lock: the question cost us ours. Nobody came in between, because of the control lock.
        users.try_shared()
        if self._port not in (None, running.tcp_port):
            raise StoreError(
                f"The embedded database in {cluster.folder.path} runs already for another hub, without port "
                f"{self._port}. Start all hubs with the same port, or stop the others first."
            )
        return running


def _join(folder: Folder) -> FileLock:
    users = FileLock(folder.users_lock)
    if not users.try_shared():
        # Only a hub that stops the server holds it alone, and it does so under the control lock that we hold.
        raise StoreError(
            f"{folder.users_lock} is locked by a program that is not a hub. End that program and start again."
        )
    return users


def _is_free(path: Path) -> bool:
    lock = FileLock(path)
    try:
        return lock.try_exclusive()
    finally:
        lock.release()


def _is_serving(cluster: Cluster) -> bool:
    # A hub stops the server only under the control lock and as the last one; any other end is an accident.
    postmaster = cluster.find_postmaster()
    return postmaster is not None and postmaster.status != "stopping"


def _raise_reason(cluster: Cluster, launch: Launch | None, deadline: Deadline) -> None:
    """Why the launched server ended, unless there was none or trying again helps."""
    if launch is None:
        return
    output = cluster.log_since(launch.log_offset)
    if trouble.is_refused_by_predecessor(output) and not deadline.is_over:
        return
    raise trouble.from_output(output, doing="starting", folder=cluster.folder.path, port=cluster.port)


async def _to_the_end(step: Callable[[], T]) -> T:
    """Run a blocking step in a thread, and outlive a cancellation until it is done.

    A thread cannot be cancelled; leaving it alone would drop the control lock under its hands.
    """
    running = asyncio.ensure_future(asyncio.to_thread(step))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})
        raise
