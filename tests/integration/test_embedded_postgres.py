"""The embedded database with real processes and real kill -9.

Hubs are processes of `embedded_hub.py`; refusals are checked in this process. Each test has a folder of its own,
copied from one that a real first start has made, and nothing that runs in it outlives the test.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

import computepool
from computepool.core.errors import StoreError
from computepool.hub.store.embedded import (
    EmbeddedPostgres,
    binaries,
    binaries_dir,
    cluster,
    default_data_dir,
    folder,
    locks,
    os_user,
    supervisor,
)
from computepool.hub.store.embedded.folder import Folder
from computepool.hub.store.embedded.processes import find_process, list_processes
from tests.support.hub_process import free_port

HUB_SCRIPT = Path(__file__).with_name("embedded_hub.py")
PATIENCE_SECONDS = 60.0
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user or mount a disk")


@pytest.fixture(scope="module")
def shared() -> Iterator[Path]:
    """What the tests of this file share: the copied programs and a database that is made once."""
    with _place() as place:
        yield place


@pytest.fixture(scope="module")
def fresh_database(shared: Path) -> Path:
    async def make() -> None:
        server = EmbeddedPostgres(shared / "database", binaries_home=shared / "programs", start_timeout=60)
        connection = await asyncpg.connect(await server.start())
        await connection.execute("CREATE TABLE facts (fact int PRIMARY KEY)")
        await connection.close()
        await server.stop()

    asyncio.run(make())
    return shared / "database"


@pytest.fixture
def place() -> Iterator[Path]:
    """An empty folder that other users can pass through, unlike pytest's own."""
    with _place() as place:
        yield place


@pytest.fixture
def data_dir(place: Path, fresh_database: Path) -> Path:
    return _copy(fresh_database, place / "database")


@contextmanager
def _place() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="cp-", dir="/tmp"))
    place.chmod(0o755)
    try:
        yield place
    finally:
        _end_everything_in(place)
        shutil.rmtree(place)


def _end_everything_in(place: Path) -> None:
    names = [f"computepool-{Folder(path.parent).digest}" for path in place.rglob("computepool-control.lock")]
    marks = [f"{place}/", *names]
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        pids = [pid for pid in _all_pids() if any(mark in _command(pid) for mark in marks)]
        if not pids:
            return
        for pid in pids:
            _kill(pid)
        time.sleep(0.02)
    raise AssertionError(f"processes in {place} cannot be ended: {pids}")


def _all_pids() -> list[int]:
    users = [os_user.find_user(name) for name in (*os_user.SERVER_USER_NAMES, "nobody")]
    uids = {os.geteuid(), *(user.uid for user in users if user)}
    return [process.pid for uid in uids for process in list_processes(uid) if process.pid != os.getpid()]


def _command(pid: int) -> str:
    process = find_process(pid)
    return process.command if process else ""


def _kill(pid: int, number: int = signal.SIGKILL) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _copy(database: Path, target: Path) -> Path:
    subprocess.run(["cp", "-a", str(database), str(target)], check=True, timeout=60)
    return target


