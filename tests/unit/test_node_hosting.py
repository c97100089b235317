"""The agent's part in hosting: what it says of its machine, whom it starts, and how soon a host is gone again.

A program of a few lines plays the host here; the real one is in the acceptance tests of networks.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from computepool.core.jobs.cause import Cause
from computepool.node import hosting
from computepool.node.config import Device, NodeConfig
from computepool.node.host_options import MachineView
from computepool.node.hosting import CannotHost, HostProcesses, count_memory, make_env, prepare_hosting
from computepool.wire.attempts import Controls, HostOrder
from tests.support.agent_world import Line, World, id_of, until
from tests.support.quickest import quickest_of

GB = 10**9
# Writes what it was told and its own number, then waits for the end of its agent or a signal.
OBEDIENT = "import os,sys; open({path!r}, 'w').write(str(os.getpid()) + ' ' + sys.stdin.readline()); sys.stdin.read()"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + OBEDIENT
MACHINE = MachineView(numeric_class="torch-2/x/1-thread", flops_per_second=1e9, device="cpu")


class HostWorld:
    """An agent that hosts networks, and where its hosts say what they were told."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, program: str = OBEDIENT) -> None:
        self.line = Line()
        self.world = World(folder / "state", self.line)
        self.path = folder / "told"
        monkeypatch.setattr(hosting, "PROGRAM", ("-c", program.format(path=str(self.path))))
        processes = HostProcesses(NodeConfig(hub_url="http://hub"), MACHINE, memory_bytes=3 * GB)
        self.set_hosting(processes)

    def set_hosting(self, processes: HostProcesses | None) -> None:
        self.world.around = replace(self.world.around, hosting=processes)
        self.world.holdings._around = self.world.around

    def give_seat(self) -> Any:
        """The hub's answer with a seat in it."""
        order = HostOrder(run_id=uuid4(), seat="seat-1", rpc_address="hub:7000")
        answer = self.world.assign(host=order)
        self.world.holdings.accept(answer)
        return answer

    async def read_host(self) -> tuple[int, dict[str, Any]]:
        """Its process and what it was told."""
        await until(lambda: self.path.exists() and self.path.read_text().endswith("\n"))
        pid, _, told = self.path.read_text().partition(" ")
        return int(pid), json.loads(told)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_seat_is_filled_by_a_process_that_is_told_all_on_its_standard_input(tmp_path, monkeypatch):
    at = HostWorld(tmp_path, monkeypatch)
    answer = at.give_seat()
    _, told = await at.read_host()
    assert told["attempt_id"] == str(id_of(answer))
    assert (told["seat"], told["rpc_address"], told["lease_secret"]) == ("seat-1", "hub:7000", "s")
    assert (told["listen"], told["advertise"]) == ("0.0.0.0:0", "0.0.0.0:{port}")
    assert told["memory_bytes"] == 3 * GB
    assert at.world.holdings.free_slots == ("cpu:1",)
    await at.world.close()


async def test_a_node_that_listens_nowhere_tells_no_address(tmp_path, monkeypatch):
    at = HostWorld(tmp_path, monkeypatch)
    config = NodeConfig(hub_url="http://hub", networks_listen="none")
    at.set_hosting(HostProcesses(config, MACHINE, memory_bytes=GB))
    at.give_seat()
    _, told = await at.read_host()
    assert (told["listen"], told["advertise"]) == ("127.0.0.1:0", "")
    await at.world.close()


async def test_a_host_that_the_hub_stops_is_gone_and_nobody_is_told(tmp_path, monkeypatch):
    at = HostWorld(tmp_path, monkeypatch)
    answer = at.give_seat()
    pid, _ = await at.read_host()
    at.world.holdings.obey(Controls(stop={id_of(answer): Cause.SUPERSEDED}))
    await at.world.settle()
    assert not is_running(pid)
    assert at.line.calls == []
    assert at.world.holdings.free_slots == ("cpu:0", "cpu:1")
    await at.world.close()


@pytest.mark.parametrize("drained_by", ["signal", "hub"])
async def test_a_node_that_takes_no_more_work_ends_its_hosts_at_once_and_says_why(tmp_path, monkeypatch, drained_by):
    at = HostWorld(tmp_path, monkeypatch)
    at.give_seat()
    pid, _ = await at.read_host()
    if drained_by == "signal":
        at.world.holdings.leave()
    else:
        at.world.holdings.obey(Controls(drain=True))
    await at.world.settle()
    assert not is_running(pid)
    assert at.line.told["cause"] == "owner_returned"
    await at.world.close()


async def test_a_host_that_does_not_listen_is_ended_by_force_within_two_seconds(tmp_path, monkeypatch):
    folders = iter(range(100))

    async def end_one() -> float:
        folder = tmp_path / str(next(folders))
        folder.mkdir()
        at = HostWorld(folder, monkeypatch, program=STUBBORN)
        at.give_seat()
        pid, _ = await at.read_host()
        began = time.monotonic()
        at.world.holdings.leave()
        await at.world.settle()
        seconds = time.monotonic() - began
        assert not is_running(pid)
        await at.world.close()
        assert seconds > 1.0, "it was given time to end by itself"
        return seconds

    assert await quickest_of(end_one, enough=4.0) < 4.0


