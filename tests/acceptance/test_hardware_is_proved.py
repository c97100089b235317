"""A machine whose driver says RTX 4090 and which computes like a processor: real hub and agent, NVML played."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from computepool.sdk import Client
from tests.support import nvml_stand_in
from tests.support.agent_process import AgentProcess
from tests.support.people import Person, sign_up

pytestmark = pytest.mark.alone

# How long a slot is left alone on average, in these stories.
AGAIN_SECONDS = 6.0
# Of one round, once the card has become slower.
SLOW_SECONDS = 8.0


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


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Once it is written, the card is slower than it was."""
    path = tmp_path / "slow"
    monkeypatch.setenv("PLAYED_CARD_SLOW", str(path))
    return path


@pytest.fixture
def lent_card(card, slow, start_hub, tmp_path) -> Iterator[Callable[..., tuple[str, Person, AgentProcess]]]:
    """A hub that asks again every few seconds, and a played card at it that is proven."""
    started: list[AgentProcess] = []

    def lend(*bugs: str) -> tuple[str, Person, AgentProcess]:
        hub = start_hub(
            program=("-m", "tests.support.small_challenges", "fair", *bugs),
            hardware_proof="true",
            challenge_seconds="0.000001",
            challenge_again_seconds=AGAIN_SECONDS,
        )
        owner = sign_up(hub.url, "owner")
        agent = AgentProcess(
            hub_url=hub.url, owner=owner, root=tmp_path, program=("-m", "tests.support.agent_with_played_card")
        ).start()
        started.append(agent)
        wait_for_node(hub.url, owner, agent)
        return hub.url, owner, agent

    yield lend
    for agent in started:
        agent.end()


def read_card(url: str, owner: Person) -> dict[str, Any]:
    [node] = httpx.get(f"{url}/v1/nodes", headers=owner.headers, timeout=20).json()["nodes"]
    return next(slot for slot in node["slots"] if slot["name"] == "gpu:0")


def wait_for_card(
    url: str, owner: Person, agent: AgentProcess, is_it: Callable[[dict[str, Any]], bool], *, seconds: float = 120.0
) -> dict[str, Any]:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = read_card(url, owner)
        if is_it(found):
            return found
        time.sleep(0.3)
    raise AssertionError(f"{found}\n{agent.log_text()}")


@pytest.mark.timeout(400)
def test_a_card_that_became_slower_is_asked_again_unforeseen_and_loses_its_tier(lent_card, slow):
    url, owner, agent = lent_card()
    card = read_card(url, owner)
    assert (card["tier"], card["proof"]["state"]) == ("rtx-4090", "proven")
    # As fast as it was: it is asked, and nothing changes but the day of the proof.
    first = card["proof"]["decided_at"]
    card = wait_for_card(url, owner, agent, lambda card: card["proof"]["decided_at"] != first)
    assert (card["tier"], card["proof"]["state"]) == ("rtx-4090", "proven")
    slow.write_text(str(SLOW_SECONDS))
    card = wait_for_card(url, owner, agent, lambda card: card["tier"] != "rtx-4090", seconds=180)
    assert (card["tier"], card["proof"]["state"]) == ("unknown", "slower")
    assert "asked_for_proof" in agent.log_text()
    submitter = sign_up(url, "submitter")
    with Client(hub_url=url, key=submitter.key) as client:
        assert client.submit(command=["true"]).wait(timeout=90).state == "succeeded"


@pytest.mark.timeout(280)
def test_control_where_nobody_is_asked_again_a_card_that_became_slower_keeps_its_tier(lent_card, slow):
    url, owner, _ = lent_card("never_again")
    card = read_card(url, owner)
    assert (card["tier"], card["proof"]["state"]) == ("rtx-4090", "proven")
    slow.write_text(str(SLOW_SECONDS))
    # Long enough for several sittings, had there been any.
    time.sleep(5 * AGAIN_SECONDS)
    assert read_card(url, owner) == card
