"""The demo's promises, its jobs run by hand, and the settings it gives to its children."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from computepool.cli.demo import describe_links, sweep_table
from computepool.cli.demo_examples import (
    LARGE,
    PICTURE,
    SWEEP,
    TILE_COLUMNS,
    best_setting,
    count_use,
    list_faults,
    read_sweep,
    stitch_picture,
)
from computepool.cli.demo_grid import HOSTING, OWNERS, DemoFailed, choose_port, default_folder, hub_env, spread
from computepool.cli.demo_network import SEATS, Outcome, describe_missing, describe_outcome, list_network_faults
from computepool.cli.fleet import PROFILES, Member, agent_env
from computepool.core.jobs.state import AttemptState, JobState, SliceState
from computepool.core.networks.run import RunState
from computepool.wire.jobs import Attempt, Slice

BIG, SMALL = UUID(int=1), UUID(int=2)
TIERS = {BIG: "rtx-4090", SMALL: "rtx-3060"}
NODES = [("big", BIG, "Asha", "rtx-4090"), ("small", SMALL, "Chen", "rtx-3060")]


def make_slice(node_id: UUID, state: AttemptState = AttemptState.SUCCEEDED) -> Slice:
    attempt: dict[str, Any] = {"id": UUID(int=5), "number": 1, "slot": "gpu:0", "leased_at": "2026-01-01T00:00:00Z"}
    return Slice(
        index=0,
        state=SliceState.SUCCEEDED,
        attempt_count=1,
        attempts=[Attempt(**attempt, node_id=node_id, state=state, run_seconds=1.5)],
    )


def faults_of(slices: dict[str, list[Slice]], **states: JobState) -> list[str]:
    use = count_use(slices, NODES)
    return list_faults({name: states.get(name, JobState.SUCCEEDED) for name in slices}, slices, use, TIERS)


def test_a_good_demo_has_no_faults() -> None:
    assert faults_of({SWEEP: [make_slice(SMALL)], LARGE: [make_slice(BIG)]}) == []


def test_a_demo_without_a_dashboard_says_how_to_get_it() -> None:
    links = {"Dana": "http://hub/sign-in?token=x", "the operator": "http://hub/sign-in?token=y"}
    assert describe_links(links, has_site=True).startswith("Open the dashboard")
    assert "as the operator: http://hub/sign-in?token=y" in describe_links(links, has_site=True)
    bare = describe_links(links, has_site=False)
    assert "http://hub/sign-in?token=x" in bare
    assert "make web builds it (Node 20.9 or newer, with npm)" in bare


def test_a_node_that_ran_nothing_is_a_fault() -> None:
    assert faults_of({SWEEP: [make_slice(BIG)]}) == ["node small ran no slice"]
    lost = {SWEEP: [make_slice(BIG), make_slice(SMALL, AttemptState.LOST)]}
    assert faults_of(lost) == ["node small ran no slice"]


def test_a_large_job_on_a_small_card_is_a_fault() -> None:
    assert "tier rtx-3060" in faults_of({LARGE: [make_slice(BIG), make_slice(SMALL)]})[0]


def test_a_job_that_did_not_succeed_is_a_fault() -> None:
    slices = {SWEEP: [make_slice(BIG), make_slice(SMALL)]}
    assert faults_of(slices, sweep=JobState.FAILED) == ["job sweep is failed"]


def test_time_is_counted_per_node() -> None:
    use = count_use({SWEEP: [make_slice(BIG), make_slice(BIG)]}, NODES)
    assert [(node.slice_count, node.busy_seconds) for node in use] == [(2, 3.0), (0, 0.0)]


def run_slice(program: str, index: int, folder: Path) -> str:
    """As a node would: by name of the file, with nothing of this environment."""
    (folder / str(index)).mkdir(parents=True)
    env = {
        "COMPUTEPOOL_SLICE_INDEX": str(index),
        "COMPUTEPOOL_OUTPUT_DIR": str(folder / str(index)),
        "PATH": os.environ["PATH"],
    }
    path = str(files("computepool.cli.demo_jobs").joinpath(program))
    return subprocess.run([sys.executable, "-I", path], env=env, check=True, capture_output=True, text=True).stdout


def test_the_sweep_learns_and_its_best_setting_is_found(tmp_path: Path) -> None:
    for index in (0, 10, 16):
        assert "unseen points right" in run_slice("sweep.py", index, tmp_path)
    settings = read_sweep(tmp_path)
    assert [(setting.rate, setting.width) for setting in settings] == [(0.003, 2), (0.3, 4), (0.3, 8)]
    assert all(setting.loss[-1] < setting.loss[0] for setting in settings)
    assert best_setting(settings).accuracy > 0.98 > settings[0].accuracy


def test_the_sweep_gives_the_same_result_on_every_machine(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        run_slice("sweep.py", 5, tmp_path / folder)
    first, second = (read_sweep(tmp_path / folder) for folder in ("a", "b"))
    assert first == second


def test_a_table_of_the_sweep_has_a_row_per_width_and_a_column_per_rate(tmp_path: Path) -> None:
    for index in (0, 6):
        run_slice("sweep.py", index, tmp_path)
    table = sweep_table(read_sweep(tmp_path))
    assert [str(column.header) for column in table.columns] == ["WIDTH", "0.003"]
    assert table.row_count == 2


def test_tiles_become_one_picture(tmp_path: Path) -> None:
    for index in range(TILE_COLUMNS):
        run_slice("mandelbrot.py", index, tmp_path / PICTURE)
    picture = stitch_picture(tmp_path / PICTURE, tmp_path / "whole.png")
    assert picture.read_bytes()[16:24] == (768).to_bytes(4, "big") + (128).to_bytes(4, "big")


def test_the_large_job_plans_with_the_memory_it_asked_for(tmp_path: Path) -> None:
    run_slice("large_card.py", 0, tmp_path)
    assert json.loads((tmp_path / "0" / "plan.json").read_text())["fits"] == 9


def test_the_demo_jobs_use_the_standard_library_only() -> None:
    for program in ("sweep.py", "mandelbrot.py", "large_card.py"):
        source = files("computepool.cli.demo_jobs").joinpath(program).read_text(encoding="utf-8")
        imports = {
            line.split()[1].split(".")[0] for line in source.splitlines() if line.startswith(("import ", "from "))
        }
        assert imports <= set(sys.stdlib_module_names)


def test_the_machines_are_spread_over_three_owners() -> None:
    members = spread(PROFILES, {name: f"key-{name}" for name in OWNERS})
    assert [member.profile for member in members] == list(PROFILES)
    assert {member.owner_key for member in members} == {f"key-{name}" for name in OWNERS}


def test_settings_of_other_hubs_and_agents_do_not_reach_the_children(tmp_path: Path) -> None:
    env = {
        "PATH": "/bin",
        "COMPUTEPOOL_NODE_NAME": "mine",
        "COMPUTEPOOL_HUB_DEMO": "0",
        "DATABASE_URL": "postgres://prod",
    }
    agent = agent_env(env, Member("a", "rtx-4090", "k"), hub_url="http://h", state_dir=tmp_path)
    hub = hub_env(env, folder=tmp_path, host="127.0.0.1", port=8123)
    assert agent["COMPUTEPOOL_NODE_NAME"] == "a"
    assert "COMPUTEPOOL_HUB_DEMO" not in agent
    assert hub["COMPUTEPOOL_HUB_DEMO"] == "true"
    assert hub["PORT"] == "8123"
    assert "DATABASE_URL" not in hub
    assert hub["PATH"] == agent["PATH"] == "/bin"


def test_without_networks_neither_hub_nor_nodes_know_of_them(tmp_path: Path) -> None:
    env = {"PATH": "/bin"}
    keys = dict.fromkeys(OWNERS, "k")
    plain, hosting = spread(PROFILES, keys), spread(PROFILES, keys, hosting=HOSTING)
    assert not any(member.networks for member in plain)
    # One may be away while another steps in.
    assert sum(member.networks for member in hosting) > SEATS
    wanted = "COMPUTEPOOL_NODE_NETWORKS"
    assert wanted not in agent_env(env, plain[0], hub_url="http://h", state_dir=tmp_path)
    assert agent_env(env, hosting[0], hub_url="http://h", state_dir=tmp_path)[wanted] == "true"
    assert "COMPUTEPOOL_HUB_RPC_PORT" not in hub_env(env, folder=tmp_path, host="127.0.0.1", port=1)
    hub = hub_env(env, folder=tmp_path, host="0.0.0.0", port=1, rpc_port=2)
    assert (hub["COMPUTEPOOL_HUB_RPC_HOST"], hub["COMPUTEPOOL_HUB_RPC_PORT"]) == ("127.0.0.1", "2")


GOOD = Outcome(RunState.SUCCEEDED, "", steps=3_000, failures=2, last_loss=0.25, same_curve=True)


def test_a_network_that_came_through_has_no_faults_and_says_what_it_came_to() -> None:
    assert list_network_faults(GOOD, steps=3_000) == []
    told = describe_outcome(GOOD)
    assert "3,000 steps, loss 0.2500, 2 failures survived; its curve equals that of one process, bit for bit" in told


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"state": RunState.FAILED, "message": "no seats"}, "the network failed: no seats"),
        ({"steps": 2_999}, "the network's curve has 2999 steps of 3000"),
        ({"failures": 0}, "the network lost no machine: nothing was shown"),
        ({"same_curve": False}, "the network's curve is not that of one process"),
    ],
)
def test_a_network_that_did_not_keep_a_promise_has_that_fault_alone(change: dict[str, Any], fault: str) -> None:
    outcome = replace(GOOD, **change)
    assert list_network_faults(outcome, steps=3_000) == [fault]
    assert ("does NOT equal" in describe_outcome(outcome)) is not outcome.same_curve


def test_a_demo_without_torch_says_how_to_get_the_network() -> None:
    assert "that needs torch. Install them: pip install 'computepool[networks]'" in describe_missing(["torch"])


@pytest.mark.parametrize(("is_root", "folder"), [(True, "/var/lib/computepool-demo"), (False, "/x/computepool-demo")])
def test_the_demo_lives_where_its_user_may_write(is_root: bool, folder: str) -> None:
    assert default_folder({"XDG_STATE_HOME": "/x"}, is_root=is_root) == Path(folder)


def test_a_port_that_is_taken_is_passed_over() -> None:
    with socket.socket() as taken, socket.socket() as other:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        other.bind(("127.0.0.1", 0))
        busy, free = taken.getsockname()[1], other.getsockname()[1]
        other.close()
        assert choose_port("127.0.0.1", [busy, free]) == free
        with pytest.raises(DemoFailed, match=f"Port {busy} of"):
            choose_port("127.0.0.1", [busy])
