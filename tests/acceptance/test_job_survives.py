"""Agents are killed, stopped, restarted and cut off; jobs survive it."""

from __future__ import annotations

import signal
import time

import pytest

from tests.support.hub_process import SHORT_LEASE_SECONDS
from tests.support.owner_seat import count_running

WAIT_SECONDS = 60.0

SLEEPS = "import time\nprint('begun', flush=True)\ntime.sleep({seconds})\nprint('done', flush=True)\n"


def wait_until(check, *, seconds: float = WAIT_SECONDS, what: str) -> float:
    started = time.monotonic()
    while not check():
        assert time.monotonic() - started < seconds, f"waited {seconds} s for {what}"
        time.sleep(0.05)
    return time.monotonic() - started


def attempts_of(job, index=0):
    return job.get_slice(index).attempts


def wait_running(job):
    wait_until(lambda: attempts_of(job) and attempts_of(job)[-1].state == "running", what="the job to run")


def node_named(client_of_owner, name):
    return next(node for node in client_of_owner.nodes() if node.name == name)


def wait_online(client_of_owner, name):
    def is_online():
        return any(node.name == name and node.online for node in client_of_owner.nodes())

    wait_until(is_online, what=f"{name} to be online")


@pytest.fixture
def owners(hub, owner):
    from computepool.sdk import Client

    client = Client(hub_url=hub.url, key=owner.key)
    yield client
    client.close()


@pytest.mark.short_leases
def test_a_killed_machines_slice_runs_elsewhere_within_the_lease_and_ten_seconds(start_agent, client, owners):
    first = start_agent("first", cpu_slots=1)
    job = client.submit(script=SLEEPS.format(seconds=4))
    wait_running(job)
    start_agent("second", cpu_slots=1)
    wait_online(owners, "second")
    first.kill(with_runners=True)
    took = wait_until(lambda: len(attempts_of(job)) == 2, what="a second attempt")
    assert took < SHORT_LEASE_SECONDS + 10
    assert job.wait(timeout=60).state == "succeeded"
    lost, accepted = attempts_of(job)
    assert (lost.state, lost.cause) == ("lost", "node_vanished")
    assert accepted.node_id == node_named(owners, "second").id


def test_a_killed_machine_that_comes_back_gives_its_work_away_at_once(start_hub, dsn, tmp_path):
    """With a long lease, so that only the new boot can be the reason."""
    from computepool.sdk import Client
    from tests.support.agent_process import AgentProcess
    from tests.support.people import sign_up

    hub = start_hub(lease_seconds=120, beat_seconds=1)
    owner, submitter = sign_up(hub.url), sign_up(hub.url)
    agent = AgentProcess(hub_url=hub.url, owner=owner, root=tmp_path, profile="cpu-only", cpu_slots=1)
    client = Client(hub_url=hub.url, key=submitter.key)
    try:
        agent.start()
        job = client.submit(script=SLEEPS.format(seconds=3))
        wait_running(job)
        agent.kill(with_runners=True)
        agent.start()
        wait_until(lambda: len(attempts_of(job)) == 2, what="a second attempt")
        assert job.wait(timeout=60).state == "succeeded"
        assert attempts_of(job)[0].cause == "node_vanished"
    finally:
        agent.end()
        client.close()


def test_an_agent_killed_alone_is_restarted_and_adopts_its_running_job(start_agent, client):
    agent = start_agent(cpu_slots=1)
    job = client.submit(script=SLEEPS.format(seconds=6))
    wait_running(job)
    agent.kill()
    assert agent.list_runners()
    agent.start()
    assert job.wait(timeout=60).state == "succeeded"
    assert len(attempts_of(job)) == 1
    assert "".join(job.logs(follow=False)) == "begun\ndone\n"


@pytest.mark.short_leases
def test_a_machine_asleep_past_its_lease_delivers_late_if_nobody_was_faster(start_agent, client):
    agent = start_agent(cpu_slots=1)
    job = client.submit(script=SLEEPS.format(seconds=2))
    wait_running(job)
    agent.send(signal.SIGSTOP, with_runners=True)
    wait_until(lambda: attempts_of(job)[0].state == "lost", what="the lease to end")
    agent.send(signal.SIGCONT, with_runners=True)
    assert job.wait(timeout=60).state == "succeeded"
    accepted = [attempt for attempt in attempts_of(job) if attempt.state == "succeeded"]
    assert len(accepted) == 1


@pytest.mark.short_leases
def test_a_machine_asleep_past_its_lease_is_too_late_if_somebody_was_faster(start_agent, client, owners):
    sleeper = start_agent("sleeper", cpu_slots=1)
    job = client.submit(script=SLEEPS.format(seconds=1.5))
    wait_running(job)
    sleeper.send(signal.SIGSTOP, with_runners=True)
    start_agent("quick", cpu_slots=1)
    assert job.wait(timeout=60).state == "succeeded"
    sleeper.send(signal.SIGCONT, with_runners=True)
    wait_until(lambda: not sleeper.list_runners(), what="the sleeper to let go")
    late, accepted = attempts_of(job)
    assert accepted.node_id == node_named(owners, "quick").id
    assert late.state in ("lost", "failed")
    follower = client.submit(command=["true"], slices=2)
    assert follower.wait(timeout=60).state == "succeeded"


def test_a_job_goes_on_while_the_hub_is_away_and_reports_later(start_agent, hub, client):
    agent = start_agent(cpu_slots=1)
    job = client.submit(script=SLEEPS.format(seconds=3))
    wait_running(job)
    hub.kill()
    wait_until(lambda: not count_running(agent), what="the job to end while nobody can be told")
    hub.start()
    assert job.wait(timeout=60).state == "succeeded"
    assert len(attempts_of(job)) == 1


def test_an_agent_drains_on_sigterm(start_agent, client):
    agent = start_agent(cpu_slots=1)
    job = client.submit(script=SLEEPS.format(seconds=3))
    wait_running(job)
    waiting = client.submit(command=["true"])
    assert agent.stop(seconds=40) == 0
    assert job.wait(timeout=60).state == "succeeded"
    assert waiting.refresh().state == "queued"


def test_a_short_polling_agent_gets_work_too(start_agent, client):
    start_agent(poll="short", cpu_slots=1)
    job = client.submit(command=["true"])
    assert job.wait(timeout=60).state == "succeeded"
