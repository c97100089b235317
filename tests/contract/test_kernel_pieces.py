"""Single pieces of the sandbox against the real kernel, where a whole job would not show them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from computepool import entropy
from computepool.node.sandbox import cgroup_v2, cgroups, leftovers
from computepool.node.sandbox.bubblewrap import Bubblewrap
from computepool.node.sandbox.port import Limits
from tests.contract.sandbox_lab import MEGABYTE, list_processes_with, wait_until
from tests.support.quickest import quickest

# In a process of its own, because it moves into a mount namespace for good.
DISK_STORY = """
import os, sys
from computepool.node.sandbox import disk
name, state_dir, disk_bytes, kind = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
if kind == "tmpfs":
    def no_loop_device(*_):
        raise OSError("no loop device")
    disk._run_tool = no_loop_device
made = disk.create_disk(name, disk_bytes=disk_bytes, uid=12345, state_dir=state_dir)
space = os.statvfs(made.mount_point)
line = next(line for line in open("/proc/self/mountinfo") if made.mount_point in line)
owner = os.stat(made.mount_point).st_uid
written = 0
try:
    with open(made.mount_point + "/hog", "wb", buffering=0) as file:
        while written < 3 * disk_bytes:
            written += file.write(bytes(1 << 16))
except OSError as error:
    print("refused", error.errno)
print("free", space.f_bavail * space.f_frsize)
print("written", written)
print("owner", owner)
print("options", line.split()[5], line.split(" - ")[1].split()[0])
print("entries", os.listdir(made.mount_point))
made.remove()
print("left", os.path.exists(made.mount_point), os.path.exists(disk.plan_image(state_dir)))
"""


@pytest.mark.parametrize(("kind", "file_system"), [("image", "ext4"), ("tmpfs", "tmpfs")])
def test_job_folder_has_the_size_that_was_asked_for(kind: str, file_system: str, tmp_path: Path) -> None:
    asked = 8 * MEGABYTE
    name = f"disk-test-{entropy.new_id()}"
    mounts_before = Path("/proc/self/mountinfo").read_text()
    done = subprocess.run(
        [sys.executable, "-c", DISK_STORY, name, str(tmp_path), str(asked), kind],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())

    assert said["refused"] == "28"
    assert asked <= int(said["free"]) < asked * 1.1
    assert asked <= int(said["written"]) < asked * 1.1
    assert said["owner"] == "12345"
    assert said["options"].endswith(file_system)
    assert {"nosuid", "nodev"} <= set(said["options"].split()[0].split(","))
    assert said["entries"] == "['hog']"
    assert said["left"] == "False False"
    assert name not in mounts_before + Path("/proc/self/mountinfo").read_text()


@pytest.fixture
def real_v2_group() -> Iterator[cgroup_v2.V2Cgroup]:
    """A version 2 group without controllers, which any machine with the file system mounted can make."""
    lines = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    points = [words[4] for words in lines if words[words.index("-") + 1] == "cgroup2"]
    if not points:
        pytest.skip("SKIPPED LOUDLY: no version 2 control groups are mounted here")
    path = Path(points[0]) / f"computepool-test-{entropy.new_id()}"
    path.mkdir()
    yield cgroup_v2.V2Cgroup(str(path))
    cgroups.remove_leftover(str(path))


def test_v2_group_takes_a_process_with_its_children_and_kills_them_all(real_v2_group: cgroup_v2.V2Cgroup) -> None:
    word = entropy.new_secret(12)
    doors = real_v2_group.open_doors()

    def enter() -> None:
        for door in doors:
            os.write(door, b"0")

    script = "for i in 1 2 3; do setsid sleep 60 & done; exec sleep 60"
    process = subprocess.Popen(["sh", "-c", script, word], preexec_fn=enter)
    for door in doors:
        os.close(door)
    wait_until(lambda: len(real_v2_group.process_ids()) == 4, 60.0, "not all children are in the group")
    real_v2_group.kill()

    assert real_v2_group.process_ids() == []
    assert process.wait(60) == -signal.SIGKILL
    assert list_processes_with(word) == []
    real_v2_group.remove()
    assert not Path(real_v2_group.path).exists()


def test_leftover_group_with_living_processes_is_emptied_and_removed(tmp_path: Path) -> None:
    site = cgroups.find_site()
    name = f"leftover-{entropy.new_id()}"
    leftovers.write_note(str(tmp_path), cgroup_paths=site.plan_paths(name), mount_point=None, image=None)
    group = site.create(name, Limits(64 * MEGABYTE, 16, 1.0, MEGABYTE, 1.0, 1000))
    doors = group.open_doors()

    def enter() -> None:
        for door in doors:
            os.write(door, b"0")

    process = subprocess.Popen(["sleep", "60"], preexec_fn=enter)
    for door in doors:
        os.close(door)

    assert leftovers.give_back(str(tmp_path))
    assert process.wait(60) == -signal.SIGKILL
    assert not any(Path(path).exists() for path in group.paths)
    assert not leftovers.give_back(str(tmp_path))


def test_probe_is_quick_and_leaves_nothing(tmp_path: Path) -> None:
    def probe() -> float:
        began = time.monotonic()
        report = Bubblewrap().probe()
        seconds = time.monotonic() - began
        assert report.usable, report.reasons
        return seconds

    assert quickest(probe, enough=1.0) < 1.0
    paths = cgroups.find_site().plan_paths(f"probe-{os.getpid()}")
    assert not any(Path(path).exists() for path in paths)
