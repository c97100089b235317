"""Comparing two sets of weights on a real database: what is counted, what is not, and that it is bounded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from computepool import clock
from computepool.core.errors import InvalidRequest
from computepool.core.ids import NodeId
from computepool.core.placement.experiment import Verdict
from computepool.core.placement.weights import Split, WeightBook, Weights
from computepool.hub.http.placement import to_experiment
from computepool.hub.services import experiments as service
from computepool.hub.services.callers import AccountCaller
from tests.support.stored_grid import StoredGrid, open_grid

BOOK = WeightBook(
    {"default": Weights(price=1.0), "classic": Weights(vram_fit=10.0)}, Split("default", "classic", 0.25)
)
CREDIT = 1_000_000


@pytest.fixture
async def grid(dsn: str) -> AsyncIterator[StoredGrid]:
    async with open_grid(dsn) as grid:
        yield grid


@pytest.fixture
async def person(grid: StoredGrid) -> AccountCaller:
    return await grid.sign_up()


@pytest.fixture
async def node(grid: StoredGrid, person: AccountCaller) -> NodeId:
    return await grid.enrol(person, floor=12 * CREDIT)


async def add_done(
    grid: StoredGrid,
    person: AccountCaller,
    node: NodeId,
    weight_set: str,
    *,
    seconds: float = 10.0,
    wait: float = 2.0,
    ago: timedelta = timedelta(hours=1),
    faults: int = 0,
    **columns: Any,
) -> None:
    created = clock.now() - ago
    started = created + timedelta(seconds=wait)
    finished = started + timedelta(seconds=seconds)
    ended = {"state": "succeeded", "succeeded_count": 1, "started_at": started, "finished_at": finished}
    job = await grid.add_job(person, at=created, weight_set=weight_set, **{**ended, **columns})
    for number in range(1, faults + 1):
        lost = {"state": "lost", "cause": "node_vanished", "finished_at": started}
        await grid.add_attempt(job, node, "cpu:0", number=number, leased_at=created, **lost)
    await grid.add_attempt(
        job,
        node,
        "cpu:0",
        number=faults + 1,
        state="succeeded",
        leased_at=started,
        finished_at=finished,
        # Twice what the hub's clock allows: the claim is cut to it.
        run_seconds=seconds * 2,
    )


async def test_what_became_of_jobs_is_summed_up_by_set(grid, person, node):
    await add_done(grid, person, node, "default", seconds=10.0)
    await add_done(grid, person, node, "default", seconds=30.0, wait=4.0, faults=2)
    await add_done(grid, person, node, "classic", seconds=20.0)
    await grid.add_job(person, weight_set="classic", slices=5)
    found = await service.get_experiment(grid.pool, BOOK, days=7)
    first, second = found.comparison.first, found.comparison.second
    assert (first.job_count, first.succeeded_count, first.attempt_count, first.fault_count) == (2, 2, 4, 2)
    assert first.faulty_job_count == 1
    assert first.wait_seconds.mean == pytest.approx(3.0)
    assert first.turnaround_seconds.median == pytest.approx(20.0)
    assert first.run_seconds.mean == pytest.approx(20.0)
    assert first.price_microcredits_per_hour == pytest.approx(12 * CREDIT)
    assert (second.job_count, second.finished_count, second.slice_count) == (2, 1, 6)
    assert found.comparison.verdict is Verdict.UNDECIDED
    assert (found.job_count, found.is_cut) == (4, False)


async def test_older_jobs_and_jobs_of_other_sets_do_not_count(grid, person, node):
    await add_done(grid, person, node, "default", ago=timedelta(days=3))
    await add_done(grid, person, node, "default", ago=timedelta(hours=2))
    await add_done(grid, person, node, "retired")
    day = (await service.get_experiment(grid.pool, BOOK, days=1)).comparison
    week = (await service.get_experiment(grid.pool, BOOK, days=7)).comparison
    assert (day.first.job_count, week.first.job_count) == (1, 2)


async def test_a_cancelled_job_is_no_outcome(grid, person, node):
    cancelled = {"state": "cancelled", "succeeded_count": 0, "cancelled_count": 1}
    await add_done(grid, person, node, "default", **cancelled)
    first = (await service.get_experiment(grid.pool, BOOK, days=7)).comparison.first
    assert (first.job_count, first.finished_count, first.turnaround_seconds) == (1, 0, None)


async def test_a_clear_difference_is_told_and_looks_so_on_the_wire(grid, person, node):
    for number in range(25):
        await add_done(grid, person, node, "default", seconds=10.0 + number % 3)
        await add_done(grid, person, node, "classic", seconds=20.0 + number % 3)
    found = await service.get_experiment(grid.pool, BOOK, days=7)
    assert found.comparison.verdict is Verdict.FIRST
    shown = to_experiment(found)
    assert (shown.first.share, shown.second.share) == (0.75, 0.25)
    assert shown.second.weights == {"vram_fit": 10.0}
    assert shown.turnaround_ratio is not None
    assert shown.turnaround_ratio.low > 1.7
    assert shown.words.startswith("default is better")


async def test_only_the_newest_jobs_are_looked_at_and_that_is_said(grid, person, node, monkeypatch):
    monkeypatch.setattr(service, "JOBS_MAX", 2)
    await add_done(grid, person, node, "default", seconds=99.0, ago=timedelta(hours=9))
    for _ in range(2):
        await add_done(grid, person, node, "default", seconds=10.0)
    found = await service.get_experiment(grid.pool, BOOK, days=7)
    assert (found.job_count, found.is_cut) == (2, True)
    assert found.comparison.first.turnaround_seconds.mean == pytest.approx(10.0)


async def test_only_the_first_attempts_of_a_job_are_looked_at(grid, person, node, monkeypatch):
    monkeypatch.setattr(service, "ATTEMPTS_MAX", 3)
    await add_done(grid, person, node, "default", faults=7)
    assert (await service.get_experiment(grid.pool, BOOK, days=7)).comparison.first.attempt_count == 3


@pytest.mark.parametrize("days", [0.0, -1.0, 91.0, float("nan")])
async def test_a_time_without_sense_is_refused(grid, days: float):
    with pytest.raises(InvalidRequest, match="days is"):
        await service.get_experiment(grid.pool, BOOK, days=days)
