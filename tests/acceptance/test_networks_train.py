"""Networks train on real agents at a real hub, to the bits of one machine's curve, whatever is killed on the way."""

from __future__ import annotations

import asyncio
import hashlib
import re
import signal
import time
from pathlib import Path

import pytest

from computepool.networks import reference
from computepool.wire.pb.computepool.v1 import networks_pb2 as pb
from soaks.networks import kill_agents
from tests.support.network_data import make_dataset
from tests.support.network_grid import open_grid, send_rpc
from tests.support.networks import make_mlp
from tests.support.tcp_proxy import TcpProxy
from tests.support.vnode_nets import make_net, make_samples

pytestmark = pytest.mark.alone

SEATS = ("seat-0", "seat-1", "seat-2")
# Two for a host that does not listen, the rest for a busy machine.
LEAVING_SECONDS = 6.0


async def has_ended(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


async def test_three_agents_train_to_the_bits_of_one_machine_and_are_paid(grid):
    spec = make_mlp(checkpoint_every=10)
    data = make_dataset(spec)
    before = await grid.list_earned()
    run_id = await grid.train(spec, data, steps=30, seats=3)
    run = await grid.wait_for_state(run_id, "succeeded")
    assert await grid.list_losses(run_id) == reference(spec, data, 30).losses
    assert (run.step, run.checkpoint_step, run.inexact_from_step) == (30, 30, 0)
    hosting = {agent.name for agent in await grid.list_agents(run)}
    earned = await grid.list_earned()
    assert {name for name in earned if earned[name] > before[name]} == hosting
    assert len(hosting) == 3
    assert await grid.list_faults_of_books() == []


async def test_a_host_killed_with_its_agent_is_replaced_by_a_spare_and_the_curve_keeps_its_bits(grid):
    spec = make_mlp(checkpoint_every=10)
    data = make_dataset(spec)
    run_id = await grid.train(spec, data, steps=120, seats=3)
    await grid.wait_for_step(run_id, 15)
    victim = await grid.find_agent(run_id, SEATS[1])
    victim.cut_power()
    run = await grid.wait_for_state(run_id, "succeeded")
    assert run.epoch > 1
    assert await grid.find_agent(run_id, SEATS[1]) is not victim
    assert await grid.list_losses(run_id) == reference(spec, data, 120).losses
    assert await grid.list_faults_of_books() == []


async def test_pnodes_killed_at_random_steps_cost_time_and_no_bit(grid):
    """The short form; five kills in 200 steps, and the hub's gRPC process among them: `make soak/networks`."""
    outcome = await kill_agents(grid, make_mlp(checkpoint_every=10), steps=90, kills=2, seed=4)
    assert outcome.bit_equal
    assert outcome.kills == 2
    assert outcome.epochs >= 3
    assert outcome.faults_of_books == 0


async def test_an_owner_who_comes_back_has_the_machine_within_two_seconds_and_the_run_goes_on(grid):
    spec = make_mlp(checkpoint_every=50)
    data = make_dataset(spec)
    run_id = await grid.train(spec, data, steps=150, seats=2)
    await grid.wait_for_step(run_id, 15)
    leaving = await grid.find_agent(run_id, SEATS[1])
    [host] = leaving.list_hosts()
    began = time.monotonic()
    leaving.send(signal.SIGTERM)
    await grid.wait_until(lambda: has_ended(host), "the end of the host", pause_seconds=0.02)
    # By force, if it must be, and then the kernel has some work of its own.
    assert time.monotonic() - began < LEAVING_SECONDS
    run = await grid.wait_for_state(run_id, "succeeded")
    assert run.epoch == 2
    assert await asyncio.to_thread(leaving.stop) == 0
    assert await grid.find_agent(run_id, SEATS[1]) is not leaving
    assert await grid.list_losses(run_id) == reference(spec, data, 150).losses
    assert await grid.list_faults_of_books() == []


async def test_hosts_that_nobody_can_dial_train_through_the_relay_to_the_same_bits(dsn, tmp_path):
    async with open_grid(dsn=dsn, root=tmp_path) as grid:
        await grid.start_agents(3, networks_listen="none")
        spec = make_net("residual", checkpoint_every=10)
        data = make_samples(spec)
        run_id = await grid.train(spec, data, steps=30, seats=3)
        run = await grid.wait_for_state(run_id, "succeeded")
        assert {each.address for each in run.placement} == {""}
        assert await grid.list_losses(run_id) == reference(spec, data, 30).losses


async def test_a_run_that_was_stopped_goes_on_from_its_checkpoint_to_the_same_bits(grid):
    spec = make_mlp(checkpoint_every=10)
    data = make_dataset(spec)
    run_id = await grid.train(spec, data, steps=120, seats=2)
    await grid.wait_for_step(run_id, 15)
    await grid.call("StopTrain", pb.StopTrainRequest(run_id=run_id))
    stopped = await grid.wait_for_state(run_id, "stopped")
    assert 15 <= stopped.checkpoint_step < 120
    await grid.call("ResumeTrain", pb.ResumeTrainRequest(run_id=run_id))
    await grid.wait_for_state(run_id, "succeeded")
    assert await grid.list_losses(run_id) == reference(spec, data, 120).losses
    assert await grid.list_faults_of_books() == []


async def test_another_hub_takes_a_run_over_when_its_own_is_killed(dsn, tmp_path):
    """The agents are parked at the hub that stays; the one that is killed gives the orders."""
    async with open_grid(dsn=dsn, root=tmp_path, hubs=2) as grid:
        await grid.start_agents(2)
        staying, going = grid.hubs
        send_rpc(staying, signal.SIGSTOP)
        spec = make_mlp(checkpoint_every=10)
        data = make_dataset(spec)
        grid.prefer(going)
        run_id = await grid.train(spec, data, steps=120, seats=2)
        await grid.wait_for_owner(run_id, going)
        send_rpc(staying, signal.SIGCONT)
        await grid.wait_for_step(run_id, 15)
        grid.cut_power(going)
        run = await grid.wait_for_state(run_id, "succeeded")
        assert run.epoch > 1
        assert await grid.list_losses(run_id) == reference(spec, data, 120).losses
        assert await grid.list_faults_of_books() == []


async def test_control_hosts_that_add_gradients_in_another_order_come_to_other_bits(dsn, tmp_path):
    async with open_grid(dsn=dsn, root=tmp_path) as grid:
        await grid.start_agents(2, program=("-m", "tests.support.planted_host", "agent", "unordered_sum"))
        # Four others read one of its tensors: however it is cut, somebody adds more than two gradients.
        spec = make_net("residual", checkpoint_every=10)
        data = make_samples(spec)
        run_id = await grid.train(spec, data, steps=30, seats=2)
        await grid.wait_for_state(run_id, "succeeded")
        losses, right = await grid.list_losses(run_id), reference(spec, data, 30).losses
        assert losses != right
        assert losses == pytest.approx(right, rel=0.05)


async def test_a_machine_that_was_asleep_wakes_into_a_run_that_went_on_without_it_and_changes_nothing(grid):
    spec = make_mlp(checkpoint_every=10)
    data = make_dataset(spec)
    run_id = await grid.train(spec, data, steps=150, seats=2)
    await grid.wait_for_step(run_id, 15)
    sleeper = await grid.find_agent(run_id, SEATS[1])
    [host] = sleeper.list_hosts()
    sleeper.freeze()
    try:
        await grid.wait_for_epoch(run_id, 2)
    finally:
        sleeper.wake()
    await grid.wait_for_state(run_id, "succeeded")
    assert await grid.find_agent(run_id, SEATS[1]) is not sleeper
    assert await grid.list_losses(run_id) == reference(spec, data, 150).losses
    await grid.wait_until(lambda: has_ended(host), "the end of the host that nobody needs")
    assert await grid.list_faults_of_books() == []


async def test_a_machine_switched_off_and_on_gets_its_vnodes_back_and_the_curve_keeps_its_bits(dsn, tmp_path):
    """There is no third machine: what it had goes to the other one, and back to it at a checkpoint."""
    async with open_grid(dsn=dsn, root=tmp_path) as grid:
        await grid.start_agents(2, cpu_slots=1)
        spec = make_mlp(checkpoint_every=20)
        data = make_dataset(spec)
        run_id = await grid.train(spec, data, steps=1_000_000, seats=2)
        await grid.wait_for_step(run_id, 25)
        victim = await grid.find_agent(run_id, SEATS[1])
        victim.cut_power()
        await grid.wait_for_epoch(run_id, 2)
        assert victim not in await grid.list_agents(await grid.get_run(run_id))
        victim.start()
        await grid.wait_for_epoch(run_id, 3)
        run = await grid.get_run(run_id)
        assert victim in await grid.list_agents(run)
        await grid.wait_for_step(run_id, run.step + 10)
        await grid.call("StopTrain", pb.StopTrainRequest(run_id=run_id))
        stopped = await grid.wait_for_state(run_id, "stopped")
        assert await grid.list_losses(run_id) == reference(spec, data, stopped.step).losses
        assert await grid.list_faults_of_books() == []


async def test_agents_that_cannot_reach_the_hub_lose_no_seat_while_their_hosts_can(dsn, tmp_path):
    """One liveness: what beats over gRPC need not beat over REST."""
    async with open_grid(dsn=dsn, root=tmp_path, lease_seconds=6.0) as grid:
        proxy = TcpProxy(grid.hubs[0].url.removeprefix("http://"))
        await grid.start_agents(2, hub_url=f"http://{await proxy.start()}")
        spec = make_mlp(checkpoint_every=50)
        data = make_dataset(spec)
        run_id = await grid.train(spec, data, steps=100_000, seats=2)
        await grid.wait_for_step(run_id, 5)
        proxy.refuses = True
        proxy.cut()
        # Twice as long as a lease lasts without a beat.
        await asyncio.sleep(12)
        run = await grid.get_run(run_id)
        assert (run.state, run.epoch) == ("running", 1), await grid.tell_story(run_id)
        proxy.refuses = False
        await grid.call("StopTrain", pb.StopTrainRequest(run_id=run_id))
        stopped = await grid.wait_for_state(run_id, "stopped")
        assert await grid.list_losses(run_id) == reference(spec, data, stopped.step).losses
        await proxy.close()


async def test_the_pnode_that_holds_the_data_is_chosen_and_fetches_none_of_it(grid):
    spec = make_mlp(checkpoint_every=10)
    # Of this test alone, and so many that others do not hold them by chance.
    data = make_dataset(spec, 57)
    sha256 = hashlib.sha256(data.to_bytes()).hexdigest()
    chosen, fetched = [], []
    for _ in range(2):
        run_id = await grid.train(spec, data, steps=5, seats=1)
        run = await grid.wait_for_state(run_id, "succeeded")
        [agent] = await grid.list_agents(run)
        chosen.append(agent.name)
        fetched.append(re.findall(rf"shard_read sha256={sha256} fetched_bytes=(\d+)", agent.log_text())[-1])
        await grid.mend()
    assert chosen[0] == chosen[1]
    assert fetched == [str(len(data.to_bytes())), "0"]
