"""A slot that is asked to show its speed: its node is told with its parked call, and it gets no work before that."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest

from computepool.core.jobs.state import JobState
from computepool.hub.services.sittings import Sittings
from computepool.wire.nodes import Gpu
from tests.integration.test_dispatch_rounds import Dispatch, compose
from tests.support.spine import EnrolledNode, open_spine

CARD = Gpu(name="NVIDIA GeForce RTX 4090", vram_bytes=24 << 30)
GPU = "gpu:0"


@pytest.fixture
async def dispatch(dsn: str) -> AsyncIterator[Dispatch]:
    async with open_spine(dsn) as spine:
        yield compose(spine)


@pytest.fixture
async def node(dispatch: Dispatch) -> EnrolledNode:
    node = await dispatch.spine.enrol(gpus=(CARD,), cpu_slots=0)
    await dispatch.spine.fetch(
        "INSERT INTO proofs (node_id, slot, claim, claimed_tier, state, tier, shown_tflops, reason) "
        "VALUES ($1, $2, $3, 'rtx-4090', 'proven', 'rtx-4090', 58, 'It showed 58.')",
        node.id,
        GPU,
        f"{CARD.name}|{CARD.vram_bytes}",
    )
    return node


async def ask(dispatch: Dispatch) -> Sittings:
    await dispatch.spine.fetch("UPDATE sittings SET asked_at = clock_timestamp()")
    return await look(dispatch)


async def sat(dispatch: Dispatch) -> Sittings:
    await dispatch.spine.fetch("UPDATE sittings SET asked_at = NULL, told_at = NULL")
    return await look(dispatch)


async def look(dispatch: Dispatch) -> Sittings:
    """As the sweeper does."""
    sittings = dispatch.reception._sittings
    await sittings.flush(dispatch.spine.pool)
    for node_id in await sittings.refresh(dispatch.spine.pool):
        dispatch.reception.note_sittings(node_id)
    return sittings


async def test_a_node_that_waits_with_a_free_slot_is_told_at_once(dispatch, node):
    waiting = await dispatch.park(node, GPU)
    await ask(dispatch)
    answer = await waiting.hear()
    assert answer.controls.prove == (GPU,)
    assert answer.assignments == []
    await look(dispatch)
    assert await dispatch.spine.fetch_value("SELECT told_at IS NOT NULL FROM sittings")


async def test_a_slot_that_is_asked_gets_no_work_until_it_has_sat(dispatch, node):
    await ask(dispatch)
    first = await dispatch.park(node, GPU)
    [job] = await dispatch.submit()
    await dispatch.rounds.run_once()
    assert job.state is JobState.QUEUED
    await dispatch.reception.greet({node.id: first.call})
    assert (await first.hear()).controls.prove == (GPU,)
    # It sits, and offers nothing meanwhile.
    second = await dispatch.park(node)
    await dispatch.rounds.run_once()
    assert second.answers == []
    await sat(dispatch)
    third = await dispatch.park(node, GPU)
    await dispatch.rounds.run_once()
    assert len((await third.hear()).assignments) == 1


async def test_an_agent_that_does_not_listen_gets_work_again_when_nothing_is_asked_any_more(dispatch, node):
    await ask(dispatch)
    deaf = await dispatch.park(node, GPU)
    await dispatch.reception.greet({node.id: deaf.call})
    assert (await deaf.hear()).controls.prove == (GPU,)
    again = await dispatch.park(node, GPU)
    await dispatch.reception.greet({node.id: again.call})
    # It is not answered at once for ever.
    assert again.answers == []
    await dispatch.submit()
    await dispatch.rounds.run_once()
    assert again.answers == []
    await sat(dispatch)
    await dispatch.rounds.run_once()
    assert len((await again.hear()).assignments) == 1


async def test_a_completion_does_not_fill_a_slot_that_is_asked(dispatch, node):
    await dispatch.submit(count=2)
    waiting = await dispatch.park(node, GPU)
    await dispatch.rounds.run_once()
    [assignment] = (await waiting.hear()).assignments
    await ask(dispatch)
    # A completion needs no more of a grant than its id.
    grant = SimpleNamespace(id=assignment.attempt_id)
    answer = await dispatch.complete(node, grant, await dispatch.claim(node, GPU))
    assert answer is None
