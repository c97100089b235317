"""What a job saves comes out of its sandbox while it runs, and what was saved before is there when it begins."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from computepool.node.job_terms import list_module
from computepool.node.runner import files, handle
from computepool.node.sandbox.port import InputFile
from tests.contract.sandbox_lab import PYTHON, Attempt, Lab, wait_until

WAIT_SECONDS = 60.0

# Goes on from what it finds, saves once, and saves again when it is asked to stop.
SAVER = """
import time
from computepool import job

state = job.checkpoint_dir / "state"
count = int(state.read_text()) if state.exists() else 0
print("from", count, flush=True)

def save():
    with job.checkpoint(progress=0.5) as draft:
        (draft / "state").write_text(str(count))

count += 1
save()
print("READY", flush=True)
while not job.should_stop():
    time.sleep(0.02)
count += 100
save()
job.leave()
"""


def find_manifest(attempt: Attempt) -> dict[str, Any] | None:
    return files.find_json(str(attempt.state_dir), files.CHECKPOINT)


def await_manifest(attempt: Attempt, number: int) -> dict[str, Any]:
    def is_there() -> bool:
        found = find_manifest(attempt)
        return found is not None and found["number"] >= number

    wait_until(is_there, WAIT_SECONDS, "nothing was taken out")
    found = find_manifest(attempt)
    assert found is not None
    return found


def read_saved(attempt: Attempt, manifest: dict[str, Any], path: str) -> bytes:
    [sha256] = [file["sha256"] for file in manifest["files"] if file["path"] == path]
    content = (attempt.state_dir / files.SAVED / sha256).read_bytes()
    assert hashlib.sha256(content).hexdigest() == sha256
    return content


def start_saver(lab: Lab, tmp_path: Path, restored: str | None = None, **options: Any) -> Attempt:
    script = tmp_path / "main.py"
    script.write_text(SAVER)
    inputs = [InputFile("main.py", str(script)), *list_module()]
    if restored is not None:
        (tmp_path / "restored").write_text(restored)
        inputs.append(InputFile(".computepool/checkpoint/state", str(tmp_path / "restored")))
        options["restored"] = {"state": hashlib.sha256(restored.encode()).hexdigest()}
    attempt = lab.start(
        PYTHON, "main.py", inputs=inputs, **{"checkpoint_seconds": 0.2, "wall_seconds": 120, **options}
    )
    attempt.await_words("READY", WAIT_SECONDS)
    return attempt


def test_what_a_job_saves_is_taken_out_while_it_runs(lab: Lab, tmp_path: Path) -> None:
    attempt = start_saver(lab, tmp_path)
    manifest = await_manifest(attempt, 1)

    assert attempt.status().state == "running"
    assert attempt.log().startswith("from 0\n")
    assert read_saved(attempt, manifest, "state") == b"1"
    assert manifest["progress"] == 0.5


def test_a_job_finds_what_was_saved_before_and_may_change_it(lab: Lab, tmp_path: Path) -> None:
    attempt = start_saver(lab, tmp_path, restored="41")
    manifest = await_manifest(attempt, 1)

    assert attempt.log().startswith("from 41\n")
    assert read_saved(attempt, manifest, "state") == b"42"


# Saves only after so many seconds, then waits for a word on how early to save.
LATE_SAVER = """
import sys, time
from computepool import job

print("READY", flush=True)
time.sleep(float(sys.argv[1]))
with job.checkpoint() as draft:
    (draft / "state").write_text("its own")
while not (job.checkpoint_dir / ".lead").exists():
    time.sleep(0.02)
