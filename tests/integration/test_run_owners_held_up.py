"""An owner that was held up for longer than its lease: while nobody has taken the run, it goes on."""

from __future__ import annotations

import pytest

from computepool.core.networks.run import RunState
from computepool.hub.services.owners import RunOwner
from tests.support.run_lab import OwnerAtWork, RunLab, open_run_lab


@pytest.fixture
async def lab(dsn, tmp_path):
    async with open_run_lab(dsn, tmp_path) as lab:
        yield lab


async def hold_up(lab: RunLab) -> tuple[OwnerAtWork, object]:
    """A run of two seats at work, whose owner has not renewed its lease."""
    by = await lab.spine.sign_up(credits=100_000)
    for _ in range(2):
        await lab.enrol_pnode()
    view = await lab.start(by)
    at = lab.open_owner()
    await at.look()
    await lab.set_going(at, view.row.id)
    await lab.let_owner_lease_pass(view.row.id)
    return at, view.row.id


async def test_an_owner_that_is_asked_for_a_run_of_its_own_keeps_it_as_it_is(lab):
    at, run_id = await hold_up(lab)
    attempt_id = at.run(run_id).taken_seats[0].attempt_id
    # As a host does that opens its session anew, or resolves.
    await at.owner.claim(run_id)
    await at.owner.admit(attempt_id)
    run = at.run(run_id)
    assert (run.state, run.epoch) == (RunState.RUNNING, 1)
    assert all(seat.joined for seat in run.taken_seats)
    assert at.post.closed == []
    assert await lab.spine.fetch_value("SELECT owner_until > clock_timestamp() FROM runs WHERE id = $1", run_id)


async def test_a_run_that_is_begun_anew_closes_the_sessions_that_knew_it_before(lab):
    at, run_id = await hold_up(lab)
    seats = at.run(run_id).taken_seats
    await at.owner._claim()
    run = at.run(run_id)
    assert run.epoch == 2
    assert not any(seat.joined for seat in run.taken_seats)
    assert sorted(at.post.closed) == sorted(seat.attempt_id for seat in seats)


async def test_control_without_that_the_hosts_are_left_behind(lab, monkeypatch):
    at, run_id = await hold_up(lab)
    monkeypatch.setattr(RunOwner, "_forget", lambda *_: None)
    await at.owner._claim()
    assert not any(seat.joined for seat in at.run(run_id).taken_seats)
    assert at.post.closed == [], "their sessions are open, so they see no cause to come again"
