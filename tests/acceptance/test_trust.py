"""A fleet in which one node lies: real hub, real agents of many owners, real sandboxes."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from computepool.core.trust.standing import COOL_OFF
from computepool.sdk import Client
from tests.support import nvml_stand_in
from tests.support.agent_process import AgentProcess
from tests.support.people import Person, sign_in_operator, sign_up

pytestmark = pytest.mark.alone

SCRIPT = """
import hashlib, os
index = os.environ["COMPUTEPOOL_SLICE_INDEX"]
with open(os.path.join(os.environ["COMPUTEPOOL_OUTPUT_DIR"], "digest.txt"), "w") as file:
    file.write(hashlib.sha256(index.encode()).hexdigest())
"""
CHANCE = """
import os
with open(os.path.join(os.environ["COMPUTEPOOL_OUTPUT_DIR"], "dice"), "wb") as file:
    file.write(os.urandom(16))
"""
# The last digits differ from run to run, as those of sums in any order do.
NOISE = """
import os, random
with open(os.path.join(os.environ["COMPUTEPOOL_OUTPUT_DIR"], "sum.txt"), "w") as file:
    file.write(repr(0.3 + random.random() * 1e-9))
"""
SAME = """
import sys
one, other = (float(open(f"{folder}/sum.txt").read()) for folder in ("one", "other"))
sys.exit(0 if abs(one - other) < 1e-6 else 1)
"""
FORGER = ("-m", "tests.support.agent_that_forges")
SLICES = 24


class Fleet:
    def __init__(self, hub: Any, root: Path, dsn: str) -> None:
        self.hub, self.root, self.dsn = hub, root, dsn
        self.operator = sign_in_operator(hub.url, hub.log_path.read_text())
        self.agents: dict[str, AgentProcess] = {}
        self.owners: dict[str, Person] = {}

    def start(self, name: str, **options: Any) -> None:
        """Each has an owner of its own."""
        self.owners[name] = sign_up(self.hub.url, name)
        self.agents[name] = AgentProcess(
            hub_url=self.hub.url,
            owner=self.owners[name],
            root=self.root,
            name=name,
            **{"profile": "cpu-only", "cpu_slots": 1, **options},
        ).start()

    def get(self, path: str, who: Person) -> Any:
        answer = httpx.get(f"{self.hub.url}{path}", headers=who.headers, timeout=30)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def node_of(self, name: str) -> Any:
        found = self.get("/v1/nodes", self.owners[name])["nodes"]
        return found[0] if found and found[0]["last_seen_at"] else None

    def trust_of(self, name: str) -> Any:
        return self.get(f"/v1/nodes/{self.node_of(name)['id']}/trust", self.owners[name])

    def vouch(self, name: str) -> None:
        path = f"/v1/operator/nodes/{self.node_of(name)['id']}/vouch"
        answer = httpx.put(f"{self.hub.url}{path}", headers=self.operator.headers, json={"vouched": True}, timeout=30)
        assert answer.status_code == 200, answer.text

    def earned(self, name: str) -> int:
        credits = self.get("/v1/credits", self.owners[name])
        return credits["pending_microcredits"] + credits["earned_microcredits"]

    def let_time_pass(self, time_: timedelta) -> None:
        """As far as nodes that are out can see."""

        async def turn() -> None:
            conn = await asyncpg.connect(self.dsn)
            await conn.execute("UPDATE node_trust SET since = since - $1::interval", time_)
            await conn.close()

        asyncio.run(turn())

    def await_all(self, seconds: float = 120.0) -> None:
        until(lambda: all(self.node_of(name) for name in self.agents), "all agents to be here", seconds)

    def end(self) -> None:
        for agent in self.agents.values():
            agent.end()


def until(check: Callable[[], Any], what: str, seconds: float = 120.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.3)
    return found


@pytest.fixture
def fleet(start_hub, dsn: str, tmp_path: Path) -> Iterator[Fleet]:
    hub = start_hub(
        program=("-m", "tests.support.small_challenges"),
        lease_seconds="10",
        hardware_proof="true",
        challenge_seconds="0.000001",
    )
    fleet = Fleet(hub, tmp_path, dsn)
    yield fleet
    fleet.end()


def make_boaster(tmp_path: Path) -> dict[str, Any]:
    """Its driver says RTX 4090, and it computes like the processor that it is."""
    cards = tmp_path / "cards"
    cards.write_text(f"driver|550.54.14\ncuda|12040\ncard|NVIDIA GeForce RTX 4090|GPU-1|{24 << 30}|0\n")
    env = nvml_stand_in.make_env(nvml_stand_in.build(tmp_path), cards)
    return {"program": ("-m", "tests.support.agent_with_played_card"), "env": env, "profile": "", "cpu_slots": ""}


@pytest.mark.timeout(290)
def test_a_fleet_in_which_some_lie(fleet, tmp_path):
    """Who forges and who boasts is found out, unpaid and out; who crashes is not; and there is a way back."""
    vouched = [f"vouched-{number}" for number in range(4)]
    honest = [f"honest-{number}" for number in range(3)]
    flag = tmp_path / "forges"
    flag.touch()
    for name in (*vouched, *honest, "crasher"):
        fleet.start(name)
    fleet.start("forger", program=FORGER, env={"FORGES_WHILE": str(flag)})
    fleet.start("boaster", **make_boaster(tmp_path))
    fleet.await_all()
    for name in vouched:
        fleet.vouch(name)
    submitter = sign_up(fleet.hub.url, "submitter")
    with Client(hub_url=fleet.hub.url, key=submitter.key) as client:
        see_the_forger_caught(fleet, client, submitter, vouched, honest, tmp_path)
        see_the_boaster_refused(fleet)
        see_nobody_blamed_for_chance(fleet, client, vouched, honest)
        see_the_way_back(fleet, client, flag)


def see_the_forger_caught(
    fleet: Fleet, client: Client, submitter: Person, vouched: list[str], honest: list[str], tmp_path: Path
) -> None:
    job = client.submit(script=SCRIPT, slices=SLICES, compare="exact:anywhere", wall_seconds=60)
    # An honest machine that merely goes down in the middle of it.
    until(lambda: job.refresh().counts.succeeded >= 3, "the first results")
    fleet.agents["crasher"].kill(with_runners=True)
    assert job.wait(timeout=200).state == "succeeded", fleet.hub.log_path.read_text()[-4_000:]
    job.download(tmp_path / "files")
    found = sorted((tmp_path / "files").rglob("digest.txt"))
    assert len(found) == SLICES
    expected = {hashlib.sha256(str(index).encode()).hexdigest() for index in range(SLICES)}
    assert {path.read_text() for path in found} == expected
    validation = fleet.get(f"/v1/jobs/{job.id}/validation", submitter)
    assert validation["counts"]["replaced"] >= 1
    assert validation["check_count"] >= SLICES // 3
    assert fleet.trust_of("forger")["standing"] in ("suspect", "bugged")
    until(lambda: fleet.earned("forger") == 0, "the forger's pay to be taken back", 30)
    for name in (*vouched, *honest, "crasher"):
        assert fleet.trust_of(name)["standing"] == "clear", name
    assert any(fleet.earned(name) > 0 for name in honest)


def see_the_boaster_refused(fleet: Fleet) -> None:
    slots = {slot["name"]: slot for slot in fleet.node_of("boaster")["slots"]}
    assert slots["gpu:0"]["proof"]["claimed_tier"] == "rtx-4090"
    assert slots["gpu:0"]["tier"] == "unknown"


def see_nobody_blamed_for_chance(fleet: Fleet, client: Client, vouched: list[str], honest: list[str]) -> None:
    """A job that comes out differently each time."""
    job = client.submit(script=CHANCE, slices=2, compare="exact:anywhere", verify="quorum", wall_seconds=60)
    assert job.wait(timeout=120).state == "succeeded"
    told = job.why().validation
    assert told is not None
    assert told.nondeterministic
    for name in (*vouched, *honest):
        assert fleet.trust_of(name)["standing"] == "clear", name


def see_the_way_back(fleet: Fleet, client: Client, flag: Path) -> None:
    until(lambda: offer_work(fleet, client) and fleet.trust_of("forger")["bugged_count"] > 0, "it to be bugged")
    flag.unlink()
    fleet.let_time_pass(COOL_OFF)
    until(lambda: fleet.trust_of("forger")["standing"] == "clear", "it to be back", 150)
    assert fleet.earned("forger") == 0, "the way back is unpaid"


def offer_work(fleet: Fleet, client: Client) -> bool:
    """Some for everybody, until the forger has taken its share."""
    if fleet.trust_of("forger")["standing"] in ("clear", "suspect"):
        client.submit(script=SCRIPT, slices=6, compare="exact:anywhere", wall_seconds=60).wait(timeout=100)
    return True


@pytest.mark.timeout(290)
def test_a_command_of_the_submitters_says_what_agrees(fleet, tmp_path):
    """No two results are the same bytes, so that every check needs it; and a forged one is caught by it."""
    vouched = [f"vouched-{number}" for number in range(4)]
    flag = tmp_path / "forges"
    flag.touch()
    for name in vouched:
        fleet.start(name)
    fleet.start("forger", program=FORGER, env={"FORGES_WHILE": str(flag)})
    fleet.await_all()
    for name in vouched:
        fleet.vouch(name)
    (tmp_path / "same.py").write_text(SAME)
    submitter = sign_up(fleet.hub.url, "submitter")
    with Client(hub_url=fleet.hub.url, key=submitter.key) as client:
        while fleet.trust_of("forger")["standing"] == "clear":
            job = client.submit(
                script=NOISE,
                files=[tmp_path / "same.py"],
                slices=5,
                compare="command:python3 same.py",
                wall_seconds=60,
            )
            assert job.wait(timeout=200).state == "succeeded", fleet.hub.log_path.read_text()[-4_000:]
        job.download(tmp_path / "files")
    found = sorted((tmp_path / "files").rglob("sum.txt"))
    assert len(found) == 5
    assert {abs(float(path.read_text()) - 0.3) < 1e-6 for path in found} == {True}
    counts = fleet.get(f"/v1/jobs/{job.id}/validation", submitter)["counts"]
    assert counts["replaced"] >= 1
    until(lambda: fleet.earned("forger") == 0, "the forger's pay to be taken back", 30)
    for name in vouched:
        assert fleet.trust_of(name)["standing"] == "clear", name
