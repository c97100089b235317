"""One bench per test and backend, and a machine with things worth stealing on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from computepool.node.sandbox.backends import NAMES, get_backend
from computepool.node.sandbox.port import Backend, Report
from tests.contract.docker_daemon import DockerDaemon
from tests.contract.sandbox_lab import Lab, Scene
from tests.contract.scene import make_scene


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--every-backend",
        action="store_true",
        help="run the whole contract on container engines too, not only the part that tells engines apart",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "engines: what container engines pass in every run of the suite")


ROOM = Path(__file__).parent


def find_backend(item: pytest.Item) -> str | None:
    return getattr(item, "callspec", None) and item.callspec.params.get("backend")  # type: ignore[attr-defined]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Engines take half a second to start, so that by default they pass the tests that are marked `engines` alone.

    Side by side with others, but never with its own: one process starts an engine's daemon, and looks at what the
    engine has left.
    """
    kept, left = [], []
    for item in items:
        if ROOM not in item.path.parents:
            kept.append(item)
            continue
        name = find_backend(item)
        item.add_marker(pytest.mark.xdist_group(name or "none"))
        is_needed = name in (None, "bubblewrap") or item.get_closest_marker("engines") is not None
        (kept if is_needed or config.getoption("--every-backend") else left).append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = kept


@pytest.fixture(scope="session")
def docker_daemon() -> Iterator[None]:
    """The machine's own daemon if one runs, else one of the test's own."""
    with DockerDaemon():
        yield


@pytest.fixture(scope="session")
def probe() -> Callable[[Backend], Report]:
    """Once for each backend: engines take longer to tell what they are than most of what is tried on them."""
    told: dict[str, Report] = {}

    def look(backend: Backend) -> Report:
        if backend.name not in told:
            told[backend.name] = backend.probe()
        return told[backend.name]

    return look


@pytest.fixture(params=NAMES)
def backend(request: pytest.FixtureRequest, probe: Callable[[Backend], Report]) -> Backend:
    """Every backend the distribution knows. One that cannot run here fails its tests: silence would be a lie."""
    if request.param == "docker":
        request.getfixturevalue("docker_daemon")
    found = get_backend(request.param)
    report = probe(found)
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
    with make_scene() as made:
        yield made
