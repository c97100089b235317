"""A hub as a user runs it: a process of its own, killed and restarted at will."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx

from tests.support.postgres import through_pooler

# Below the range from which the kernel serves calls that go out: none of those takes a port before its hub does.
PORTS = range(15_000, 32_000)
_candidates = itertools.cycle(PORTS)
_claims: list[socket.socket] = []


def free_port() -> int:
    """A port for this test run alone. Hubs share their ports with other hubs, so that two runs beside each other
    would not even notice; the claim is a name that one process can have and that ends with it."""
    for port in itertools.islice(_candidates, len(PORTS)):
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0computepool-test-port-{port}")
        except OSError:
            claim.close()
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                claim.close()
                continue
        _claims.append(claim)
        return port
    raise AssertionError("every port is taken")


# What every account of a test's hub gets: more credits than any test spends.
PLENTY_MICROCREDITS = 10_000_000 * 1_000_000


# For tests of silence, so that they take seconds.
SHORT_LEASE_SECONDS = 3.0


class HubProcess:
    """Leases are longer than any pause of a busy machine: nobody loses one who does not mean to."""

    def __init__(
        self,
        *,
        dsn: str | None,
        data_dir: Path,
        port: int | None = None,
        beat_seconds: float = 1.0,
        lease_seconds: float = 30.0,
        program: tuple[str, ...] = ("-m", "computepool.hub"),
        **settings: object,
    ) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log_path = data_dir / f"hub-{self.port}.log"
        self._program = program
        self._env = {
            **{k: v for k, v in os.environ.items() if not k.startswith("COMPUTEPOOL_")},
            "PORT": str(self.port),
            "COMPUTEPOOL_HUB_DATA_DIR": str(data_dir),
            "COMPUTEPOOL_HUB_DEMO": "true",
            "COMPUTEPOOL_HUB_BEAT_SECONDS": str(beat_seconds),
            "COMPUTEPOOL_HUB_LEASE_SECONDS": str(lease_seconds),
            "COMPUTEPOOL_HUB_REAP_GRACE_SECONDS": "1",
            "COMPUTEPOOL_HUB_CALLS_PER_MINUTE_MAX": "1000000",
            "COMPUTEPOOL_HUB_WELCOME_MICROCREDITS": str(PLENTY_MICROCREDITS),
            **{f"COMPUTEPOOL_HUB_{k.upper()}": str(v) for k, v in settings.items()},
        }
        self._env.pop("DATABASE_URL", None)
        if dsn is not None:
            self._env["DATABASE_URL"] = through_pooler(dsn)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *, wait: bool = True) -> HubProcess:
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self._program], env=self._env, stdout=log, stderr=log, start_new_session=True
            )
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self, seconds: float = 100.0) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process is not None and self.process.poll() is not None:
                raise AssertionError(f"the hub ended:\n{self.log_text()}")
            try:
                if httpx.get(f"{self.url}/readyz", timeout=10).status_code == 200:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.05)
        raise AssertionError(f"the hub did not become ready:\n{self.log_text()}")

    def kill(self) -> None:
        """kill -9, as a power cut would."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def stop(self, seconds: float = 60.0) -> int:
        if self.process is None or self.process.poll() is not None:
            return self.process.returncode if self.process else 0
        self.process.terminate()
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the hub did not end within {seconds} s of SIGTERM:\n{self.log_text()}") from None

    def log_text(self) -> str:
        return self.log_path.read_text()[-6_000:]
