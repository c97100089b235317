"""Agents, SDK clients and machines that host networks, for the stories."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from computepool.sdk import Client
from tests.support.agent_process import AgentProcess
from tests.support.postgres import TestServer

if TYPE_CHECKING:
    from tests.support.network_grid import NetworkGrid


@pytest.fixture
def start_agent(hub, owner, tmp_path: Path) -> Iterator[Callable[..., AgentProcess]]:
    """Starts real agents at the test's hub; nothing of them is left afterwards."""
    started: list[AgentProcess] = []

    def start(name: str = "agent", **settings: object) -> AgentProcess:
        hub_url = str(settings.pop("hub_url", hub.url))
        options = {"profile": "cpu-only", "cpu_slots": 2, **settings}
        agent = AgentProcess(hub_url=hub_url, owner=owner, root=tmp_path, name=name, **options)
        started.append(agent)
        return agent.start()

    yield start
    for agent in started:
        agent.end()


@pytest.fixture
def client(hub, submitter) -> Iterator[Client]:
    client = Client(hub_url=hub.url, key=submitter.key)
    yield client
    client.close()


@pytest.fixture(scope="session")
def shared_grid(postgres: TestServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NetworkGrid]:
    """Starting machines takes longer than most of what is tried on them: four for all tests that need no others."""
    # Tensors take seconds to import, and most stories need none.
    from tests.support.network_grid import open_grid

    dsn, root = asyncio.run(postgres.create_database()), tmp_path_factory.mktemp("networks")
    with asyncio.Runner() as runner:
        opening = open_grid(dsn=dsn, root=root)
        grid = runner.run(opening.__aenter__())
        runner.run(grid.start_agents(4))
        yield grid
        runner.run(opening.__aexit__(None, None, None))


@pytest.fixture
async def grid(shared_grid: NetworkGrid) -> NetworkGrid:
    await shared_grid.mend()
    return shared_grid
