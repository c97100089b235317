"""One PostgreSQL cluster and its processes: create it, launch it, find it, signal it.

Single steps only, none of which waits for the server; when to take which is decided by the supervisor.
Callers hold the control lock for everything that changes something.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from computepool import entropy
from computepool.core.errors import StoreError
from computepool.hub.store.embedded import os_user, settings
from computepool.hub.store.embedded.binaries import Binaries, binaries_for, copy_for_other_user, get_binaries
from computepool.hub.store.embedded.folder import Folder, make_private_folder, refuse_unreachable
from computepool.hub.store.embedded.locks import FileLock
from computepool.hub.store.embedded.os_user import OsUser
from computepool.hub.store.embedded.processes import Process, find_process, find_working_folder, list_processes
from computepool.hub.store.embedded.trouble import DATABASE_URL_HINT, explained, from_output

CREATE_TIMEOUT_SECONDS = 120
NEW_PREFIX = "pgdata.new-"


@dataclass(frozen=True, slots=True)
class Postmaster:
    """The server's first process, as its own pid file describes it."""

    pid: int
    # Names the socket file.
    port: int
    # None when it does not listen on TCP.
    tcp_port: int | None
    # PostgreSQL's words: starting, ready, standby, stopping; empty for a moment after the launch.
    status: str


@dataclass(frozen=True, slots=True)
class Launch:
    process: subprocess.Popen[bytes]
    # Where in the log this server's words begin, in bytes.
    log_offset: int


