"""The same sandbox for an agent that is not root, in control groups that root has handed to it.

There the job's folder is a tmpfs inside the sandbox, filled and emptied by the runner through its first process.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import computepool
from computepool import entropy
from computepool.node.sandbox import cgroup_v1, cgroups
from tests.contract.sandbox_lab import AS_USER, MEGABYTE, PLAIN_UID, PYTHON

# The agent's part, played by the plain user: start an attempt, wait for it, say how it went.
AGENT = """
import json, sys, time
from pathlib import Path
from computepool.node.runner import handle
from computepool.node.runner.request import AttemptRequest
request = AttemptRequest.from_json(json.load(sys.stdin))
state_dir = Path(sys.argv[1])
handle.spawn(state_dir, request)
while (status := handle.read_status(state_dir)).state in ("starting", "running"):
    time.sleep(0.01)
log = state_dir / "log"
outputs = {each.path: (state_dir / "outputs" / each.path).read_text() for each in status.outputs}
print(json.dumps({**status.to_json(), "log": log.read_text() if log.exists() else "", "contents": outputs}))
handle.cleanup(state_dir)
"""


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """A folder of the plain user, with a copy of the package: the one under test may stand in a private home."""
    folder = Path(tempfile.mkdtemp(prefix="computepool-plain-"))
    package = Path(computepool.__file__).parent
    for name in ("__init__.py", "clock.py", "entropy.py"):
        (folder / "computepool").mkdir(exist_ok=True)
        shutil.copy(package / name, folder / "computepool" / name)
    for name in ("core", "node"):
        shutil.copytree(package / name, folder / "computepool" / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "input").write_text("from outside")
    (folder / "input").chmod(0o644)
    folder.chmod(0o755)
    os.chown(folder, PLAIN_UID, PLAIN_UID)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def groups() -> Iterator[list[Path]]:
    """One control group per controller, owned by the plain user."""
    site = cgroups.find_site()
    if not isinstance(site, cgroup_v1.V1Site):
        pytest.fail("this test hands over version 1 groups; on a version 2 machine it needs one delegated subtree")
    name = f"computepool-handed-{entropy.new_id()}"
    made = [Path(base) / name for base in dict.fromkeys(site.bases.values())]
    for group in made:
        group.mkdir()
        for path in (group, group / "cgroup.procs", group / "tasks"):
            os.chown(path, PLAIN_UID, PLAIN_UID)
    yield made
    for group in made:
        assert [each for each in group.iterdir() if each.is_dir()] == [], "a job's group was left behind"
        cgroups.remove_leftover(str(group))


def run_as_plain_user(home: Path, groups: list[Path], *command: str, **overrides: Any) -> dict[str, Any]:
    name = str(entropy.new_id())
    limits = {
        "memory_bytes": 96 * MEGABYTE,
        "pids_max": 32,
        "cpu_cores": 1.0,
        "disk_bytes": 8 * MEGABYTE,
        "wall_seconds": 10.0,
        "log_bytes": 10_000,
    }
    request = {
        "attempt_id": name,
        "command": list(command),
        "env": overrides.pop("env", {}),
        "inputs": [{"path": "deep/input", "source": str(home / "input")}],
        "limits": {**limits, **overrides},
        "isolation": "sandboxed",
        "slot": "cpu:0",
        "lease_seconds": 60,
        "agent_alive_path": str(home),
    }
    doors = " ".join(str(group / "cgroup.procs") for group in groups)
    enter = ("sh", "-c", f'for door in {doors}; do echo 0 > "$door"; done; exec "$@"', "sh") if groups else ()
    done = subprocess.run(
        [*enter, *AS_USER, PYTHON, "-c", AGENT, str(home / name)],
        env={"PYTHONPATH": str(home), "PATH": os.environ["PATH"], "COMPUTEPOOL_NODE_TOKEN": "token"},
        input=json.dumps(request),
        stdout=subprocess.PIPE,
        text=True,
        timeout=30,
        check=True,
    )
    assert not (home / name).exists()
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_inputs_go_in_and_outputs_come_out(home: Path, groups: list[Path]) -> None:
    script = "cat deep/input > out/copy; id -u; grep -c . /proc/1/environ; ls /home /root; exit 0"
    answer = run_as_plain_user(home, groups, "sh", "-c", script)

    assert answer["cause"] is None, answer
    assert answer["contents"] == {"copy": "from outside"}
    assert answer["log"].splitlines()[:2] == ["65534", "0"]
    assert answer["log"].count("No such file") == 2


def test_job_of_an_instant_still_brings_its_outputs_out(home: Path, groups: list[Path]) -> None:
    for _ in range(5):
        assert run_as_plain_user(home, groups, "cp", "deep/input", "out/x")["contents"] == {"x": "from outside"}


def test_limits_hold(home: Path, groups: list[Path]) -> None:
    hog = run_as_plain_user(home, groups, PYTHON, "-c", "x = bytearray(1 << 28)")
    assert hog["cause"] == "out_of_memory"

    full = run_as_plain_user(home, groups, "sh", "-c", "head -c 32M /dev/zero > big")
    assert full["cause"] == "exit_code"
    assert "disk was full" in full["message"]

    slow = run_as_plain_user(home, groups, "sleep", "30", wall_seconds=0.5)
    assert slow["cause"] == "timed_out"


def test_environment_that_breaks_the_first_shell_is_the_jobs_fault(home: Path, groups: list[Path]) -> None:
    answer = run_as_plain_user(home, groups, "true", env={"LD_LIBRARY_PATH": "/job", "LD_PRELOAD": "/nowhere.so"})
    assert answer["cause"] is None

    answer = run_as_plain_user(home, groups, "no-such-program")
    assert (answer["cause"], answer["exit_code"]) == ("exit_code", 127)


def test_without_groups_of_its_own_a_plain_user_is_refused(home: Path) -> None:
    answer = run_as_plain_user(home, [], "sh", "-c", "echo RAN")

    assert answer["cause"] == "sandbox_refused"
    assert "root" in answer["message"]
    assert answer["log"] == ""
