"""The doctor: what it says of machines that are fine and of others; and the agent's own look before work."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import msgspec
import pytest
from click.testing import CliRunner

from computepool.cli.doctor import command
from computepool.core.jobs.isolation import IsolationLevel
from computepool.node import doctor, self_check
from computepool.node.comfort.port import Seat
from computepool.node.doctor import Examination, examine
from computepool.node.hardware.detect import Detected
from computepool.node.hardware.measured import Measured
from computepool.node.hardware.port import Remark
from computepool.node.hardware.profiles import get_profile_path
from computepool.node.local_status import LocalAgent, LocalStatus
from computepool.node.measurements import Device, Measurements, declare
from computepool.node.sandbox.port import Report
from computepool.node.self_check import (
    Grade,
    check_agent,
    check_cards,
    check_clock,
    check_disk,
    check_sandboxes,
    check_seat,
    find_doubt,
)
from computepool.wire.nodes import Gpu, Hardware

CARD = Gpu(name="NVIDIA GeForce RTX 4090", vram_bytes=24 << 30, driver="550", runtime="CUDA 12.4")
MACHINE = Detected(Hardware(gpus=(CARD,), cores=8, ram_bytes=1, disk_bytes=1), False, ())


def speak(device: Device, detected: Detected = MACHINE) -> tuple[Grade, str]:
    finding = doctor._describe_speed(device, detected)
    return finding.grade, f"{finding.words} {finding.fix}"


def make_measured(**overrides: object) -> Measured:
    return Measured(
        **{"engine": "torch", "tflops": 60.0, "spread_ratio": 0.05, "memory_gb_per_second": 900.0, **overrides}
    )


def test_a_card_is_told_with_its_memory_and_driver():
    (finding,) = check_cards(MACHINE)
    assert finding.words == "NVIDIA GeForce RTX 4090 (24.0 GiB, driver 550, CUDA 12.4)."


def test_a_missing_card_is_told_with_the_fix():
    found = check_cards(
        Detected(Hardware(cores=1, ram_bytes=1, disk_bytes=1), False, (Remark("it is off", "Turn on"),))
    )
    assert [(each.grade, each.words, each.fix) for each in found] == [(Grade.NOTE, "It is off.", "Turn on.")]


def test_too_little_disk_is_a_trouble(tmp_path, monkeypatch):
    assert find_doubt([check_disk(tmp_path)]) is None
    monkeypatch.setattr(self_check, "DISK_FREE_BYTES_MIN", 1 << 60)
    assert "--state-dir" in (find_doubt([check_disk(tmp_path)]) or "")
    assert check_disk(tmp_path / "gone").grade is Grade.TROUBLE


@pytest.mark.parametrize(("skew", "grade"), [(0.4, Grade.FINE), (-3.0, Grade.FINE), (4000.0, Grade.TROUBLE)])
def test_a_clock_that_is_far_off_is_a_trouble(skew, grade):
    assert check_clock(skew).grade is grade


def test_one_sandbox_that_holds_is_enough_and_none_is_a_trouble():
    holds = Report("bubblewrap", IsolationLevel.SANDBOXED, True)
    broken = Report("podman", IsolationLevel.SANDBOXED, False, ("it is not installed",))
    assert [each.grade for each in check_sandboxes([holds, broken])] == [Grade.FINE, Grade.NOTE]
    assert [each.grade for each in check_sandboxes([broken])] == [Grade.TROUBLE]


def test_a_card_that_is_slower_than_its_name_is_told_before_the_hub_finds_out():
    assert speak(Device(slot="gpu:0", measured=make_measured()))[0] is Grade.FINE
    grade, words = speak(Device(slot="gpu:0", measured=make_measured(tflops=10.0)))
    assert grade is Grade.NOTE
    assert "A rtx-4090 shows 45.4 at least" in words


def test_what_was_not_really_measured_is_said():
    assert "the speed of Python" in speak(Device(slot="cpu:0", measured=make_measured(engine="plain Python")))[1]
    assert "busy" in speak(Device(slot="cpu:0", measured=make_measured(spread_ratio=0.6)))[1]
    assert "Install torch" in speak(Device(slot="gpu:0", trouble="nothing can compute on it"))[1]


def test_measured_speeds_are_declared_and_missing_ones_are_not():
    measured = Measurements(
        hardware_sha256="", devices=[Device(slot="cpu:0", measured=make_measured(tflops=0.5)), Device(slot="gpu:0")]
    )
    hardware = declare(MACHINE, measured).hardware
    assert (hardware.cpu_tflops, hardware.gpus[0].tflops) == (0.5, None)


async def test_a_played_machine_is_examined_without_a_hub(tmp_path):
    found = await examine(state_dir=tmp_path / "not" / "yet", profile=get_profile_path("rtx-3060"), probe=False)
    assert found.ready
    assert {each.topic for each in found.findings} == {"machine", "gpu", "region", "disk", "seat"}
    assert found.speeds == []


async def test_a_hub_that_does_not_answer_is_a_trouble_with_a_fix(tmp_path):
    found = await examine(
        state_dir=tmp_path, hub_url="http://127.0.0.1:9", profile=get_profile_path("cpu-only"), probe=False
    )
    assert not found.ready
    assert [each.topic for each in found.findings if each.grade is Grade.TROUBLE] == ["hub"]


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without the sandbox's tries, which have tests of their own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("HUB_URL", raising=False)
    monkeypatch.setattr(doctor, "_try_sandboxes", lambda: (Report("bubblewrap", IsolationLevel.SANDBOXED, True),))


@pytest.mark.usefixtures("examined")
def test_the_command_prints_plain_words_or_json():
    shown = CliRunner().invoke(command, ["--profile", "rtx-4090", "--fast"], standalone_mode=False)
    assert shown.return_value == 0
    assert "NVIDIA GeForce RTX 4090 (24.0 GiB, driver 550.54.14)." in shown.output
    assert "ready to be lent" in shown.output
    said = CliRunner().invoke(command, ["--profile", "rtx-4090", "--json"], standalone_mode=False).output
    assert msgspec.json.decode(said, type=Examination).ready


@pytest.mark.usefixtures("examined")
def test_the_command_fails_when_no_work_would_be_taken(monkeypatch):
    monkeypatch.setattr(self_check, "DISK_FREE_BYTES_MIN", 1 << 60)
    shown = CliRunner().invoke(command, ["--profile", "cpu-only", "--fast"], standalone_mode=False)
    assert shown.return_value == 1
    assert "-> Free some" in shown.output


def test_the_doctor_says_how_the_owner_is_seen_and_what_their_agent_does(tmp_path):
    seen = check_seat(Seat(12.0, "by the X server"))
    assert (seen.grade, "by the X server" in seen.words) == (Grade.FINE, True)
    assert check_seat(Seat(None, "DISPLAY is not set")).grade is Grade.NOTE
    status = LocalStatus(
        pid=1,
        node_id=uuid4(),
        name="attic",
        hub_url="h",
        version="1",
        owner_words="You are here.",
        rules_path=str(tmp_path / "comfort.toml"),
    )
    agent = LocalAgent(tmp_path, status, True)
    told = check_agent(agent, now_seconds=1.0)
    assert told.grade is Grade.NOTE
    assert "You are here." in told.words
    (tmp_path / "comfort.toml").write_text("idle_minuts = 3")
    refused = check_agent(agent, now_seconds=1.0)
    assert refused.grade is Grade.TROUBLE
    assert "idle_minuts" in refused.words