async def test_a_host_leaves_when_the_owner_returns(tmp_path, monkeypatch):
    at = HostWorld(tmp_path, monkeypatch, program=STUBBORN)
    at.give_seat()
    pid, _ = await at.read_host()
    at.world.holdings.make_way("You are here.", grace_seconds=1.0)
    await at.world.settle()
    assert not is_running(pid)
    assert at.line.told["cause"] == Cause.OWNER_RETURNED.value
    await at.world.close()


async def test_an_agent_that_ends_leaves_no_host_behind(tmp_path, monkeypatch):
    at = HostWorld(tmp_path, monkeypatch)
    at.give_seat()
    pid, _ = await at.read_host()
    await at.world.close()
    assert not is_running(pid)


async def test_a_host_that_dies_is_the_nodes_fault_and_not_the_submitters(tmp_path, monkeypatch):
    at = HostWorld(tmp_path, monkeypatch)
    at.give_seat()
    pid, _ = await at.read_host()
    os.kill(pid, 9)
    await at.world.settle()
    assert at.line.told["cause"] == "sandbox_refused"
    assert at.line.told["message"] == "the host ended by signal 9; the node's log says more"
    await at.world.close()


async def test_a_seat_is_never_filled_twice(tmp_path, monkeypatch):
    at = HostWorld(tmp_path, monkeypatch)
    answer = at.give_seat()
    pid, _ = await at.read_host()
    os.kill(pid, 9)
    await at.world.settle()
    at.path.unlink()
    at.world.holdings.accept(answer)
    await at.world.settle()
    assert at.line.told["message"] == "this attempt was started here before"
    assert not at.path.exists()
    await at.world.close()


async def test_a_node_without_networks_refuses_a_seat_and_says_how_to_change_that(tmp_path, monkeypatch):
    at = HostWorld(tmp_path, monkeypatch)
    at.set_hosting(None)
    at.give_seat()
    await at.world.settle()
    assert at.line.told["cause"] == "sandbox_refused"
    assert "--networks" in at.line.told["message"]
    assert not at.path.exists()
    await at.world.close()


def test_a_host_sees_nothing_of_the_agents_secrets():
    env = {"PATH": "/bin", "COMPUTEPOOL_NODE_OWNER_KEY": "secret", "AWS_SECRET_ACCESS_KEY": "secret"}
    passed = make_env(NodeConfig(hub_url="http://hub", networks_threads=2), env)
    assert "secret" not in passed.values()
    assert (passed["PATH"], passed["COMPUTEPOOL_NODE_NETWORKS_THREADS"]) == ("/bin", "2")


# What it says of its machine


async def test_the_machine_is_described_by_a_process_of_its_own(tmp_path):
    world = World(tmp_path, Line())
    found = await prepare_hosting(world.around.config, world.around.slots.values())
    assert found.offer.numeric_class.startswith("torch-")
    assert found.offer.numeric_class.endswith("/1-thread")
    assert found.offer.flops_per_second > 1e6
    # Two slots share four gigabytes, and a host takes some of its slot for itself.
    assert found.offer.memory_bytes == 2 * GB - hosting.OWN_BYTES[Device.CPU]
    await world.close()


async def test_without_the_library_the_owner_is_told_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setattr(hosting, "NEEDED", ("no_such_library", "no_such.part"))
    world = World(tmp_path, Line())
    with pytest.raises(
        CannotHost, match=r"needs no_such_library, no_such\.part.*pip install 'computepool\[networks\]'"
    ):
        await prepare_hosting(world.around.config, world.around.slots.values())
    await world.close()


async def test_a_library_that_is_broken_is_told_with_its_own_words(tmp_path, monkeypatch):
    monkeypatch.setattr(hosting, "PROGRAM", ("-c", "raise ImportError('libgomp.so.1 is missing')"))
    world = World(tmp_path, Line())
    with pytest.raises(CannotHost, match=r"libgomp\.so\.1 is missing"):
        await prepare_hosting(world.around.config, world.around.slots.values())
    await world.close()


async def test_a_slot_that_is_too_small_or_has_no_gpu_hosts_nothing(tmp_path):
    world = World(tmp_path, Line(), cpu_slots=2)
    slots = list(world.around.slots.values())
    small = [replace(slot, ram_bytes=GB // 10) for slot in slots]
    with pytest.raises(CannotHost, match=r"has 0\.1 GB"):
        count_memory(Device.CPU, [*slots, *small])
    with pytest.raises(CannotHost, match="CPU_SLOTS=0"):
        count_memory(Device.CUDA, slots)
    await world.close()
