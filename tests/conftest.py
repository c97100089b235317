"""Fixtures shared by all tests that need real parts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from computepool.wire.grpc_poller import keep_poller
from tests.support.authorities import read_authorities_once
from tests.support.hub_process import SHORT_LEASE_SECONDS, HubProcess
from tests.support.people import Person, sign_in_operator, sign_up
from tests.support.postgres import TestServer, memory_folder

# The same cases in every run, and none of them fails because the machine is slow.
settings.register_profile(
    "suite", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")

TESTS = Path(__file__).parent
# Stories wait for real processes on a machine that others share: one that fails is told once more, and the summary
# names it. A safety claim is not: what is lost or paid twice once in ten runs is lost (docs/decisions/0017).
STORIES = ("acceptance", "web")
SAFETY = {
    "test_authorisation_matrix",
    "test_books",
    "test_checkpoints",
    "test_credits",
    "test_disputes",
    "test_hardware_is_proved",
    "test_ledger_under_load",
    "test_networks_audit",
    "test_networks_fencing",
    "test_new_nodes_are_limited",
    "test_no_double_allocation",
    "test_node_tokens",
    "test_nothing_acknowledged_is_lost",
    "test_rpc_authorisation_matrix",
    "test_three_hubs",
}


def is_story(path: Path) -> bool:
    return path.relative_to(TESTS).parts[0] in STORIES and path.stem not in SAFETY


@pytest.fixture(scope="session", autouse=True)
def poller() -> None:
    """Tests open and close many channels, each in a loop of its own."""
    keep_poller()


@pytest.fixture(scope="session", autouse=True)
def authorities() -> Iterator[None]:
    with read_authorities_once():
        yield


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestServer]:
    import tempfile

    from computepool.hub.store.embedded import EmbeddedPostgres

    with tempfile.TemporaryDirectory(prefix="cp-test-", dir=memory_folder()) as folder:
        Path(folder).chmod(0o755)
        server = EmbeddedPostgres(Path(folder) / "database")
        found = TestServer(asyncio.run(server.start()))
        asyncio.run(found.forget_power_cuts())
        asyncio.run(found.create_template())
        yield found
        asyncio.run(server.stop())


@pytest.fixture
def dsn(server_dsn: str) -> str:
    """A fresh database with the newest schema."""
    return server_dsn


@pytest.fixture
async def server_dsn(postgres: TestServer) -> AsyncIterator[str]:
    """The same, always on the server itself."""
    dsn = await postgres.create_database()
    yield dsn
    await postgres.drop_database(dsn)


@pytest.fixture
def start_hub(dsn: str, tmp_path: Path) -> Iterator[Callable[..., HubProcess]]:
    """Starts hub processes on the test's database; whatever is left of them is killed at the end."""
    started: list[HubProcess] = []

    def start(**options: object) -> HubProcess:
        hub = HubProcess(dsn=dsn, data_dir=tmp_path, **options)  # type: ignore[arg-type]
        started.append(hub)
        return hub.start()

    yield start
    for hub in started:
        hub.kill()


# Rooms of which every test computes, or measures, so much that nothing may run beside it.
ROOMS_ALONE = ("web",)


def pytest_configure(config: pytest.Config) -> None:
    # The width of whoever runs the tests is not theirs: side by side they would be given one, alone none.
    os.environ.pop("COLUMNS", None)
    config.addinivalue_line("markers", "alone: computes or measures so much that nothing may run beside it")
    config.addinivalue_line("markers", "short_leases: the test's hub notices within seconds that a node is silent")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.relative_to(TESTS).parts[0] in ROOMS_ALONE:
            item.add_marker("alone")
        if is_story(item.path):
            item.add_marker(pytest.mark.flaky(reruns=1, reruns_delay=2))


@pytest.fixture
def hub(start_hub: Callable[..., HubProcess], request: pytest.FixtureRequest) -> HubProcess:
    if request.node.get_closest_marker("short_leases"):
        return start_hub(lease_seconds=SHORT_LEASE_SECONDS)
    return start_hub()


@pytest.fixture(scope="session")
def shared_hub(postgres: TestServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    """One hub for tests that neither kill it nor mind what others have submitted."""
    dsn = asyncio.run(postgres.create_database())
    hub = HubProcess(dsn=dsn, data_dir=tmp_path_factory.mktemp("shared")).start()
    yield hub
    hub.kill()


@pytest.fixture
def submitter(hub: HubProcess) -> Person:
    return sign_up(hub.url, "submitter")


@pytest.fixture
def owner(hub: HubProcess) -> Person:
    return sign_up(hub.url, "owner")


@pytest.fixture
def operator(hub: HubProcess) -> Person:
    return sign_in_operator(hub.url, hub.log_path.read_text())
