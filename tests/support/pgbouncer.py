"""A real PgBouncer before the test's PostgreSQL, set so that whoever keeps something on a server is found out.

Few servers are shared by all, and they take turns: two transactions in a row of one client land on two servers.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit, urlunsplit

START_SECONDS = 60.0
# A role that owns a database and may do nothing else.
PLAIN_ROLE = "plain"
# Whom PgBouncer lets in. The server behind it trusts whoever may enter its socket's folder.
ROLES = ("computepool", PLAIN_ROLE)


class PgBouncer:
    def __init__(self, server_dsn: str, *, pool_mode: str = "transaction", servers_max: int = 4) -> None:
        where = parse_qs(urlsplit(server_dsn).query)
        self._server_socket = Path(where["host"][0])
        self._server_port = where["port"][0]
        self._pool_mode = pool_mode
        self._servers_max = servers_max
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Lock()
        self._is_stopped = False
        self.folder = Path(tempfile.mkdtemp(prefix="cp-pgb-"))
        self.port = 6432

    def start(self) -> PgBouncer:
        program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
        if program is None:
            raise AssertionError("pgbouncer is not installed; `make setup` installs it (Debian package pgbouncer)")
        owner = self._server_socket.stat()
        self._write("users.txt", "".join(f'"{role}" ""\n' for role in ROLES))
        config = self._write("pgbouncer.ini", self._settings())
        os.chmod(self.folder, 0o755)
        options: dict[str, Any] = {}
        if owner.st_uid != os.geteuid():
            # PgBouncer refuses to be root, and only the server's own user may enter the server's folder.
            os.chown(self.folder, owner.st_uid, owner.st_gid)
            options = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []}
        self._run(program, config, options)
        self._wait_ready()
        threading.Thread(target=self._supervise, args=(program, config, options), daemon=True).start()
        return self

    def _run(self, program: str, config: Path, options: dict[str, Any]) -> None:
        with (self.folder / "output.log").open("ab") as log:
            self._process = subprocess.Popen([program, "-q", str(config)], stdout=log, stderr=log, **options)

    def _supervise(self, program: str, config: Path, options: dict[str, Any]) -> None:
        """Starts it again, as systemd would. 1.18 ends itself now and then ("bad client state") when a query is
        cancelled at the moment in which its server goes."""
        while True:
            assert self._process is not None
            self._process.wait()
            with self._stopping:
                if self._is_stopped:
                    return
                time.sleep(0.1)
                self._run(program, config, options)

    def stop(self) -> None:
        with self._stopping:
            self._is_stopped = True
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def through(self, dsn: str) -> str:
        """The same database and role, by way of this PgBouncer."""
        query = f"host={quote(str(self.folder), safe='/')}&port={self.port}"
        return urlunsplit(urlsplit(dsn)._replace(query=query))

    def log_text(self) -> str:
        return (self.folder / "pgbouncer.log").read_text()[-6_000:]

    def _settings(self) -> str:
        lines = [
            "[databases]",
            f"* = host={self._server_socket} port={self._server_port}",
            "[pgbouncer]",
            f"pool_mode = {self._pool_mode}",
            f"default_pool_size = {self._servers_max}",
            "server_round_robin = 1",
            "listen_addr =",
            f"listen_port = {self.port}",
            f"unix_socket_dir = {self.folder}",
            "auth_type = trust",
            f"auth_file = {self.folder / 'users.txt'}",
            f"logfile = {self.folder / 'pgbouncer.log'}",
            f"pidfile = {self.folder / 'pgbouncer.pid'}",
            "max_client_conn = 1000",
            # A test that drops its database must not make the next one wait for PgBouncer's patience.
            "server_login_retry = 1",
            "query_wait_timeout = 20",
        ]
        return "\n".join(lines) + "\n"

    def _write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o644)
        return path

    def _wait_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            with socket.socket(socket.AF_UNIX) as probe:
                try:
                    probe.connect(str(self.folder / f".s.PGSQL.{self.port}"))
                    return
                except OSError:
                    time.sleep(0.02)
        output = (self.folder / "output.log").read_text()
        raise AssertionError(f"pgbouncer did not start:\n{output}")
