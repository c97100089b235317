"""Networks as people use them at a real hub with real agents: plan, train, watch, stop, go on, take the weights."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from computepool.cli.main import run as say
from computepool.core.errors import InvalidRequest, NotFound
from computepool.core.networks.run import RunState
from computepool.networks import HubGrid, Network, TrainOptions, reference
from tests.support.network_data import make_dataset, same_bits
from tests.support.network_grid import CEILING, NetworkGrid
from tests.support.networks import make_mlp
from tests.support.people import sign_up

pytestmark = pytest.mark.alone

# Hosts are asked to stop half a second ahead: there must be something left to go on with.
STEPS = 600
OPTIONS = TrainOptions(seats=2, ceiling_microcredits_per_hour=CEILING)


@pytest.mark.timeout(280)
async def test_a_network_is_planned_trained_watched_and_taken_home(grid, tmp_path, capfd):
    spec = make_mlp(checkpoint_every=50)
    await asyncio.to_thread(_use, grid, spec, tmp_path)
    told = capfd.readouterr()
    assert "samples a second" in told.out
    assert "loss" in told.err


def _use(grid: NetworkGrid, spec, tmp_path: Path) -> None:
    url, key = grid.hubs[0].url, grid.submitter.key
    data = make_dataset(spec)
    network = Network(spec)
    with HubGrid(url, key) as hub:
        network_id = hub.create(network)
        assert hub.get(network_id).spec == spec
        assert (network_id, spec.name) in hub.list_networks()
        with pytest.raises(InvalidRequest, match="without keep_weights"):
            hub.start(Network(spec, state=network.state_dict()), data, STEPS, OPTIONS)
        plan = hub.plan(network_id, OPTIONS)
        assert {name for seat in plan.seats for name in seat.vnode_ids} == {vnode.id for vnode in spec.vnodes}
        run = network.train(data, STEPS, grid=hub, options=OPTIONS)
        for event in run.watch():
            if event.kind == "step" and event.step == 1:
                run.stop()
        assert run.state is RunState.STOPPED
        run.resume()
        alone = reference(spec, data, STEPS)
        assert run.wait().losses == alone.losses
        assert same_bits(network.state_dict(), alone.state_dict)
        out = tmp_path / "weights.safetensors"
        hub_words = ["--hub-url", url, "--key", key]
        assert say(["net", "plan", network_id, "--seats", "2", "--max-price", "7200", *hub_words]) == 0
        assert say(["net", "watch", run.id, *hub_words]) == 0
        assert say(["net", "export", run.id, str(out), *hub_words]) == 0
        assert out.stat().st_size > 0
        with pytest.raises(NotFound):
            hub.get_run("0197f000-0000-7000-8000-000000000001")


async def test_a_hub_without_grpc_says_that_it_trains_no_networks(start_hub):
    hub = start_hub()
    person = await asyncio.to_thread(sign_up, hub.url, "submitter")
    with pytest.raises(InvalidRequest, match="rpc_port"):
        await asyncio.to_thread(HubGrid, hub.url, person.key)
