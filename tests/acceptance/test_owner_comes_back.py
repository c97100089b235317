"""The owner sits down at the machine they lend: it is theirs within two seconds, each time, and the grid is told.

`make bench/agent` measures the two seconds over 50 returns. Beside a whole test suite a single return may take
longer here; the middle one may not, and none may take as long as a job's ordinary grace of half a minute.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator

import pytest

from computepool.node.comfort.linux import LinuxReader
from tests.support.owner_seat import JOB, Chair, measure_freeing, wait_for_jobs

pytestmark = pytest.mark.alone

RETURNS = 5
FREED_SECONDS = 2.0
LATEST_SECONDS = 20.0
# Twice as long as a machine takes: whoever is there after that stays.
DEAF_SECONDS = 4.5


@pytest.fixture
def chair(tmp_path) -> Chair:
    return Chair(tmp_path)


def test_the_machine_is_the_owners_within_two_seconds_each_time_they_come_back(start_agent, client, chair):
    agent = start_agent(cpu_slots=2, stop_grace_seconds=30, **chair.settings)
    taken, jobs = [], []
    for _ in range(RETURNS):
        # A new job each time: a slice does not come back at once to the machine that it had to leave.
        jobs.append(client.submit(script=JOB, slices=2))
        wait_for_jobs(agent, 2)
        time.sleep(random.Random(len(taken)).uniform(0, 0.3))
        chair.sit_down()
        taken.append(measure_freeing(agent, seconds_max=LATEST_SECONDS))
        assert taken[-1] is not None, agent.log_text()
        jobs[-1].cancel()
        chair.leave()
    assert statistics.median(taken) < FREED_SECONDS, taken
    causes = [attempt.cause for job in jobs for slice_ in job.slices() for attempt in slice_.attempts]
    # A completion may come after the cancel; most come before.
    assert set(causes) <= {"owner_returned", "cancelled"}
    assert "owner_returned" in causes


def test_nothing_is_taken_while_the_owner_is_there_and_all_is_done_afterwards(start_agent, client, chair):
    chair.sit_down()
    agent = start_agent(cpu_slots=1, **chair.settings)
    job = client.submit(command=["true"])
    deadline = time.monotonic() + 60
    while "agent_started" not in agent.log_text() or "owner_returned" not in agent.log_text():
        assert time.monotonic() < deadline, agent.log_text()
        time.sleep(0.05)
    time.sleep(1.0)
    assert job.refresh().state == "queued"
    chair.leave()
    assert job.wait(timeout=60).state == "succeeded"


def test_an_agent_with_a_deaf_watch_is_caught(start_agent, client, chair):
    """The control: the same measure finds that the machine is not freed."""
    agent = start_agent(cpu_slots=1, program=("-m", "tests.support.agent_with_deaf_watch"), **chair.settings)
    client.submit(script=JOB)
    wait_for_jobs(agent, 1)
    chair.sit_down()
    assert measure_freeing(agent, seconds_max=DEAF_SECONDS) is None


@pytest.fixture
def display() -> Iterator[str]:
    """A screen that nobody sees."""
    read, write = os.pipe()
    server = subprocess.Popen(
        # Without -noreset it begins anew, and hangs up on whoever calls, whenever its last client has left.
        ["Xvfb", "-noreset", "-displayfd", str(write), "-screen", "0", "64x64x8", "-nolisten", "tcp"],
        pass_fds=[write],
        stderr=subprocess.DEVNULL,
    )
    os.close(write)
    with os.fdopen(read) as told:
        number = told.readline().strip()
    yield f":{number}"
    server.send_signal(signal.SIGTERM)
    server.wait(10)


def press(display: str) -> None:
    subprocess.run(["xdotool", "key", "a"], env={**os.environ, "DISPLAY": display}, check=True, timeout=20)


def test_a_key_on_a_real_x_server_frees_the_machine(start_agent, client, display, tmp_path, monkeypatch):
    rules = tmp_path / "comfort.toml"
    rules.write_text("idle_minutes = 0.02\n")
    monkeypatch.setenv("DISPLAY", display)
    press(display)
    agent = start_agent(cpu_slots=1, comfort_file=str(rules))
    client.submit(script=JOB)
    wait_for_jobs(agent, 1)
    press(display)
    assert measure_freeing(agent, seconds_max=LATEST_SECONDS) is not None, agent.log_text()


def test_the_reader_survives_the_end_of_its_x_server_and_says_why_it_sees_nothing(display):
    reader = LinuxReader({"DISPLAY": display, "HOME": "/nonexistent"})
    press(display)
    seen = reader.look_at_seat()
    assert seen.words == "by the X server"
    assert seen.idle_seconds is not None
    assert 0 <= seen.idle_seconds < 60
    gone = LinuxReader({"DISPLAY": ":4711", "HOME": "/nonexistent"}).look_at_seat()
    if gone.idle_seconds is None:
        assert "no X server at :4711" in gone.words