print("LEAD", (job.checkpoint_dir / ".lead").read_text(), flush=True)
time.sleep(1000)
"""


def start_late_saver(lab: Lab, tmp_path: Path, *, seconds: float, is_told: bool) -> Attempt:
    (tmp_path / "main.py").write_text(LATE_SAVER)
    (tmp_path / "restored").write_text("restored")
    inputs = [
        InputFile("main.py", str(tmp_path / "main.py")),
        InputFile(".computepool/checkpoint/state", str(tmp_path / "restored")),
        *list_module(),
    ]
    restored = {"state": hashlib.sha256(b"restored").hexdigest()} if is_told else {}
    options = {"inputs": inputs, "restored": restored, "checkpoint_seconds": 0.2, "wall_seconds": 120}
    return lab.start(PYTHON, "main.py", str(seconds), **options)


def test_what_the_hub_gave_a_job_to_begin_with_is_not_taken_for_its_work(lab: Lab, tmp_path: Path) -> None:
    attempt = start_late_saver(lab, tmp_path, seconds=3.0, is_told=True)
    manifest = await_manifest(attempt, 1)

    assert read_saved(attempt, manifest, "state") == b"its own"


def test_control_a_runner_that_is_not_told_what_was_restored_takes_it(lab: Lab, tmp_path: Path) -> None:
    attempt = start_late_saver(lab, tmp_path, seconds=1_000.0, is_told=False)
    manifest = await_manifest(attempt, 1)

    assert read_saved(attempt, manifest, "state") == b"restored"


def test_a_job_can_read_how_early_it_is_to_save(lab: Lab, tmp_path: Path) -> None:
    attempt = start_late_saver(lab, tmp_path, seconds=0.0, is_told=True)
    manifest = await_manifest(attempt, 1)
    files.write_json(str(attempt.state_dir), files.SHIPPED, {"number": manifest["number"], "accepted": True})

    # Half of the interval: no machine is quicker than that.
    attempt.await_words("LEAD 0.100", WAIT_SECONDS)


def test_a_job_that_is_asked_to_stop_has_its_last_words_taken_out(lab: Lab, tmp_path: Path) -> None:
    attempt = start_saver(lab, tmp_path, checkpoint_seconds=1_000.0)
    assert find_manifest(attempt) is None
    handle.request_stop(attempt.state_dir, cause="owner_returned", grace_seconds=30.0)
    result = attempt.await_end(WAIT_SECONDS)

    assert (result.status.cause, result.status.exit_code) == ("owner_returned", 85)
    manifest = await_manifest(attempt, 1)
    assert read_saved(attempt, manifest, "state") == b"101"
    assert manifest["run_seconds"] <= result.status.run_seconds + 1


def test_no_link_that_a_job_puts_in_the_way_leads_out(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    script = f"""
import os, shutil, time
shutil.rmtree(".computepool")
os.makedirs("mine/checkpoint")
open("mine/checkpoint/x", "w").write("x")
os.symlink("{tmp_path}", ".computepool")
print("READY", flush=True)
time.sleep(60)
"""
    attempt = lab.start(PYTHON, "-c", script, checkpoint_seconds=0.1, wall_seconds=120)
    attempt.await_words("READY", WAIT_SECONDS)
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "secret").write_text("secret")
    handle.request_stop(attempt.state_dir, cause="owner_returned", grace_seconds=1.0)
    attempt.await_end(WAIT_SECONDS)
    assert find_manifest(attempt) is None


def test_a_file_that_cannot_be_taken_is_named_in_the_jobs_own_log(lab: Lab) -> None:
    script = """
import os, time
os.symlink("/etc/passwd", os.environ["COMPUTEPOOL_CHECKPOINT_DIR"] + "/link")
time.sleep(60)
"""
    attempt = lab.start(PYTHON, "-c", script, checkpoint_seconds=0.2, wall_seconds=120)
    attempt.await_words("the checkpoint was not saved: link: a link, not a regular file", WAIT_SECONDS)
    assert find_manifest(attempt) is None


def test_manifests_are_plain_json_that_an_older_agent_could_read(lab: Lab, tmp_path: Path) -> None:
    attempt = start_saver(lab, tmp_path)
    await_manifest(attempt, 1)
    told = json.loads((attempt.state_dir / files.CHECKPOINT).read_text())
    assert set(told) == {"number", "run_seconds", "progress", "files"}
    assert set(told["files"][0]) == {"path", "sha256", "size_bytes"}
