"""Agents and SDK clients for the stories."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from computepool.sdk import Client
from tests.support.agent_process import AgentProcess


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
