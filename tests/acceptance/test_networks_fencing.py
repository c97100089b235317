"""Whoever lost its seat and lives on: it still has its token and knows the run, and changes nothing of it."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest
import torch

from computepool.core.networks.shapes import infer_shapes
from computepool.core.networks.spec import NetworkSpec
from computepool.hub.services.keyring import Keyring
from computepool.hub.services.seat_tokens import issue_seat_token
from computepool.hub.store.connect import create_pool
from computepool.networks import reference
from computepool.node.vnodes.frames import to_bytes
from computepool.wire.pb.computepool.v1 import networks_pb2 as pb
from tests.support.edge_hosts import Signer, Stranger
from tests.support.network_data import make_dataset
from tests.support.network_grid import NetworkGrid, open_grid
from tests.support.networks import make_mlp

pytestmark = pytest.mark.alone

OLD, OTHER = "seat-0", "seat-1"
STEPS = 1_000_000


class Ghost:
    """The first host of a seat that was since given to another: it says what it would have said, and worse."""

    def __init__(self, grid: NetworkGrid, run: pb.Run, spec: NetworkSpec, token: str) -> None:
        self._grid, self._run_id, self._spec, self._token = grid, run.id, spec, token
        seats = {each.vnode_id: each.seat for each in run.placement}
        # Across the cut; it stays where it is, whoever has the seats.
        self._edge = next(
            edge for edge in spec.edges if seats.get(edge.source) == OLD and seats.get(edge.target) == OTHER
        )
        self._shape = [spec.micro_batch_size, *infer_shapes(spec)[self._edge.source, 0].shape]
        self._content = bytes(to_bytes(torch.full(self._shape, 3.0)))

    async def haunt(self) -> tuple[str, str]:
        """Dials a host of the run, and sends made-up activations for the steps to come until it is shown the door.
        Returns how its stream ended."""
        placement = (await self._grid.get_run(self._run_id)).placement
        call = Stranger(next(each.address for each in placement if each.seat == OTHER), OLD, Signer())
        call.target = OTHER
        try:
            await call.say(call.hello(run_id=self._run_id, token=self._token))
            while not call.call.done():
                await self._make_up_frames(call)
            return await call.hear_refusal()
        finally:
            await call.close()

    async def haunt_until_told(self) -> tuple[str, str]:
        """The client's own library loses the reason where its write meets the end of the stream."""
        for _ in range(5):
            status, words = await self.haunt()
            if "Internal error from Core" not in words:
                break
        return status, words

    async def _make_up_frames(self, call: Stranger) -> None:
        """Of the steps that the run is at, or goes back to."""
        run = await self._grid.get_run(self._run_id)
        for step in {run.checkpoint_step, run.checkpoint_step + 1, run.step, run.step + 1, run.step + 2}:
            for micro_batch in range(self._spec.micro_batches):
                frame = call.frame(
                    content=self._content,
                    run_id=self._run_id,
                    source=self._edge.source,
                    target=self._edge.target,
                    step=step,
                    micro_batch=micro_batch,
                    dtype="f32",
                    shape=self._shape,
                )
                await call.say(frame)


async def make_old_token(grid: NetworkGrid, run_id: str) -> str:
    """As the hub gave it to the seat's first host."""
    pool = await create_pool(grid.dsn, size_max=1)
    try:
        keyring = Keyring(UUID(int=0))
        await keyring.refresh(pool)
        return issue_seat_token(keyring, run_id=run_id, seat=OLD, epoch=1, seconds=600)
    finally:
        await pool.close()


async def set_haunted(grid: NetworkGrid, spec: NetworkSpec) -> tuple[str, Ghost]:
    run_id = await grid.train(spec, make_dataset(spec), steps=STEPS, seats=2)
    await grid.wait_for_step(run_id, 5)
    token = await make_old_token(grid, run_id)
    (await grid.find_agent(run_id, OLD)).cut_power()
    await grid.wait_for_epoch(run_id, 2)
    return run_id, Ghost(grid, await grid.get_run(run_id), spec, token)


async def test_a_host_whose_seat_was_given_to_another_is_shown_the_door_and_the_curve_keeps_its_bits(grid):
    spec = make_mlp(checkpoint_every=10)
    run_id, ghost = await set_haunted(grid, spec)
    for _ in range(3):
        status, words = await ghost.haunt_until_told()
        assert (status, "is here already, in epoch 2" in words) == ("PERMISSION_DENIED", True), words
    run = await grid.get_run(run_id)
    assert (run.state, run.epoch) == ("running", 2), await grid.tell_story(run_id)
    await grid.wait_for_step(run_id, run.step + 5)
    await grid.call("StopTrain", pb.StopTrainRequest(run_id=run_id))
    stopped = await grid.wait_for_state(run_id, "stopped")
    assert await grid.list_losses(run_id) == reference(spec, make_dataset(spec), stopped.step).losses


@pytest.mark.timeout(280)
async def test_control_hosts_that_listen_to_anybody_come_to_another_curve(dsn, tmp_path):
    async with open_grid(dsn=dsn, root=tmp_path) as grid:
        await grid.start_agents(3, program=("-m", "tests.support.planted_host", "agent", "unfenced"))
        spec = make_mlp(checkpoint_every=10)
        data = make_dataset(spec)
        run_id, ghost = await set_haunted(grid, spec)

        haunting = asyncio.create_task(ghost.haunt())

        async def is_spoilt() -> bool:
            rows = await grid.fetch(
                "SELECT step, loss_bits FROM run_metrics WHERE run_id = $1::text::uuid ORDER BY step", run_id
            )
            told = [torch.tensor(row["loss_bits"]).view(torch.float64).item() for row in rows]
            return told != reference(spec, data, len(told)).losses

        try:
            await grid.wait_until(is_spoilt, "a curve that is another")
        finally:
            haunting.cancel()
            await asyncio.gather(haunting, return_exceptions=True)
