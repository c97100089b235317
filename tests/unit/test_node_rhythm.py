"""A runner counts by the lease that its job came with, from its first moment on, whatever the hub said before."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from uuid import uuid4

import pytest

from computepool.node.rhythm import TOUCH_SECONDS_MAX, TOUCHES_PER_LEASE, Rhythm
from computepool.node.state_dir import StateDir
from tests.support.agent_world import Line, Runners, World, make_order


def test_touches_follow_the_shortest_lease_that_is_held():
    rhythm = Rhythm(beat_seconds=30, lease_seconds=60)
    assert rhythm.touch_seconds == TOUCH_SECONDS_MAX
    short, long = uuid4(), uuid4()
    rhythm.note_held(long, 60)
    rhythm.note_held(short, 2)
    assert rhythm.touch_seconds == 2 / TOUCHES_PER_LEASE
    # The hub's word on leases to come says nothing of those that are there.
    rhythm.hear(beat_seconds=30, lease_seconds=60)
    assert rhythm.touch_seconds == 2 / TOUCHES_PER_LEASE
    rhythm.note_gone(short)
    assert rhythm.touch_seconds == TOUCH_SECONDS_MAX


def test_beats_follow_a_shorter_lease_until_the_hub_names_its_own():
    rhythm = Rhythm(beat_seconds=30, lease_seconds=60)
    rhythm.note_held(uuid4(), 60)
    assert rhythm.beat_seconds == 30
    rhythm.note_held(uuid4(), 4)
    assert rhythm.beat_seconds == 2
    rhythm.hear(beat_seconds=1, lease_seconds=4)
    assert rhythm.beat_seconds == 1


@pytest.mark.parametrize("is_told", [True, False])
async def test_a_job_with_a_short_lease_gets_its_sign_of_life_at_once(tmp_path: Path, is_told: bool):
    """Not told is the control: then the next sign is due when the runner has long given up."""
    state = StateDir(tmp_path)
    rhythm = Rhythm(beat_seconds=30, lease_seconds=3_600)
    touching = asyncio.ensure_future(rhythm.run_touches(state))
    try:
        await until(lambda: state.alive_path.exists())
        await asyncio.sleep(0.1)
        os.utime(state.alive_path, (1, 1))
        if is_told:
            rhythm.note_held(uuid4(), 0.4)
            await until(lambda: state.alive_path.stat().st_mtime > 1)
        else:
            await asyncio.sleep(0.4)
            assert state.alive_path.stat().st_mtime == 1
    finally:
        touching.cancel()
        await asyncio.gather(touching, return_exceptions=True)


async def test_what_is_held_tells_its_lease_and_what_is_gone_is_forgotten(tmp_path: Path, monkeypatch):
    runners, world = Runners(monkeypatch), World(tmp_path, Line())
    rhythm = world.around.rhythm
    rhythm.hear(beat_seconds=1_800, lease_seconds=3_600)
    try:
        world.holdings.accept(world.sign(make_order()))
        assert rhythm.beat_seconds == 30
        await until(lambda: runners.requests)
        runners.finish()
        await world.settle()
        assert not rhythm._leases
    finally:
        await world.close()


async def until(is_so) -> None:
    async with asyncio.timeout(10):
        while not is_so():
            await asyncio.sleep(0.01)
