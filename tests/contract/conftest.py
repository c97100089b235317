"""One bench per test and backend, and a machine with things worth stealing on it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from computepool import entropy
from computepool.node.sandbox.backends import NAMES, get_backend
from computepool.node.sandbox.port import Backend
from tests.contract.docker_daemon import DockerDaemon
from tests.contract.sandbox_lab import PYTHON, Lab, Scene


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--every-backend",
        action="store_true",
        help="run the whole contract on container engines too, not only the part that tells engines apart",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Engines take half a second to start, so that by default they pass the tests that are marked `engines` alone."""
    if config.getoption("--every-backend"):
        return
    kept, left = [], []
    for item in items:
        name = getattr(item, "callspec", None) and item.callspec.params.get("backend")  # type: ignore[attr-defined]
        is_needed = name in (None, "bubblewrap") or item.get_closest_marker("engines") is not None
        (kept if is_needed else left).append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = kept


@pytest.fixture(scope="session")
def docker_daemon() -> Iterator[None]:
    """The machine's own daemon if one runs, else one of the test's own."""
    with DockerDaemon():
        yield


@pytest.fixture(params=NAMES)
def backend(request: pytest.FixtureRequest) -> Backend:
    """Every backend the distribution knows. One that cannot run here fails its tests: silence would be a lie."""
    if request.param == "docker":
        request.getfixturevalue("docker_daemon")
    found = get_backend(request.param)
    report = found.probe()
    if not report.usable:
        pytest.fail(f"{found.name} cannot be tested on this machine: {'; '.join(report.reasons)}")
    return found


@pytest.fixture
def lab(backend: Backend, tmp_path: Path) -> Iterator[Lab]:
    bench = Lab(tmp_path, backend)
    yield bench
    bench.close()


@pytest.fixture(scope="session")
def scene() -> Iterator[Scene]:
    folder = Path(tempfile.mkdtemp(prefix="computepool-scene-"))
    folder.chmod(0o777)
    secret_path = folder / "home" / ".ssh" / "id_ed25519"
    secret_path.parent.mkdir(parents=True, mode=0o700)
    secret = entropy.new_secret()
    secret_path.write_text(secret)
    word, token, name = (entropy.new_secret(12) for _ in range(3))
    os.environ["COMPUTEPOOL_NODE_TOKEN"] = token
    bystander = subprocess.Popen([PYTHON, "-c", "import time; time.sleep(600)", word], stdin=subprocess.DEVNULL)
    descriptor = os.open(secret_path, os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    with (
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        udp.bind(("127.0.0.1", 0))
        udp.settimeout(1.0)
        abstract.bind("\0" + name)
        abstract.listen()
        port = tcp.getsockname()[1]
        yield Scene(folder, secret_path, secret, token, word, bystander, port, udp, name, descriptor)
    os.close(descriptor)
    bystander.kill()
    bystander.wait()
    del os.environ["COMPUTEPOOL_NODE_TOKEN"]
    shutil.rmtree(folder)
