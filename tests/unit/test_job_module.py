"""`computepool.job`: a script that imports it runs on the grid and at home, with the standard library alone."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import computepool
from computepool.node.job_terms import list_module
from computepool.node.sandbox.port import MODULE_NAME, NODE_NAME

# Counts to its argument; saves at each step, and ends by itself in the middle when told to.
COUNTER = """
import json, os, signal, sys
from computepool import job

state = job.checkpoint_dir / "state.json"
step = json.loads(state.read_text())["step"] if state.exists() else 0
print("from", step)
while step < 6:
    step += 1
    with job.checkpoint(progress=step / 6) as draft:
        (draft / "state.json").write_text(json.dumps({"step": step}))
        (draft / "deep").mkdir()
        (draft / "deep" / "more").write_text(str(step))
        if step == 4 and "--die" in sys.argv:
            os.kill(os.getpid(), signal.SIGKILL)
    if step == 3 and "--leave" in sys.argv:
        os.kill(os.getpid(), signal.SIGTERM)
    if job.should_stop():
        job.leave()
(job.output_dir / "result").write_text(f"{step} of slice {job.slice_index}/{job.slice_count}")
"""


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """What the agent puts beside a job's files, and nothing else of ours."""
    for file in list_module():
        target = tmp_path / "library" / Path(file.path).relative_to(f"{NODE_NAME}/{MODULE_NAME}")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file.source, target)
    return tmp_path / "library"


def run(folder: Path, library: Path, script: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    # Neither site packages nor anything of this test's environment.
    return subprocess.run(
        [sys.executable, "-S", "-c", script, *arguments],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(library), **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def test_the_module_needs_nothing_but_two_files_and_the_standard_library(library: Path, home: Path) -> None:
    assert sorted(path.name for path in library.rglob("*.py")) == ["__init__.py", "job.py"]
    done = run(home, library, "import sys; from computepool import job; print(job.__file__)")
    assert done.stderr == ""
    assert done.stdout.strip() == str(library / "computepool" / "job.py")


def test_outside_of_the_grid_a_script_saves_in_a_local_folder_and_goes_on_from_there(library, home) -> None:
    died = run(home, library, COUNTER, "--die")
    assert died.returncode == -signal.SIGKILL
    again = run(home, library, COUNTER)
    # What was half written when it died is not there.
    assert (again.stdout, again.returncode) == ("from 3\n", 0), again.stderr
    assert (home / "out" / "0" / "result").read_text() == "6 of slice 0/1"
    assert (home / "checkpoint" / "0" / "deep" / "more").read_text() == "6"


def test_asked_to_stop_it_saves_and_asks_to_be_run_again(library: Path, home: Path) -> None:
    left = run(home, library, COUNTER, "--leave")
    assert left.returncode == 85
    assert run(home, library, COUNTER).stdout == "from 3\n"


def test_on_the_grid_it_uses_the_folders_that_it_is_given(library: Path, home: Path, tmp_path: Path) -> None:
    places = {"checkpoint": tmp_path / "c", "output": tmp_path / "o"}
    given = {f"COMPUTEPOOL_{name.upper()}_DIR": str(path) for name, path in places.items()}
    grid = {"COMPUTEPOOL_JOB_ID": "x", "COMPUTEPOOL_SLICE_INDEX": "2", "COMPUTEPOOL_SLICE_COUNT": "5"}
    done = run(home, library, COUNTER, **given, **grid)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "o" / "result").read_text() == "6 of slice 2/5"
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == [".progress", ".sealed", "deep", "state.json"]
    assert float((tmp_path / "c" / ".progress").read_text()) == 1.0
    assert list(home.iterdir()) == []


def test_a_block_that_raises_changes_nothing(library: Path, home: Path) -> None:
    script = """
from computepool import job
with job.checkpoint() as draft:
    (draft / "a").write_text("good")
try:
    with job.checkpoint() as draft:
        (draft / "a").write_text("bad")
        raise ValueError
except ValueError:
    print((job.checkpoint_dir / "a").read_text(), (job.checkpoint_dir / ".draft").exists())
"""
    assert run(home, library, script).stdout == "good False\n"


def test_saving_is_due_when_most_of_the_interval_is_over_or_the_owner_is_back(library: Path, home: Path) -> None:
    script = """
import os, signal
from computepool import job
print(job.is_checkpoint_due())
os.kill(os.getpid(), signal.SIGTERM)
print(job.is_checkpoint_due())
"""
    assert run(home, library, script, COMPUTEPOOL_CHECKPOINT_SECONDS="600").stdout == "False\nTrue\n"
    assert run(home, library, script, COMPUTEPOOL_CHECKPOINT_SECONDS="0").stdout == "True\nTrue\n"


# Says when saving was due, by a clock that the script turns, after a checkpoint that took a second to write.
PACER = """
import sys, time
now = 0.0
time.monotonic = lambda: now
from computepool import job

def find_due():
    global now
    began = now
    while not job.is_checkpoint_due():
        now += 0.5
    return now - began

first = find_due()
with job.checkpoint() as draft:
    (draft / "a").write_text("x")
    now += 1.0
if sys.argv[1:]:
    (job.checkpoint_dir / ".lead").write_text(sys.argv[1])
print(first, find_due(), (job.checkpoint_dir / ".sealed").read_text())
"""


@pytest.mark.parametrize(
    ("told", "second"),
    # Counted from the beginning of the block: what it wrote is the work as it was then.
    [((), "14.0"), (("7.5",), "11.5"), (("1000",), "9.0"), (("soon",), "14.0")],
    ids=["nothing told", "told", "at most half", "nonsense"],
)
def test_saving_is_due_as_early_as_the_machine_says(
    told: tuple[str, ...], second: str, library: Path, home: Path
) -> None:
    done = run(home, library, PACER, *told, COMPUTEPOOL_CHECKPOINT_SECONDS="20")
    assert done.stdout == f"15.0 {second} 1 1.000\n", done.stderr


def test_the_version_that_jobs_see_is_the_agents(library: Path, home: Path) -> None:
    done = run(home, library, "import computepool; print(computepool.__version__)")
    assert done.stdout.strip() == computepool.__version__


def test_the_script_of_the_page_on_checkpoints_runs_at_home(library: Path, home: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "howto" / "save-your-work.md"
    [script] = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    done = run(home, library, script, COMPUTEPOOL_CHECKPOINT_SECONDS="0")
    assert done.returncode == 0, done.stderr
    assert (home / "out" / "0" / "sum.txt").read_text() == str(sum(range(1_000_000)))
    assert (home / "checkpoint" / "0" / "state.json").exists()
