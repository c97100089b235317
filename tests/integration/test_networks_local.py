"""A grid on one machine, of real processes and real streams: its curves are those of one process, whoever dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from computepool.core.errors import Conflict, InvalidRequest
from computepool.core.networks import epochs, rejoin
from computepool.core.networks.run import RunState
from computepool.networks import LocalGrid, Network, local, reference
from tests.support.network_data import make_dataset, same_bits
from tests.support.networks import make_char_lm, make_mlp
from tests.support.vnode_nets import make_net, make_samples

pytestmark = pytest.mark.timeout(280)


@pytest.fixture(scope="module")
def grid() -> Iterator[LocalGrid]:
    """PNodes that tests kill are replaced by those tests."""
    with local(pnodes=3) as found:
        yield found


def kill_at(grid: LocalGrid, run, steps: dict[int, str]) -> None:
    """Kills whoever is on a seat when a step is first told."""
    waiting = dict(steps)
    for event in run.watch():
        if event.kind == "step" and event.step in waiting:
            grid.kill(run.find_pnode(waiting.pop(event.step)))
    assert not waiting


def test_three_processes_train_to_the_bits_of_one(grid):
    spec = make_char_lm(checkpoint_every=5)
    data = make_dataset(spec)
    run = grid.train(spec, data, 10, seats=3)
    alone = reference(spec, data, 10)
    assert run.losses == alone.losses
    assert same_bits(run.state_dict(), alone.state_dict)
    assert run.epoch == 1


def test_a_branching_network_is_cut_anywhere(grid):
    spec = make_net("residual")
    data = make_samples(spec)
    places = {(vnode.id, 0): number % 3 for number, vnode in enumerate(spec.vnodes)}
    assert grid.train(spec, data, 6, places=places).losses == reference(spec, data, 6).losses


def test_a_pnode_killed_with_9_costs_time_and_no_bit(grid):
    spec = make_mlp(checkpoint_every=10)
    data = make_dataset(spec)
    run = grid.start(spec, data, 60, seats=3)
    kill_at(grid, run, {25: "seat-1"})
    assert run.state is RunState.SUCCEEDED
    assert run.epoch > 1
    assert len(run.seats) == 2, "no spare was there: who stayed took its VNodes"
    assert run.contradictions == []
    assert run.losses == reference(spec, data, 60).losses
    grid.add()


def test_a_spare_takes_the_seat_of_a_dead_one(grid):
    spec = make_mlp(checkpoint_every=10)
    data = make_dataset(spec)
    run = grid.start(spec, data, 60, seats=2)
    kill_at(grid, run, {15: "seat-0"})
    assert len(run.seats) == 2
    assert run.losses == reference(spec, data, 60).losses
    grid.add()


def test_a_pnode_that_comes_after_a_loss_gets_back_what_the_others_had_to_take(grid, monkeypatch):
    monkeypatch.setattr(rejoin, "RETURN_SECONDS", 0.2)
    spec = make_mlp(checkpoint_every=10)
    data = make_dataset(spec)
    run = grid.start(spec, data, 1_000_000, seats=3)
    fewest, is_stopped = 3, False
    for event in run.watch():
        if event.kind == "step" and event.step == 15 and run.epoch == 1:
            grid.kill(run.find_pnode("seat-1"))
        elif event.kind == "recovery" and run.epoch == 2:
            fewest = len(run.seats)
            grid.add(wait=False)
        elif event.kind == "step" and run.epoch > 2 and not is_stopped:
            is_stopped = True
            run.stop()
    assert (fewest, len(run.seats), run.epoch) == (2, 3, 3)
    assert run.contradictions == []
    assert run.losses == reference(spec, data, len(run.losses)).losses


def test_control_a_run_that_goes_back_to_the_wrong_step_loses_the_curve(grid, monkeypatch):
    """The planted owner forgets the checkpoint and tells hosts to go on from the seed as if it were step 10."""
    from computepool.networks.local_run import LocalRun

    really = LocalRun._write_prepare

    def forget(self, order):
        written = really(self, order)
        if written["checkpoint_step"] and not hasattr(self, "planted"):
            self.planted = True
            stale = {name: f"{name}-stale" for name in written["checkpoints"]}
            for name, file in stale.items():
                (self._folder / file).write_bytes(_pack_untrained(self._spec, name))
            written["checkpoints"] = stale
        return written

    monkeypatch.setattr(LocalRun, "_write_prepare", forget)
    spec = make_mlp(checkpoint_every=10)
    data = make_dataset(spec)
    run = grid.start(spec, data, 40, seats=2)
    kill_at(grid, run, {15: "seat-0"})
    assert run.losses != reference(spec, data, 40).losses
    assert run.contradictions, "steps that were done again gave other losses"
    grid.add()


def _pack_untrained(spec, vnode_id: str) -> bytes:
    """What a VNode of the seed would store, at whatever step."""
    import torch

    from computepool.core.networks.shapes import infer_shapes, list_inputs
    from computepool.node.vnodes.checkpoints import pack, take_snapshot
    from computepool.node.vnodes.hosting import HostedVNode

    inputs = list_inputs(spec, infer_shapes(spec))[vnode_id]
    made = HostedVNode(spec, vnode_id, inputs, [], replica=0, device=torch.device("cpu"))
    names = [name for name, _ in made.module.named_parameters()]
    made = HostedVNode(spec, vnode_id, inputs, names, replica=0, device=torch.device("cpu"))
    tensors = {name: torch.zeros_like(tensor) for name, tensor in made._describe().items()}
    return pack(take_snapshot(vnode_id, 10, tensors | made.tensors())).content


def test_a_run_that_was_stopped_goes_on_to_the_same_bits(grid):
    """They are asked to stop half a second ahead: there must be something left to go on with."""
    spec = make_mlp(checkpoint_every=1_000)
    data = make_dataset(spec)
    run = grid.start(spec, data, 600, seats=2)
    for event in run.watch():
        if event.kind == "step" and event.step == 12:
            run.stop()
    assert run.state is RunState.STOPPED
    assert 12 <= run.checkpoint_step < 600
    run.resume()
    assert run.wait().losses == reference(spec, data, 600).losses
    with pytest.raises(Conflict, match="only one that was stopped"):
        run.resume()


def test_a_loss_that_is_no_number_ends_the_run_and_says_so(grid):
    spec = make_mlp()
    spec = replace(spec, optimizer=replace(spec.optimizer, lr=1e6))
    run = grid.start(spec, make_dataset(spec), 60, seats=2)
    with pytest.raises(RuntimeError, match="failed"):
        run.wait()
    assert run.state is RunState.FAILED


def test_what_cannot_be_trained_is_refused_before_anything_starts(grid):
    spec = make_mlp()
    data = make_dataset(spec)
    with pytest.raises(InvalidRequest, match="as many PNodes"):
        grid.start(spec, data, 5, seats=60)
    with pytest.raises(InvalidRequest, match="at least one step"):
        grid.start(spec, data, 0)
    with pytest.raises(InvalidRequest, match="does not fit"):
        grid.start(make_char_lm(), data, 5)
    with pytest.raises(InvalidRequest, match="keep_weights"):
        grid.start(Network(spec, state=Network(spec).to_torch().state_dict()), data, 5)
    with pytest.raises(InvalidRequest, match="1 to 64"):
        local(pnodes=0)


def test_no_process_outlives_the_one_that_started_the_grid(tmp_path):
    code = (
        "import os\nfrom computepool.networks import local\ngrid = local(pnodes=1)\n"
        "print(grid.get_pid(0), flush=True)\nos.kill(os.getpid(), 9)"
    )
    # What is left of its folder goes with the test's.
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=False, env=env
    )
    assert ended.returncode == -signal.SIGKILL
    pid, deadline = int(ended.stdout), time.monotonic() + 60
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not os.path.exists(f"/proc/{pid}")


def test_the_owner_decides_by_the_rules_of_the_hub():
    from computepool.networks import local_run

    assert local_run.decide is epochs.decide
