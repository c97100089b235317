"""A PNode that computes wrongly is found by others, loses its seat and its pay, and changes no bit of the result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from computepool.networks import reference
from tests.support.network_data import make_dataset
from tests.support.network_grid import NetworkGrid, open_grid
from tests.support.networks import make_mlp

pytestmark = pytest.mark.alone

STEPS = 30
# Parts of it are done again, and all of it is replayed.
SECONDS = 240.0
SPEC = make_mlp(checkpoint_every=10)


async def train_with(grid: NetworkGrid, bug: str) -> str:
    """A run of three seats for three PNodes, so that the one with the planted bug gets one of them."""
    await grid.start_agents(1, program=("-m", "tests.support.planted_host", "agent", bug))
    await grid.start_agents(2)
    return await grid.train(SPEC, make_dataset(SPEC), steps=STEPS, seats=3)


def right_losses() -> list[float]:
    return reference(SPEC, make_dataset(SPEC), STEPS).losses


async def list_audits(grid: NetworkGrid, run_id: str) -> list[dict[str, Any]]:
    rows = await grid.fetch(
        "SELECT n.name, a.outcome::text, a.from_step, a.message, cardinality(a.witness_ids) AS witnesses "
        "FROM run_audits a JOIN nodes n ON n.id = a.node_id WHERE a.run_id = $1::text::uuid ORDER BY a.id",
        run_id,
    )
    return [dict(row) for row in rows]


async def test_a_pnode_that_computes_wrongly_is_found_by_two_others_and_the_curve_keeps_its_bits(
    dsn: str, tmp_path: Path
) -> None:
    async with open_grid(dsn=dsn, root=tmp_path) as grid:
        run_id = await train_with(grid, "corrupt_outputs")
        # Who takes the seat over when it is free.
        await grid.start_agents(1, beside_a_run=True)
        run = await grid.wait_for_state(run_id, "succeeded", seconds=SECONDS)
        audits = await list_audits(grid, run_id)
        assert await grid.list_losses(run_id) == right_losses(), await grid.tell_story(run_id)
        assert {each["name"] for each in audits if each["outcome"] == "wrong"} == {"pnode0"}, audits
        assert all(each["witnesses"] == 2 for each in audits if each["outcome"] == "wrong")
        assert "pnode0" not in {agent.name for agent in await grid.list_agents(run)}
        assert (run.audits.wrong, run.epoch > 1) == (1, True)
        told = [event.message for event in await grid.watch(run_id) if event.kind == "audit"]
        assert any("wrong" in message for message in told)
        [attempt] = await grid.fetch(
            "SELECT cause::text FROM attempts a JOIN nodes n ON n.id = a.node_id WHERE n.name = 'pnode0'"
        )
        assert attempt["cause"] == "wrong_result"
        assert (await grid.list_earned())["pnode0"] == 0
        assert await grid.list_faults_of_books() == []


async def test_control_without_audits_the_same_pnode_stays_is_paid_and_spoils_the_curve(
    dsn: str, tmp_path: Path
) -> None:
    async with open_grid(dsn=dsn, root=tmp_path, network_audits="false") as grid:
        run_id = await train_with(grid, "corrupt_outputs")
        run = await grid.wait_for_state(run_id, "succeeded", seconds=SECONDS)
        assert run.epoch == 1
        assert await list_audits(grid, run_id) == []
        assert await grid.list_losses(run_id) != right_losses()
        assert (await grid.list_earned())["pnode0"] > 0
