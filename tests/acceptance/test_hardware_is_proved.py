"""A machine whose driver says RTX 4090 and which computes like a processor: real hub and agent, NVML played."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from computepool.sdk import Client
from tests.support import nvml_stand_in
from tests.support.agent_process import AgentProcess
from tests.support.people import Person, sign_up

pytestmark = pytest.mark.alone


@pytest.fixture
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every process of this test finds this card."""
    (tmp_path / "cards").write_text(
        f"driver|550.54.14\ncuda|12040\ncard|NVIDIA GeForce RTX 4090|GPU-1|{24 << 30}|0\n"
    )
    for name, value in nvml_stand_in.make_env(nvml_stand_in.build(tmp_path), tmp_path / "cards").items():
        monkeypatch.setenv(name, value)


def wait_for_node(url: str, owner: Person, agent: AgentProcess, *, seconds: float = 180.0) -> dict[str, Any]:
    """Until the agent asks for work: then it has shown what it can."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = httpx.get(f"{url}/v1/nodes", headers=owner.headers, timeout=20).json()["nodes"]
        if found and found[0]["last_seen_at"] is not None:
            return found[0]
        assert agent.process is not None
        assert agent.process.poll() is None, agent.log_text()
        time.sleep(0.2)
    raise AssertionError(agent.log_text())


@pytest.mark.timeout(280)
@pytest.mark.usefixtures("card")
def test_a_claimed_4090_that_computes_like_something_else_is_refused_its_tier(start_hub, tmp_path):
    hub = start_hub(
        program=("-m", "tests.support.small_challenges"),
        hardware_proof="true",
        challenge_seconds="0.000001",
    )
    owner, submitter = sign_up(hub.url, "owner"), sign_up(hub.url, "submitter")
    agent = AgentProcess(
        hub_url=hub.url, owner=owner, root=tmp_path, program=("-m", "tests.support.agent_with_played_card")
    ).start()
    try:
        node = wait_for_node(hub.url, owner, agent)
        slots = {slot["name"]: slot for slot in node["slots"]}
        proof = slots["gpu:0"]["proof"]
        assert proof["claimed_tier"] == "rtx-4090"
        assert proof["state"] in ("slower", "unsure")
        assert slots["gpu:0"]["tier"] == "unknown"
        assert "a rtx-4090 shows" in proof["reason"]
        assert node["hardware"]["gpus"][0]["tflops"] > 0
        assert "tier_not_granted" in agent.log_text()
        # The processor claims what it can, and is a node of its own right.
        assert slots["cpu:0"]["proof"]["state"] != "forged"
        with Client(hub_url=hub.url, key=submitter.key) as client:
            assert client.submit(command=["true"]).wait(timeout=60).state == "succeeded"
    finally:
        agent.end()
