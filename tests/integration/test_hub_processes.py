"""The parent of several hub processes, with real processes that do as a test tells them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from computepool.hub.processes import listen_shared, port_held
from computepool.settings import InvalidSettings
from tests.support.hub_process import free_port
from tests.support.living import is_alive
from tests.support.quickest import quickest

PATIENCE_SECONDS = 60.0
PARENT = """
import logging, os, select, signal, sys, time
from computepool.hub.processes import HubProcesses

logging.basicConfig(level="INFO", stream=sys.stderr)

def live(number, parent):
    with open(sys.argv[1], "a") as diary:
        diary.write(f"{number} {os.getpid()} {time.monotonic()}\\n")
    return obey(number, parent)

def wait_for_parent(number, parent):
    select.select([parent], [], [])
    return 0

def say(*words):
    # Not by print: a signal may come while it writes, and its handler has something to say too.
    os.write(2, (" ".join(map(str, words)) + "\\n").encode())

def obey(number, parent):
%s

sys.exit(HubProcesses(3, live).run())
"""


class Family:
    """A parent, and the diary in which each of its processes writes its number and its pid when it starts."""

    def __init__(self, folder: Path, obey: str) -> None:
        self.diary = folder / "diary"
        self.diary.touch()
        self.log = folder / "log"
        code = PARENT % textwrap.indent(obey, "    ")
        with self.log.open("wb") as log:
            self.parent = subprocess.Popen(
                [sys.executable, "-c", code, str(self.diary)], stderr=log, start_new_session=True
            )

    def list_started(self) -> list[tuple[int, int]]:
        lines = self.diary.read_text().splitlines()
        return [(int(number), int(pid)) for number, pid, _ in map(str.split, lines)]

    def list_moments(self, number: int) -> list[float]:
        """When the process of this number was started."""
        lines = map(str.split, self.diary.read_text().splitlines())
        return [float(moment) for each, _, moment in lines if int(each) == number]

    def await_started(self, count: int) -> list[tuple[int, int]]:
        until(lambda: len(self.list_started()) >= count, f"{count} starts:\n{self.log.read_text()}")
        return self.list_started()

    def await_said(self, words: str) -> None:
        """By all three."""
        until(lambda: self.log.read_text().count(words) == 3, f"three times {words!r}:\n{self.log.read_text()}")

    def kill(self) -> None:
        self.parent.kill()
        self.parent.wait()
        for _, pid in self.list_started():
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)


def until(check: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not check():
        assert time.monotonic() < deadline, f"waited for {what}"
        time.sleep(0.02)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Family]]:
    started: list[Family] = []

    def start(obey: str) -> Family:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        started.append(Family(folder, obey))
        return started[-1]

    yield start
    for family in started:
        family.kill()


def test_a_hub_process_that_was_killed_is_started_again_and_the_others_never_notice(start):
    family = start("return wait_for_parent(number, parent)")
    first = dict(family.await_started(3))
    assert sorted(first) == [1, 2, 3]
    os.kill(first[2], signal.SIGKILL)
    number, pid = family.await_started(4)[-1]
    assert number == 2
    assert pid != first[2]
    assert is_alive(first[1])
    assert is_alive(first[3])
    assert "hub_process_died number=2" in family.log.read_text()


def test_one_that_dies_at_once_is_started_less_and_less_often(start):
    family = start("return 1 if number == 1 else wait_for_parent(number, parent)")
    until(lambda: len(family.list_moments(1)) >= 4, "four starts")
    pauses = [later - earlier for earlier, later in pairwise(family.list_moments(1))]
    # A busy machine adds to them and takes nothing off.
    assert all(pause >= least for pause, least in zip(pauses, (0.45, 0.95, 1.95), strict=False)), pauses


def test_when_all_refuse_to_start_the_parent_ends_with_their_code(start):
    family = start("return 2")
    assert family.parent.wait(PATIENCE_SECONDS) == 2


def test_when_one_refuses_to_start_the_others_go_on(start):
    family = start("return 2 if number == 1 else wait_for_parent(number, parent)")
    started = family.await_started(4)
    assert family.parent.poll() is None
    assert all(is_alive(pid) for number, pid in started if number != 1)


@pytest.mark.parametrize("deaf", [False, True], ids=["obedient", "deaf"])
def test_sigterm_ends_all_within_five_seconds(start, deaf):
    obey = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" if deaf else ""

    def end_one() -> float:
        family = start(obey + "say('ready')\nreturn wait_for_parent(number, parent)")
        family.await_said("ready")
        started = family.list_started()
        told_at = time.monotonic()
        family.parent.terminate()
        assert family.parent.wait(PATIENCE_SECONDS) == 0
        seconds = time.monotonic() - told_at
        assert not any(is_alive(pid) for _, pid in started)
        return seconds

    assert quickest(end_one, enough=5.0) < 5.0


def test_ctrl_c_reaches_the_hub_processes_only_by_way_of_the_parent(start):
    """The terminal tells the whole group; a hub process that heard it twice would not end gently."""
    family = start(
        "heard = []\n"
        "for each in (signal.SIGINT, signal.SIGTERM):\n"
        "    signal.signal(each, lambda caught, _: heard.append(caught) or say('heard', heard) or sys.exit(0))\n"
        "say('ready')\n"
        "return wait_for_parent(number, parent)"
    )
    family.await_said("ready")
    os.killpg(family.parent.pid, signal.SIGINT)
    assert family.parent.wait(PATIENCE_SECONDS) == 0
    family.await_said("heard [15]")


def test_hub_processes_end_with_a_parent_that_was_killed(start):
    family = start("return wait_for_parent(number, parent)")
    started = family.await_started(3)
    family.parent.kill()
    until(lambda: not any(is_alive(pid) for _, pid in started), "the orphans to end")


def test_the_port_is_shared_among_ours_and_refused_to_others():
    port = free_port()
    with port_held("127.0.0.1", port):
        with listen_shared("127.0.0.1", port), listen_shared("127.0.0.1", port):
            pass
        with pytest.raises(OSError), socket.create_server(("127.0.0.1", port)):
            pass
        with pytest.raises(InvalidSettings, match=str(port)), port_held("127.0.0.1", port):
            pass


def test_a_port_that_somebody_has_is_not_shared_with_him():
    port = free_port()
    with listen_shared("127.0.0.1", port), pytest.raises(InvalidSettings), port_held("127.0.0.1", port):
        pass