class Hub:
    """A hub process: kill it, or let it leave."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.dsn = ""

    async def hears(self, word: str) -> str:
        assert self.process.stdout is not None
        line = (await asyncio.wait_for(self.process.stdout.readline(), PATIENCE_SECONDS)).decode().strip()
        said, _, text = line.partition(" ")
        assert said == word, line
        return text

    async def leave(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        await self.hears("stopped")
        await self.ends()

    async def kill(self) -> None:
        self.process.kill()
        await self.ends()

    async def ends(self) -> None:
        await asyncio.wait_for(self.process.wait(), PATIENCE_SECONDS)


@asynccontextmanager
async def hub(
    data_dir: Path | None,
    shared: Path | None = None,
    *,
    command: tuple[str, ...] = (sys.executable,),
    script: Path = HUB_SCRIPT,
    environment: dict[str, str] | None = None,
    user: str | None = None,
    rounds: int = 1,
) -> AsyncIterator[Hub]:
    options = {"rounds": str(rounds)}
    if data_dir is not None:
        options["data_dir"] = str(data_dir)
    if shared is not None:
        options["binaries_home"] = str(shared / "programs")
    identity: dict[str, Any] = {"user": user, "group": "nogroup", "extra_groups": []} if user else {}
    process = await asyncio.create_subprocess_exec(
        *command,
        str(script),
        json.dumps(options),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=environment,
        cwd="/",
        **identity,
    )
    hub = Hub(process)
    try:
        if rounds == 1:
            hub.dsn = await hub.hears("ready")
        yield hub
    finally:
        if process.returncode is None:
            _kill(process.pid, signal.SIGCONT)
            process.kill()
            await hub.ends()
        # Closes the pipes now instead of whenever the collector runs.
        process._transport.close()  # type: ignore[attr-defined]


def server_of(data_dir: Path, shared: Path, **options: Any) -> EmbeddedPostgres:
    return EmbeddedPostgres(data_dir, binaries_home=shared / "programs", start_timeout=30, **options)


async def refusal(server: EmbeddedPostgres) -> str:
    with pytest.raises(StoreError) as caught:
        await server.start()
    return caught.value.message


async def until(condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> float:
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < seconds, "it did not happen in time"
        await asyncio.sleep(0.02)
    return time.monotonic() - started


def pid_in_file(data_dir: Path) -> int:
    return int(_pid_file(data_dir)[0] or 0)


def is_new_and_ready(data_dir: Path, old_pid: int) -> Callable[[], bool]:
    def check() -> bool:
        lines = _pid_file(data_dir)
        return lines[7].strip() == "ready" and int(lines[0]) != old_pid

    return check


def _pid_file(data_dir: Path) -> list[str]:
    """Eight lines, empty ones where the file is absent or still being written."""
    try:
        lines = (data_dir / "pgdata/postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        lines = []
    return lines + [""] * (8 - len(lines))


def living(data_dir: Path) -> list[int]:
    """Every living process of the server of this folder, zombies not counted."""
    marks = (f"-D {data_dir / 'pgdata'} ", f"computepool-{Folder(data_dir).digest}:")
    return [pid for pid in _all_pids() if any(mark in _command(pid) + " " for mark in marks)]


async def record(dsn: str, fact: int) -> None:
    connection = await asyncpg.connect(dsn, timeout=PATIENCE_SECONDS)
    await connection.execute("INSERT INTO facts VALUES ($1)", fact)
    await connection.close()


async def recorded(dsn: str) -> list[int]:
    connection = await asyncpg.connect(dsn, timeout=PATIENCE_SECONDS)
    facts = [row["fact"] for row in await connection.fetch("SELECT fact FROM facts ORDER BY fact")]
    await connection.close()
    return facts


@asynccontextmanager
async def busy_backend(dsn: str) -> AsyncIterator[int]:
    """A backend that computes and never looks up, so that the death of its postmaster does not end it."""
    connection = await asyncpg.connect(dsn)
    pid = await connection.fetchval("SELECT pg_backend_pid()")
    endless = asyncio.create_task(connection.execute("DO $$ BEGIN LOOP END LOOP; END $$"))
    try:
        await until(lambda: _command(pid).endswith(" DO"))
        yield pid
    finally:
        connection.terminate()
        await asyncio.gather(endless, return_exceptions=True)


async def test_first_start_gives_a_durable_database_and_the_last_stop_leaves_no_process(
    place: Path, shared: Path
) -> None:
    server = server_of(place / "new/database", shared)
    dsn = await server.start()
    connection = await asyncpg.connect(dsn)
    shown = {
        name: await connection.fetchval(f"SHOW {name}")
        for name in ("fsync", "synchronous_commit", "full_page_writes", "data_checksums", "server_encoding")
    }
    locale = await connection.fetchval("SELECT datlocale FROM pg_database WHERE datname = current_database()")
    is_superuser = await connection.fetchval("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")
    listens = await connection.fetchval("SHOW listen_addresses")
    await connection.close()
    dump = [str(binaries_dir() / "pg_dump"), "--schema-only", dsn]
    dumped = await asyncio.to_thread(subprocess.run, dump, capture_output=True, timeout=30)
    await server.stop()

    assert set(shown.values()) == {"on", "UTF8"}
    assert shown["server_encoding"] == "UTF8"
    assert locale == "C.UTF-8"
    assert not is_superuser
    assert listens == ""
    assert b"PostgreSQL database dump complete" in dumped.stdout, dumped.stderr
    assert living(place / "new/database") == []


async def test_two_hubs_share_one_server_and_the_last_one_out_stops_it(data_dir: Path, shared: Path) -> None:
    async with hub(data_dir, shared) as first, hub(data_dir, shared) as second:
        postmaster = pid_in_file(data_dir)
        assert first.dsn == second.dsn

        await first.leave()
        assert pid_in_file(data_dir) == postmaster
        await record(second.dsn, 1)

        await second.leave()
        assert living(data_dir) == []
    async with hub(data_dir, shared) as third:
        assert await recorded(third.dsn) == [1]


async def test_hubs_that_come_and_go_at_once_always_find_a_server(data_dir: Path, shared: Path) -> None:
    async def come_and_go(number: int) -> None:
        server = server_of(data_dir, shared)
        for step in range(6):
            dsn = await server.start()
            await record(dsn, number * 100 + step)
            await server.stop()

    async with hub(data_dir, shared, rounds=8) as other, hub(data_dir, shared, rounds=8) as another:
        await asyncio.gather(*(come_and_go(number) for number in range(3)))
        for process in (other, another):
            for _ in range(8):
                await process.hears("ready")
                await process.hears("stopped")
            await process.ends()
    assert living(data_dir) == []
    async with hub(data_dir, shared) as last:
        assert len(await recorded(last.dsn)) == 18


async def test_start_that_is_cancelled_leaves_no_server_behind(data_dir: Path, shared: Path) -> None:
    starting = asyncio.create_task(server_of(data_dir, shared).start())
    await until(lambda: bool(living(data_dir)))
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert living(data_dir) == []


async def test_next_start_attaches_with_rows_intact_when_the_hub_was_killed(data_dir: Path, shared: Path) -> None:
    async with hub(data_dir, shared) as killed:
        await record(killed.dsn, 1)
        postmaster = pid_in_file(data_dir)
        await killed.kill()
    # A session of its own: neither the hub's death nor a Ctrl-C in its terminal reaches the server.
    assert os.getsid(postmaster) == postmaster
    async with hub(data_dir, shared) as next_hub:
        assert pid_in_file(data_dir) == postmaster
        assert await recorded(next_hub.dsn) == [1]
        await next_hub.leave()
    assert living(data_dir) == []


async def test_killed_server_is_restarted_with_rows_intact_although_backends_were_busy(
    data_dir: Path, shared: Path
) -> None:
    async with hub(data_dir, shared) as watching:
        await record(watching.dsn, 1)
        postmaster = pid_in_file(data_dir)
        async with busy_backend(watching.dsn) as backend:
            _kill(postmaster)
            await until(lambda: _command(postmaster) == "")
            assert find_process(backend) is not None, "the control: a busy backend outlives its postmaster"
            assert is_locked(data_dir / "server.lock"), "and holds the server lock, so nothing starts beside it"
            took = await until(is_new_and_ready(data_dir, postmaster))
            assert find_process(backend) is None
        assert took < 6
        assert await recorded(watching.dsn) == [1]
        await watching.leave()
    assert living(data_dir) == []


async def test_next_start_recovers_when_hub_and_server_were_killed_together(data_dir: Path, shared: Path) -> None:
    async with hub(data_dir, shared) as killed:
        await record(killed.dsn, 1)
        postmaster = pid_in_file(data_dir)
        async with busy_backend(killed.dsn):
            await killed.kill()
            _kill(postmaster)
            async with hub(data_dir, shared) as next_hub:
                assert pid_in_file(data_dir) != postmaster
                assert await recorded(next_hub.dsn) == [1]


async def test_start_does_not_take_the_zombie_of_a_killed_server_for_alive(data_dir: Path, shared: Path) -> None:
    async with hub(data_dir, shared) as parent:
        await record(parent.dsn, 1)
        postmaster = await make_zombie(parent, data_dir)
        # The stopped hub still holds the watch, so nobody restarts the server; a start does it all the same.
        async with hub(data_dir, shared) as next_hub:
            assert is_zombie(postmaster)
            assert pid_in_file(data_dir) != postmaster
            assert await recorded(next_hub.dsn) == [1]


async def test_watch_does_not_take_the_zombie_of_a_killed_server_for_alive(data_dir: Path, shared: Path) -> None:
    async with hub(data_dir, shared) as watching:
        await until(lambda: is_locked(data_dir / "supervisor.lock"))
        # While the watching hub sleeps, the server dies and another hub's start becomes the parent of the next.
        await pause(watching)
        _kill(pid_in_file(data_dir))
        await until(lambda: living(data_dir) == [])
        async with hub(data_dir, shared) as parent:
            await record(parent.dsn, 1)
            postmaster = await make_zombie(parent, data_dir)
            _kill(watching.process.pid, signal.SIGCONT)
            assert await until(is_new_and_ready(data_dir, postmaster)) < 6
            assert is_zombie(postmaster)
            assert await recorded(watching.dsn) == [1]


async def make_zombie(parent: Hub, data_dir: Path) -> int:
    """Kill the server while its parent is stopped and so cannot bury it."""
    postmaster = pid_in_file(data_dir)
    await pause(parent)
    _kill(postmaster)
    await until(lambda: is_zombie(postmaster))
    os.kill(postmaster, 0)  # The control: this raises when there is no such process, and it does not.
    assert find_process(postmaster) is None
    return postmaster


async def pause(hub: Hub) -> None:
    """Each thread stops in its own time, also the one that would bury the server."""
    _kill(hub.process.pid, signal.SIGSTOP)
    threads = Path(f"/proc/{hub.process.pid}/task")
    await until(lambda: all("State:\tT" in (thread / "status").read_text() for thread in threads.iterdir()))


def is_zombie(pid: int) -> bool:
    return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()


def is_locked(path: Path) -> bool:
    """Read, not tried: trying would take the lock away from a hub for a moment."""
    return any(f":{path.stat().st_ino} " in line for line in Path("/proc/locks").read_text().splitlines())


async def test_another_hub_takes_over_the_watch_when_the_watching_one_is_killed(data_dir: Path, shared: Path) -> None:
    async with hub(data_dir, shared) as first:
        await until(lambda: is_locked(data_dir / "supervisor.lock"))
        async with hub(data_dir, shared) as second:
            await record(second.dsn, 1)
            postmaster = pid_in_file(data_dir)
            await first.kill()
            _kill(postmaster)
            assert await until(is_new_and_ready(data_dir, postmaster)) < 6
            assert await recorded(second.dsn) == [1]
            await second.leave()
    assert living(data_dir) == []


async def test_server_that_a_stranger_asked_to_end_politely_comes_back(data_dir: Path, shared: Path) -> None:
    async with hub(data_dir, shared) as watching:
        postmaster = pid_in_file(data_dir)
        connection = await asyncpg.connect(watching.dsn)
        # With a client connected this waits for ever, and new clients are refused meanwhile.
        _kill(postmaster, signal.SIGTERM)
        assert await until(is_new_and_ready(data_dir, postmaster)) < 6
        connection.terminate()
        assert await recorded(watching.dsn) == []


@pytest.mark.parametrize("name", ["sleep", "postgres"])
async def test_pid_file_that_names_a_stranger_does_not_stop_the_start(
    data_dir: Path, shared: Path, name: str
) -> None:
    user = os_user.server_user(data_dir / "pgdata")
    with subprocess.Popen([name, "60"], executable="/bin/sleep", **user.spawn_options()) as stranger:
        path = data_dir / "pgdata/postmaster.pid"
        path.write_text(f"{stranger.pid}\n{data_dir}/pgdata\n1\n5432\n{data_dir}/run\n\n  1 1\nready   \n")
        os.chown(path, user.uid, user.gid)
        program = binaries.copy_for_other_user(binaries.get_binaries(), shared / "programs").program("postgres")
        naive = subprocess.run(
            [program, "-D", str(data_dir / "pgdata")], capture_output=True, timeout=30, **user.spawn_options()
        )
        assert b"already exists" in naive.stderr, "the control: PostgreSQL by itself refuses"

        server = server_of(data_dir, shared)
        assert await recorded(await server.start()) == []
        assert stranger.poll() is None
        await server.stop()
        stranger.kill()


async def test_start_is_refused_while_unseen_processes_hold_the_server_lock(
    data_dir: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As a server in another container does, on a volume that both have mounted.
    monkeypatch.setattr(supervisor, "UNSEEN_SECONDS", 0.3)
    unseen = locks.FileLock(data_dir / "server.lock")
    assert unseen.try_exclusive()
    message = await refusal(server_of(data_dir, shared))
    assert "may run in another container" in message
    assert "need DATABASE_URL" in message
    unseen.release()


async def test_start_works_after_hubs_were_killed_at_any_moment_of_theirs(place: Path, shared: Path) -> None:
    data_dir = place / "database"
    for milliseconds in range(150, 1350, 200):
        async with hub(data_dir, shared, rounds=0) as doomed:
            await asyncio.sleep(milliseconds / 1000)
            await doomed.kill()
    async with hub(data_dir, shared) as last:
        connection = await asyncpg.connect(last.dsn)
        assert await connection.fetchval("SELECT 1") == 1
        await connection.close()
        await last.leave()
    assert living(data_dir) == []
    assert [path.name for path in data_dir.glob("pgdata*")] == ["pgdata"]


@needs_root
async def test_plain_user_gets_a_database_of_its_own_that_survives_the_same_kills(place: Path) -> None:
    site = _copy_of_what_a_plain_user_needs(place / "site")
    home = place / "home"
    home.mkdir()
    shutil.chown(home, "nobody", "nogroup")
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(site), "XDG_DATA_HOME": str(home)}
    data_dir = home / "computepool/database"

    def ask(dsn: str, statement: str) -> str:
        psql = str(site / binaries_dir().relative_to(_site_packages()) / "psql")
        answer = subprocess.run(
            [psql, dsn, "-X", "-At", "-c", statement],
            capture_output=True, text=True, timeout=30, user="nobody", group="nogroup", extra_groups=[], env={},
        )  # fmt: skip
        assert answer.returncode == 0, answer.stderr
        return answer.stdout.strip()

    def plain_hub() -> AbstractAsyncContextManager[Hub]:
        script = site / HUB_SCRIPT.name
        return hub(None, command=("/usr/bin/python3",), script=script, environment=environment, user="nobody")

    async with plain_hub() as first:
        ask(first.dsn, "CREATE TABLE facts AS SELECT 7 AS fact")
        postmaster = pid_in_file(data_dir)
        assert find_process(postmaster).uid == os_user.find_user("nobody").uid  # type: ignore[union-attr]
        await first.kill()
    async with plain_hub() as second:
        assert pid_in_file(data_dir) == postmaster
        await until(lambda: is_locked(data_dir / "supervisor.lock"))
        _kill(postmaster)
        await until(is_new_and_ready(data_dir, postmaster))
        assert ask(second.dsn, "SELECT fact FROM facts") == "7"
        assert (data_dir.stat().st_mode & 0o777) == 0o700
        await second.leave()
    assert living(data_dir) == []


def _site_packages() -> Path:
    root = binaries.get_binaries().wheel_root
    assert root is not None
    return root


def _copy_of_what_a_plain_user_needs(site: Path) -> Path:
    # The interpreter and the packages of this test may lie in a private home; the system's Python does not.
    binaries.copy_for_other_user(binaries.get_binaries(), site.parent / "programs")
    shutil.move(next((site.parent / "programs").iterdir()), site)
    (site / binaries.WHEEL / "__init__.py").touch()
    shutil.copytree(Path(computepool.__file__).parent, site / "computepool", ignore=shutil.ignore_patterns("*.pyc"))
    shutil.copy(HUB_SCRIPT, site)
    subprocess.run(["chmod", "-R", "a+rX", str(site)], check=True, timeout=30)
    return site


# A system for this process alone, in which nobody has installed PostgreSQL and /var/lib is empty.
BARE_SYSTEM = """
set -e
mount -t tmpfs tmpfs "$0"
cp -a /etc/. "$0"
sed -i '/^postgres:/d' "$0/passwd" "$0/shadow" "$0/group"
mount --bind "$0" /etc
mount -t tmpfs -o mode=755 tmpfs /var/lib
exec "$@"
"""


@needs_root
async def test_root_on_a_bare_system_gets_a_user_and_the_default_folders(place: Path) -> None:
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, timeout=10).returncode != 0:
        pytest.skip("mounting is not allowed here")
    (place / "etc").mkdir()
    command = ("unshare", "--mount", "/bin/sh", "-c", BARE_SYSTEM, str(place / "etc"), sys.executable)
    async with hub(None, command=command) as bare:
        inside = Path(f"/proc/{bare.process.pid}/root")
        data_dir = inside / "var/lib/computepool/database"
        postmaster = find_process(pid_in_file(data_dir))
        assert postmaster is not None
        try:
            assert postmaster.command.startswith("/var/lib/computepool/postgres-")
            assert f"computepool-db:x:{postmaster.uid}:" in (inside / "etc/passwd").read_text()
            connection = await asyncpg.connect(
                host=str(data_dir / "run"), user="computepool", database="computepool", timeout=PATIENCE_SECONDS
            )
            assert await connection.fetchval("SELECT 1") == 1
            await connection.close()
            await bare.leave()
            assert find_process(postmaster.pid) is None
        finally:
            if find_process(postmaster.pid) == postmaster:
                _kill(postmaster.pid)


@needs_root
async def test_other_local_users_get_in_neither_by_socket_nor_by_port(data_dir: Path, shared: Path) -> None:
    port = free_port()
    server = server_of(data_dir, shared, port=port)
    dsn = await server.start()
    assert await recorded(dsn) == []

    path = str(data_dir / f"run/.s.PGSQL.{port}")
    knock = f"import socket; socket.socket(socket.AF_UNIX).connect({path!r})"
    answer = subprocess.run(
        ["/usr/bin/python3", "-c", knock],
        capture_output=True,
        user="nobody",
        group="nogroup",
        extra_groups=[],
        cwd="/",
    )
    assert b"PermissionError" in answer.stderr
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(f"postgresql://computepool@127.0.0.1:{port}/computepool", password="guessed")
    with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError):
        await asyncpg.connect(f"postgresql://postgres@127.0.0.1:{port}/postgres", password="guessed")
    await server.stop()


async def test_long_or_odd_path_still_gives_a_dsn_that_works(place: Path, fresh_database: Path, shared: Path) -> None:
    for name in ("x" * 120, 'it\'s, "odd" äö %41'):
        data_dir = _copy(fresh_database, place / name)
        server = server_of(data_dir, shared)
        dsn = await server.start()
        assert await recorded(dsn) == []
        sockets = Folder(data_dir).socket_folder(os_user.server_user(data_dir / "pgdata"))
        assert sockets.parent == Path("/tmp")
        assert sockets.stat().st_mode & 0o077 == 0
        await server.stop()
        sockets.rmdir()


@needs_root
async def test_socket_folder_that_somebody_else_made_first_is_refused(
    place: Path, fresh_database: Path, shared: Path
) -> None:
    data_dir = _copy(fresh_database, place / ("x" * 120))
    sockets = Folder(data_dir).socket_folder(os_user.server_user(data_dir / "pgdata"))
    sockets.mkdir()
    shutil.chown(sockets, "nobody")
    try:
        assert f"{sockets} should be the private folder" in await refusal(server_of(data_dir, shared))
    finally:
        sockets.rmdir()


async def test_taken_port_is_refused_with_its_number(data_dir: Path, shared: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = await refusal(server_of(data_dir, shared, port=port))
    assert f"Port {port} on 127.0.0.1 is taken" in message
    assert "choose another port" in message
    assert living(data_dir) == []


async def test_port_changes_after_a_crash_but_not_under_another_hub(data_dir: Path, shared: Path) -> None:
    port = free_port()
    async with hub(data_dir, shared) as first:
        message = await refusal(server_of(data_dir, shared, port=port))
        assert f"without port {port}" in message
        assert "same port" in message
        await record(first.dsn, 1)
        await first.kill()
    server = server_of(data_dir, shared, port=port)
    dsn = await server.start()
    assert f"127.0.0.1:{port}" in dsn
    assert await recorded(dsn) == [1]
    await server.stop()


@contextmanager
def small_disk(place: Path, mebibytes: int) -> Iterator[Path]:
    disk = place / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m,mode=755", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, timeout=10).returncode != 0:
        pytest.skip("mounting is not allowed here")
    try:
        yield disk
    finally:
        _end_everything_in(place)
        # Lazily: a test that failed still has its lock files open.
        subprocess.run(["umount", "--lazy", str(disk)], check=True, timeout=10)


def fill(disk: Path) -> Path:
    """Take the very last byte."""
    ballast = disk / "ballast"
    with open(ballast, "ab", buffering=0) as file:
        for size in (1 << 20, 4096):
            with contextlib.suppress(OSError):
                while file.write(b"x" * size):
                    pass
    return ballast


@needs_root
async def test_first_start_on_a_full_disk_is_refused_and_leaves_nothing_half_made(place: Path, shared: Path) -> None:
    with small_disk(place, 12) as disk:
        message = await refusal(server_of(disk / "database", shared))
        assert f"The disk that holds {disk}/database is full" in message
        assert "Free some space" in message
        assert [path.name for path in (disk / "database").glob("pgdata*")] == []


@needs_root
async def test_full_disk_is_named_at_start_and_outlived_by_the_watch(
    place: Path, fresh_database: Path, shared: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with small_disk(place, 150) as disk:
        data_dir = _copy(fresh_database, disk / "database")
        server = server_of(data_dir, shared)
        dsn = await server.start()
        await record(dsn, 1)
        watching = asyncio.create_task(server.watch())
        postmaster = pid_in_file(data_dir)
        _kill(postmaster)
        # Nothing is awaited until the disk is full, so the watch cannot be quicker. What the dead server leaves
        # is removed first: its pid file would give back just the block that the next one needs.
        while living(data_dir):
            time.sleep(0.02)
        (data_dir / "pgdata/postmaster.pid").unlink()
        ballast = fill(disk)
        await until(lambda: "is full" in caplog.text)
        assert "is full" in await refusal(server_of(data_dir, shared))
        ballast.unlink()
        await until(is_new_and_ready(data_dir, postmaster))
        assert await recorded(dsn) == [1]
        await server.stop()
        await asyncio.wait_for(watching, PATIENCE_SECONDS)
        assert living(data_dir) == []


async def test_log_is_cut_and_the_server_goes_on_writing_to_it(
    data_dir: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder, "LOG_BYTES_MAX", 2000)
    monkeypatch.setattr(supervisor, "LOG_LOOK_SECONDS", 0.1)
    server = server_of(data_dir, shared)
    connection = await asyncpg.connect(await server.start())
    watching = asyncio.create_task(server.watch())
    for number in range(100):
        with pytest.raises(asyncpg.UndefinedTableError):
            await connection.execute(f"SELECT * FROM absent_{number}")
    await until(lambda: (data_dir / "postgres.log.1").exists() and (data_dir / "postgres.log").stat().st_size < 2000)
    with pytest.raises(asyncpg.UndefinedTableError):
        await connection.execute("SELECT * FROM absent_at_last")
    assert (data_dir / "postgres.log").read_text().count("absent_at_last") == 2
    assert (data_dir / "postgres.log.1").stat().st_size == 2000
    await connection.close()
    await server.stop()
    await asyncio.wait_for(watching, PATIENCE_SECONDS)


async def test_folder_with_other_files_is_refused_and_left_alone(place: Path, shared: Path) -> None:
    (place / "letters").mkdir()
    (place / "letters/dear.txt").write_text("Dear")
    message = await refusal(server_of(place / "letters", shared))
    assert "holds files that are not of an embedded database (dear.txt)" in message
    assert "Choose an empty or new data directory" in message
    assert os.listdir(place / "letters") == ["dear.txt"]


async def test_database_that_we_did_not_create_is_refused(place: Path, shared: Path) -> None:
    (place / "foreign").mkdir()
    (place / "foreign/PG_VERSION").write_text("18\n")
    message = await refusal(server_of(place / "foreign", shared))
    assert "PostgreSQL database that ComputePool did not create" in message
    assert "set DATABASE_URL" in message


async def test_file_in_place_of_the_folder_is_refused(place: Path, shared: Path) -> None:
    (place / "file").touch()
    assert "is a file, but the embedded database needs a folder" in await refusal(server_of(place / "file", shared))


@needs_root
async def test_folder_of_another_user_is_refused(data_dir: Path, shared: Path) -> None:
    shutil.chown(data_dir / "pgdata", "nobody")
    assert "belongs to the user 'nobody'" in await refusal(server_of(data_dir, shared))
    shutil.chown(data_dir, "nobody")
    message = await refusal(server_of(data_dir, shared))
    assert f"{data_dir} belongs to the user 'nobody', but this hub runs as 'root'" in message
    assert "Run the hub as the user it belongs to" in message


@needs_root
async def test_folder_that_the_servers_user_cannot_reach_is_refused_with_the_folder_in_the_way(
    place: Path, shared: Path
) -> None:
    (place / "private").mkdir(mode=0o700)
    message = await refusal(server_of(place / "private/deep/database", shared))
    assert f"cannot pass through {place}/private," in message
    assert f"chmod o+x {place}/private" in message


@pytest.mark.parametrize(
    ("version", "wrong", "remedy"),
    [
        ("99\n", "written by PostgreSQL 99, which is newer", "pip install --upgrade"),
        ("9\n", "written by PostgreSQL 9, and this hub brings only", "pg_dump"),
        ("", "is not a PostgreSQL data directory", "Restore the folder from a backup"),
    ],
)
async def test_data_of_another_major_version_is_refused(
    data_dir: Path, shared: Path, version: str, wrong: str, remedy: str
) -> None:
    (data_dir / "pgdata/PG_VERSION").write_text(version)
    message = await refusal(server_of(data_dir, shared))
    assert wrong in message
    assert remedy in message


@pytest.mark.skipif(not list(binaries._in_system()), reason="this system brings no PostgreSQL of its own")
async def test_system_programs_serve_where_the_wheel_is_absent(
    place: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binaries, "WHEEL", "a_wheel_that_is_not_installed")
    server = server_of(place / "database", shared)
    connection = await asyncpg.connect(await server.start())
    assert await connection.fetchval("SHOW server_encoding") == "UTF8"
    assert await connection.fetchval("SHOW synchronous_commit") == "on"
    await connection.close()
    await server.stop()


def test_absent_programs_are_named_with_the_command_that_brings_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"postgres", "initdb", "pg_dump"} <= set(os.listdir(binaries_dir()))
    monkeypatch.setattr(binaries, "WHEEL", "a_wheel_that_is_not_installed")
    monkeypatch.setattr(binaries, "SYSTEM_PATTERNS", ())
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(StoreError, match=r"pip install 'computepool\[hub\]', or set DATABASE_URL"):
        binaries_dir()


async def test_signals_reach_only_processes_of_the_server(data_dir: Path) -> None:
    owner = os_user.server_user(data_dir / "pgdata")
    ours = cluster.Cluster(Folder(data_dir), owner, binaries.get_binaries(), None)
    with subprocess.Popen(["sleep", "60"]) as stranger:
        ours.signal(stranger.pid, signal.SIGKILL)
        assert find_process(stranger.pid) is not None
        stranger.kill()


def test_default_folder_follows_the_user_and_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_data_dir() == Path("/var/lib/computepool/database")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("HOME", "/home/ada")
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert default_data_dir() == Path("/home/ada/.local/share/computepool/database")
    monkeypatch.setenv("XDG_DATA_HOME", "/mnt/ada")
    assert default_data_dir() == Path("/mnt/ada/computepool/database")
