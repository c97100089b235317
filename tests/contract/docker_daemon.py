"""A dockerd for the length of a test session, started by hand: without bridges, rules or anything that stays."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from pathlib import Path

SOCKET = "/var/run/docker.sock"
START_SECONDS_MAX = 60.0


class DockerDaemon:
    def __enter__(self) -> DockerDaemon:
        self._process: subprocess.Popen[bytes] | None = None
        if not is_answering():
            # A short path: the daemon's own sockets lie below it.
            self._folder = Path(tempfile.mkdtemp(prefix="cp-docker-", dir="/tmp"))
            self._process = start(self._folder)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def start(folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                *("dockerd", "--iptables=false", "--ip6tables=false", "--ip-masq=false", "--bridge=none"),
                *("--data-root", str(folder / "data"), "--exec-root", str(folder / "exec")),
                *("--pidfile", str(folder / "pid"), "--host", f"unix://{SOCKET}"),
                *("--exec-opt", "native.cgroupdriver=cgroupfs"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_SECONDS_MAX
    while not is_answering():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise AssertionError(f"dockerd does not start: {(folder / 'log').read_text()[-2000:]}")
        time.sleep(0.1)
    return process


def is_answering() -> bool:
    done = subprocess.run(["docker", "version"], capture_output=True, timeout=30, check=False)
    return done.returncode == 0