@dataclass(frozen=True, slots=True)
class Cluster:
    folder: Folder
    user: OsUser
    binaries: Binaries
    port: int | None

    def create(self) -> None:
        """A new cluster with our role and database. It appears in its place whole or not at all."""
        folder = self.folder.path
        with explained(folder):
            # What a killed hub left half-made. An initdb of it may still be writing: each try has its own name.
            for half_made in folder.glob(f"{NEW_PREFIX}*"):
                shutil.rmtree(half_made, ignore_errors=True)
            fresh = folder / f"{NEW_PREFIX}{entropy.new_secret(6)}"
            make_private_folder(fresh, self.user)
        try:
            self._fill(fresh)
            with explained(folder):
                os.rename(fresh, self.folder.pgdata)
                _sync_folder(folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)

    def _fill(self, fresh: Path) -> None:
        self._run("initdb", *settings.initdb_words(fresh, major=self.binaries.major))
        password = entropy.new_secret()
        # Single-user mode needs no socket and no login, so the cluster is never reachable half-made.
        single = ["--single", "-D", str(fresh), "-c", "exit_on_error=on", "template1"]
        self._run("postgres", *single, statements=settings.first_statements(password))
        with explained(self.folder.path):
            self.folder.write("password", password)

    def _run(self, program: str, *words: str, statements: str = "") -> None:
        try:
            answer = subprocess.run(
                [self.binaries.program(program), *words],
                input=statements,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=CREATE_TIMEOUT_SECONDS,
                **self.user.spawn_options(),
            )
        except subprocess.TimeoutExpired as error:
            raise StoreError(
                f"PostgreSQL's {program} did not finish within {CREATE_TIMEOUT_SECONDS} s in {self.folder.path}. "
                f"Check that disk, choose another data directory, {DATABASE_URL_HINT}."
            ) from error
        except OSError as error:
            raise StoreError(
                f"PostgreSQL's {program} cannot be run from {self.binaries.bin_dir}: {error.strerror}. "
                f"Run: pip install --force-reinstall 'computepool[hub]', {DATABASE_URL_HINT}."
            ) from error
        if answer.returncode != 0:
            raise from_output(answer.stdout, doing="creating the database", folder=self.folder.path)

    def launch(self) -> Launch | None:
        """Start the server, or None while any process of the one before still lives.

        The server gets a session of its own and nothing of the hub's terminal, so it outlives the hub. It
        inherits the server lock: the kernel frees that lock when the last of the server's processes is gone,
        and no sooner, so two servers never write one folder, whatever process ids say.
        """
        lock = FileLock(self.folder.server_lock)
        if not lock.try_exclusive():
            return None
        try:
            with explained(self.folder.path):
                self._prepare()
                return self._spawn(lock)
        finally:
            lock.release()

    def _prepare(self) -> None:
        make_private_folder(self.socket_folder, self.user)
        self._remove_stale_pid_files()
        names = {self.user.name, os_user.hub_user().name}
        texts = {
            "postgresql.conf": settings.server_settings(
                cluster_name=self.name,
                folder=self.folder.path,
                socket_folder=self.socket_folder,
                port=self.port,
                major=self.binaries.major,
                has_custom=(self.folder.path / "custom.conf").exists(),
            ),
            "pg_hba.conf": settings.login_rules(port=self.port),
            "pg_ident.conf": settings.login_names(names),
        }
        for name, text in texts.items():
            self.folder.write(name, text, reader=self.user)
        self.folder.bound_log()

    def _remove_stale_pid_files(self) -> None:
        # PostgreSQL itself asks only whether the process id exists, so it would take a zombie, or a stranger
        # with a reused id, for a living server and refuse to start. Whoever holds the server lock knows better.
        if self._may_run_by_hand(_first_number(self.folder.pgdata / "postmaster.pid")):
            return
        (self.folder.pgdata / "postmaster.pid").unlink(missing_ok=True)
        for path in self.socket_folder.glob(".s.PGSQL.*"):
            path.unlink(missing_ok=True)

    def _may_run_by_hand(self, pid: int) -> bool:
        """Whether this could be a server that somebody started without us, and so without the server lock.

        It is left to PostgreSQL's own checks. The working folder tells it from a server of other data.
        """
        process = find_process(pid) if pid else None
        if process is None or process.uid != self.user.uid or "postgres" not in process.command:
            return False
        return find_working_folder(pid) in (None, self.folder.pgdata)

    def _spawn(self, lock: FileLock) -> Launch:
        words = ["-D", str(self.folder.pgdata), "-c", f"config_file={self.folder.path / 'postgresql.conf'}"]
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        with open(os.open(self.folder.log, flags, 0o600), "ab") as log:
            offset = log.tell()
            process = subprocess.Popen(
                [self.binaries.program("postgres"), *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=[lock.hand_over()],
                **self.user.spawn_options(),
            )
        # A child that nobody waits for stays a zombie. The thread waits for as long as this hub lives; after
        # that the system's first process does.
        threading.Thread(target=process.wait, name="postmaster-reaper", daemon=True).start()
        return Launch(process, offset)

    def find_postmaster(self) -> Postmaster | None:
        """The living server of this folder, or None. Neither zombies nor strangers count."""
        try:
            lines = (self.folder.pgdata / "postmaster.pid").read_text(errors="replace").splitlines()
        except OSError:
            return None
        pid = _number(lines[0]) if lines else 0
        process = find_process(pid) if pid else None
        if process is None or not self._is_ours(process):
            return None
        lines += [""] * (8 - len(lines))
        port = _number(lines[3])
        return Postmaster(pid, port, port if lines[5].strip() else None, lines[7].strip())

    def list_leftovers(self) -> list[Process]:
        """Living processes of this cluster, whether or not they still have their postmaster."""
        return [process for process in list_processes(self.user.uid) if self._is_ours(process)]

    def _is_ours(self, process: Process) -> bool:
        # The postmaster keeps its command line; its children show a title that begins with the cluster's name.
        # The user is compared too: anybody can give a process a name, and root signals what it finds here.
        words = f" {process.command} "
        is_named = f" -D {self.folder.pgdata} " in words or f" postgres: {self.name}: " in words
        return is_named and process.uid == self.user.uid

    def signal(self, pid: int, number: signal.Signals) -> None:
        process = find_process(pid)
        if process is not None and self._is_ours(process):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                return

    def log_since(self, offset: int, *, byte_count: int = 65536) -> str:
        try:
            with open(self.folder.log, "rb") as log:
                log.seek(offset)
                return log.read(byte_count).decode(errors="replace")
        except OSError:
            return ""

    def dsn(self, postmaster: Postmaster) -> str:
        role, database = settings.ROLE, settings.DATABASE
        if self.port is None:
            host = quote(str(self.socket_folder), safe="/")
            return f"postgresql://{role}@/{database}?host={host}&port={postmaster.port}"
        with explained(self.folder.password):
            password = self.folder.password.read_text(encoding="utf-8").strip()
        return f"postgresql://{role}:{password}@127.0.0.1:{postmaster.port}/{database}"

    @property
    def name(self) -> str:
        return f"computepool-{self.folder.digest}"

    @property
    def socket_folder(self) -> Path:
        return self.folder.socket_folder(self.user)


def open_cluster(folder: Folder, *, port: int | None, binaries_home: Path) -> Cluster:
    """The cluster of this folder, created if it is new, refused if this hub cannot run it."""
    with explained(folder.path):
        user = os_user.server_user(folder.pgdata)
        is_new = not folder.pgdata.exists()
    binaries = get_binaries() if is_new else binaries_for(_major_of(folder.pgdata), folder.pgdata)
    refuse_unreachable(user, folder.path)
    if user.uid != os.geteuid():
        binaries = copy_for_other_user(binaries, binaries_home)
        refuse_unreachable(user, binaries.bin_dir)
    cluster = Cluster(folder, user, binaries, port)
    if is_new:
        cluster.create()
    return cluster


def _major_of(pgdata: Path) -> int:
    major = _first_number(pgdata / "PG_VERSION")
    if major:
        return major
    raise StoreError(
        f"{pgdata} is not a PostgreSQL data directory: its PG_VERSION is missing or unreadable. Restore the folder "
        f"from a backup, or move it away to begin with an empty database, {DATABASE_URL_HINT}."
    )


def _first_number(path: Path) -> int:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return 0
    return _number(lines[0]) if lines else 0


def _number(text: str) -> int:
    # int() also takes signs and other digits; a process id of -1 would mean everybody.
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() else 0


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
