"""Several hubs on one database: who takes a slice for which another hub has the best slot, and when that is gone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from computepool.core.jobs.state import JobState
from computepool.core.placement.rounds import ELSEWHERE_SECONDS_MAX, ELSEWHERE_SECONDS_MIN
from computepool.hub.dispatch.listener import run_listener
from tests.integration.test_dispatch_rounds import Dispatch, Waiting, compose, list_attempts, list_live
from tests.support.postgres import wait_for
from tests.support.spine import Spine, open_spine

# TFLOPS of a machine with 8 cores: the faster one is better by more than a slice ever waits for.
SLOW, FAST = 0.1, 0.4


@pytest.fixture
async def spine(dsn: str) -> AsyncIterator[Spine]:
    async with open_spine(dsn) as spine:
        yield spine


@contextlib.asynccontextmanager
async def running(*chores: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(chore) for chore in chores]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def meet(*hubs: Dispatch) -> None:
    """They know of each other's slots."""
    for hub in (*hubs, *hubs):
        await hub.rounds._elsewhere.exchange()


async def park(hub: Dispatch, tflops: float) -> Waiting:
    return await hub.park(await hub.spine.enrol(cpu_tflops=tflops), "cpu:0")


async def listen(hub: Dispatch, server_dsn: str) -> None:
    """At the server itself, as hubs behind a pooler do: it gives a listener to nobody for long."""
    await run_listener(server_dsn, hub.rounds.hear)


async def wait_for_ears(*hubs: Dispatch) -> None:
    """Until what each of them tells comes back to it."""
    async with asyncio.timeout(60):
        for hub in hubs:
            elsewhere = hub.rounds._elsewhere
            while not elsewhere._number_echoed:
                elsewhere._tell_after(0.0)
                await asyncio.sleep(0.02)


async def waited_seconds(spine: Spine) -> float:
    return float(
        await spine.fetch_value(
            "SELECT extract(epoch FROM a.leased_at - s.queued_at)"
            "  FROM attempts a JOIN slices s USING (job_id, slice_index)"
        )
    )


async def test_the_hub_with_the_best_slot_is_told_and_takes_it_at_once(spine, server_dsn):
    here, there = compose(spine), compose(spine)
    slow, fast = await park(here, SLOW), await park(there, FAST)
    await meet(here, there)
    async with running(here.rounds.run(), there.rounds.run(), listen(here, server_dsn), listen(there, server_dsn)):
        await wait_for_ears(here, there)
        [job] = await here.submit()
        assert job.state is JobState.QUEUED
        assert list_attempts([await fast.hear()]) == await list_live(spine)
    assert slow.answers == []
    assert await waited_seconds(spine) < ELSEWHERE_SECONDS_MAX, "and nobody had to lose patience"


async def test_a_slot_that_was_given_out_a_moment_ago_is_not_waited_for(spine, server_dsn):
    """The control: it was, before the other hub said that it is gone."""
    here, there = compose(spine), compose(spine)
    slow, fast = await park(here, SLOW), await park(there, FAST)
    await meet(here, there)
    async with running(listen(here, server_dsn), listen(there, server_dsn)):
        await wait_for_ears(here, there)
        [job] = await there.submit()
        assert job.state is JobState.RUNNING
        await fast.hear()
        await wait_for(lambda: not here.rounds._elsewhere._home, what="the notice")
        [job] = await here.submit()
        assert job.state is JobState.RUNNING
        await slow.hear()


@pytest.mark.parametrize("timer", [True, False], ids=["with a timer", "control: without"])
async def test_a_notice_that_was_lost_costs_a_tick_of_the_timer(spine, timer):
    here, there = compose(spine), compose(spine)
    fast = await park(there, FAST)
    await meet(here, there)
    there.rounds._wake.clear()
    chores = [there.rounds.run(), *([there.rounds.run_timer(lambda _: None)] if timer else [])]
    async with running(*chores):
        await asyncio.sleep(0.1)
        await here.submit()
        if timer:
            assert list_attempts([await fast.hear()]) == await list_live(spine)
        else:
            await asyncio.sleep(1.5)
            assert fast.answers == []


async def test_a_slice_that_was_left_to_a_hub_that_is_dead_is_taken_here_when_its_patience_is_over(spine):
    here, dead = compose(spine), compose(spine)
    slow, fast = await park(here, SLOW), await park(dead, FAST)
    await meet(here, dead)
    async with running(here.rounds.run()):
        [job] = await here.submit()
        assert job.state is JobState.QUEUED, "it was left to the other hub"
        assert list_attempts([await slow.hear()]) == await list_live(spine)
    assert fast.answers == []
    assert ELSEWHERE_SECONDS_MIN < await waited_seconds(spine) < ELSEWHERE_SECONDS_MAX + 1.0


async def test_a_third_hub_does_not_wait_for_a_dead_one_either(spine, server_dsn):
    """The one that has the slice has no slot at all, the best one is at a hub that is dead."""
    here, dead, third = compose(spine), compose(spine), compose(spine)
    await park(dead, FAST)
    slow = await park(third, SLOW)
    await meet(here, dead, third)
    third.rounds._wake.clear()
    async with running(third.rounds.run(), listen(third, server_dsn)):
        await wait_for_ears(third)
        await here.submit()
        assert list_attempts([await slow.hear()]) == await list_live(spine)
    assert await waited_seconds(spine) < ELSEWHERE_SECONDS_MAX + 1.0


async def test_many_slices_take_the_slots_of_every_hub_and_none_twice(spine, server_dsn):
    here, there = compose(spine), compose(spine)
    waiting = [await park(hub, tflops) for hub in (here, there) for tflops in (SLOW, FAST)]
    await meet(here, there)
    async with running(here.rounds.run(), there.rounds.run(), listen(here, server_dsn), listen(there, server_dsn)):
        await wait_for_ears(here, there)
        await here.submit(count=2)
        await there.submit(count=2)
        given = list_attempts([await each.hear() for each in waiting])
    assert sorted(given) == sorted(await list_live(spine))
    assert len(set(given)) == len(given) == 4
