"""Machines die and owners come back in the middle of a training run; it goes on elsewhere from what was saved.

The short form of `make soak/checkpoints`, which has 20 kills and 50 returns.
"""

from __future__ import annotations

import pytest

from tests.support.checkpoint_story import (
    check_books,
    choose_seconds,
    find_honest_seconds,
    find_loss,
    kill_holder,
    list_attempts,
    read_result,
    submit,
    train_at_home,
    wait_for,
)
from tests.support.forged_checkpoints import FORGERIES, send_forgeries
from tests.support.owner_seat import Chair

EVERY_SECONDS = 2
# An upload beside a whole test suite takes its time; the soak holds the interval itself.
LOST_SECONDS_MAX = EVERY_SECONDS + 15.0


@pytest.fixture
def lease_seconds() -> float:
    """Longer than a busy test machine keeps an agent from its sign of life."""
    return 6.0


@pytest.fixture
def hub(start_hub, lease_seconds):
    return start_hub(lease_seconds=lease_seconds)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return train_at_home(tmp_path_factory.mktemp("home"))


async def test_a_training_run_whose_machines_are_killed_goes_on_elsewhere_and_ends_with_the_same_weights(
    start_agent, client, dsn, tmp_path, undisturbed
):
    agents = [start_agent("first", cpu_slots=1)]
    job = submit(client, every_seconds=EVERY_SECONDS, fast_from=3)
    losses = []
    for number in (1, 2):
        # Somebody to go on with.
        agents.append(start_agent(f"next-{number}", cpu_slots=1))
        killed, times = kill_holder(
            job, agents, number=number, seconds=choose_seconds(number, 1.0), is_saved=number == 1
        )
        agents.remove(killed)
        losses.append(find_loss(job, number, times))
    assert job.wait(timeout=180).state == "succeeded"
    assert read_result(job, tmp_path / "result") == undisturbed
    assert losses[0].saved_seconds > 0
    assert max(loss.lost_seconds for loss in losses) <= LOST_SECONDS_MAX, losses
    assert len({attempt.node_id for attempt in list_attempts(job)}) == 3
    await check_books(dsn, job.id)


# Nobody is lost here.
@pytest.mark.parametrize("lease_seconds", [60.0])
async def test_an_owner_who_comes_back_gets_the_machine_and_is_paid_to_what_was_saved(
    start_agent, client, hub, dsn, tmp_path, undisturbed
):
    chair = Chair(tmp_path)
    agent = start_agent("owned", cpu_slots=1, **chair.settings)
    job = submit(client, every_seconds=EVERY_SECONDS, fast_from=2)
    wait_for(lambda: list_attempts(job) and list_attempts(job)[-1].saved_at is not None, "a checkpoint")
    shown = list_attempts(job)[-1]
    assert shown.at_risk_seconds is not None
    assert job.refresh().at_risk_since == shown.saved_at or list_attempts(job)[-1].saved_at != shown.saved_at
    # Claimed by the machine itself, and refused.
    assert len(await send_forgeries(hub.url, agent, shown.id)) == len(FORGERIES)
    chair.sit_down()
    start_agent("another", cpu_slots=1)
    assert job.wait(timeout=180).state == "succeeded"
    left, *others = list_attempts(job)
    assert (left.cause, others[-1].state) == ("owner_returned", "succeeded")
    assert left.saved_seconds >= shown.saved_seconds
    assert left.saved_seconds == find_honest_seconds(agent, left.id)
    assert left.charged_microcredits
    assert read_result(job, tmp_path / "result") == undisturbed
    assert job.get_slice(0).progress is not None
    await check_books(dsn, job.id)


def test_control_an_agent_that_does_not_restore_is_caught(start_agent, client):
    program = ("-m", "tests.support.agent_that_forgets")
    agents = [start_agent("first", cpu_slots=1)]
    job = submit(client, every_seconds=EVERY_SECONDS, fast_from=9)
    killed, times = kill_holder(job, agents, number=1, seconds=0.0, is_saved=True)
    agents.remove(killed)
    start_agent("forgetful", cpu_slots=1, program=program)
    with pytest.raises(AssertionError, match="what was saved is not there"):
        find_loss(job, 1, times)
    job.cancel()
