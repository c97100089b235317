"""One hub with the demo's fleet and one browser for all tests of the dashboard."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.support.people import Person
from tests.support.web_stage import Visitor, WebStage, open_browser, open_stage, stage_folder, visit


@pytest.fixture(scope="session")
def stage(postgres) -> Iterator[WebStage]:
    dsn = asyncio.run(postgres.create_database())
    with stage_folder() as folder, open_stage(folder, dsn=dsn) as found:
        found.await_job(found.submit_example("sweep", slice_count=6))
        found.await_job(found.submit_example("mandelbrot", slice_count=4, requirements={"gpu": True}))
        yield found


@pytest.fixture(scope="session")
def browser(stage: WebStage):
    from playwright.sync_api import expect

    # A loaded machine is slow, and no test is about that.
    expect.set_options(timeout=60_000)
    with open_browser() as found:
        yield found


@pytest.fixture
def visitor(stage: WebStage, browser) -> Iterator[Callable[..., Visitor]]:
    """Opens windows; whatever went wrong in one of them fails the test."""
    with ExitStack() as stack:
        opened: list[Visitor] = []

        def open_window(who: Person | None = None, **options: object) -> Visitor:
            opened.append(stack.enter_context(visit(stage, browser, who, **options)))  # type: ignore[arg-type]
            return opened[-1]

        yield open_window
        assert [fault for each in opened for fault in each.faults] == []
