"""What people type and read about networks: plans, live loss, training on this machine, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from safetensors.torch import load_file

from computepool.cli.main import EXIT_REFUSED
from computepool.cli.main import run as say
from computepool.cli.net import describe_plan, describe_step, show_run
from computepool.core.networks.run import RunState
from computepool.networks import Network, reference
from computepool.networks.run import Run, TrainEvent
from computepool.wire.pb.computepool.v1 import networks_pb2 as pb
from tests.support.network_data import make_dataset, same_bits
from tests.support.networks import make_mlp


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings of the person who runs the tests."""
    for name in ("HUB_URL", "COMPUTEPOOL_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("COLUMNS", "160")


@pytest.fixture
def network(tmp_path: Path) -> str:
    path = tmp_path / "net.yaml"
    Network(make_mlp(checkpoint_every=5)).save(path)
    return str(path)


@pytest.fixture
def data(tmp_path: Path) -> str:
    path = tmp_path / "data.safetensors"
    path.write_bytes(make_dataset(make_mlp()).to_bytes())
    return str(path)


def tell(kind: str, number: int, **changes: object) -> TrainEvent:
    values = {"epoch": 1, "step": number, "loss": None, "samples_per_second": 0.0, "message": "", "at": 0.0}
    return TrainEvent(id=number, kind=kind, **{**values, **changes})


class ToldRun(Run):
    """A run whose story is known."""

    id = "told"

    def __init__(self, events: list[TrainEvent], state: RunState) -> None:
        self._events, self._state = events, state

    @property
    def state(self) -> RunState:
        return self._state

    def watch(self, after: int = 0):
        yield from self._events[after:]

    def stop(self) -> None: ...

    def resume(self, steps: int | None = None) -> None: ...

    def infer(self, *inputs, **named):
        raise NotImplementedError

    def state_dict(self) -> dict:
        return {}


def test_a_plan_for_machines_of_ones_own_needs_no_hub(network, capsys):
    assert say(["net", "plan", network, "--local", "2"]) == 0
    told = capsys.readouterr().out
    assert re.search(r"machine 0: \w+.*\nmachine 1: ", told)
    assert "bytes a step" in told
    assert "times one machine" in told


def test_a_plan_over_a_home_uplink_warns_that_splitting_is_slower(network, capsys):
    assert say(["net", "plan", network, "--local", "2", "--uplink", "20", "--latency", "50"]) == 0
    assert "Warning: one machine that holds all of it would be faster" in capsys.readouterr().out


def test_a_plan_over_more_machines_than_vnodes_is_refused(network, capsys):
    assert say(["net", "plan", network, "--local", "60"]) == EXIT_REFUSED
    assert "Use fewer machines" in capsys.readouterr().err


def test_a_hubs_plan_names_machines_edges_speed_and_price():
    plan = pb.Plan(
        seats=[pb.PlannedSeat(node_id="n1", node_name="attic", vnode_ids=["a", "b"], memory_bytes=5_000_000)],
        edges=[
            pb.PlannedEdge(source="a", target="b", bytes_per_step=10, cut=False),
            pb.PlannedEdge(source="b", target="loss", bytes_per_step=20_000, cut=True),
        ],
        samples_per_second=50,
        samples_per_second_one_machine=100,
        warnings=["slow"],
        microcredits_per_hour_max=3_000_000,
    )
    lines = describe_plan(plan)
    assert lines[0].startswith("attic: a, b (")
    assert lines[1] == "b -> loss: 20,000 bytes a step", "what stays on one machine crosses nothing"
    assert "About 50 samples a second, 0.50 times one machine." in lines
    assert "Warning: slow." in lines
    assert "3 credits an hour at most" in lines[-1]


@pytest.mark.timeout(280)
def test_training_on_this_machine_writes_the_weights_of_the_reference(network, data, tmp_path, capsys):
    out = str(tmp_path / "weights.safetensors")
    assert say(["net", "train", network, data, "--steps", "10", "--local", "2", "--out", out]) == 0
    told = capsys.readouterr().err
    assert re.search(r"step 10  loss \d\.\d{4}  [\d,]+ samples/s", told)
    spec = make_mlp(checkpoint_every=5)
    assert same_bits(load_file(out), reference(spec, make_dataset(spec), 10).state_dict)


def test_what_happens_to_a_run_is_told_between_its_losses(capsys):
    events = [
        tell("step", 1, loss=2.5, samples_per_second=100.0),
        tell("failure", 2, message="seat-1 with b is lost: its lease has ended"),
        tell("state", 3, message="failed: no PNode is left"),
    ]
    assert show_run(ToldRun(events, RunState.FAILED)) == 1
    told = capsys.readouterr().err
    assert "seat-1 with b is lost" in told
    assert "The run is failed. failed: no PNode is left" in told
    assert show_run(ToldRun(events[:1], RunState.SUCCEEDED)) == 0


def test_a_step_is_one_line_with_its_curve():
    event = tell("step", 1_200, loss=0.5, samples_per_second=1_234.0)
    assert describe_step(event, [4.0, 2.0, 1.0]) == "step 1,200  loss 0.5000  1,234 samples/s  █▃▁"


@pytest.mark.parametrize("words", [["create"], ["plan"]])
def test_without_a_hub_it_says_how_to_name_one(words, network, capsys):
    assert say(["net", *words, network]) == EXIT_REFUSED
    assert "computepool sign-in" in capsys.readouterr().err


def test_weights_cannot_be_written_before_there_are_any(network, data, capsys):
    assert say(["net", "train", network, data, "--steps", "5", "--out", "x"]) != 0
    assert "computepool net export" in capsys.readouterr().err


def test_a_file_that_is_no_network_is_refused_with_what_is_wrong(tmp_path, capsys):
    path = tmp_path / "bad.yaml"
    path.write_text("name: x\n")
    assert say(["net", "plan", str(path), "--local", "2"]) == EXIT_REFUSED
    assert "error:" in capsys.readouterr().err
