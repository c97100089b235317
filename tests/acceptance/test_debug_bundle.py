"""Jobs hang on a lent machine; whoever gets the debug bundle alone sees which ones, where, and what to do."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tarfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.owner_seat import wait_for_jobs

LOCK = """
import threading
print("half done", flush=True)
a = threading.Lock()
a.acquire()
a.acquire()
"""
PIPE = """
import os
print("half done", flush=True)
os.read(os.pipe()[0], 1)
"""
COMPUTES = """
print("half done", flush=True)
while True:
    sum(range(10_000))
"""
SECRET = "tell-nobody-8361"


@pytest.fixture
def take_bundle(owner, tmp_path: Path):
    """As an owner does it; hands over the texts in it by their names."""

    def take(agent) -> dict[str, str]:
        out = tmp_path / "bundle.tar.gz"
        env = {**os.environ, "COMPUTEPOOL_KEY": owner.key, "HUB_URL": agent._env["HUB_URL"]}
        command = [sys.executable, "-m", "computepool", "debug", "bundle", "--state-dir", str(agent.state_dir)]
        done = subprocess.run([*command, "--out", str(out)], env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        with tarfile.open(fileobj=io.BytesIO(out.read_bytes())) as archive:
            return {m.name.partition("/")[2]: archive.extractfile(m).read().decode() for m in archive.getmembers()}

    return take


def test_hung_jobs_are_diagnosed_from_the_bundle_alone_and_no_secret_is_in_it(
    start_agent, client, owner, take_bundle
):
    agent = start_agent(cpu_slots=3)
    jobs = {
        name: client.submit(script=script, env={"SIGN": SECRET})
        for name, script in (("lock", LOCK), ("pipe", PIPE), ("computes", COMPUTES))
    }
    wait_for_jobs(agent, 3)
    for job in jobs.values():
        for piece in job.logs():
            if "half done" in piece:
                break
    before = datetime.now(tz=UTC)
    files = take_bundle(agent)
    summary = files["summary.txt"]
    assert "agent: lent." in summary
    # Which job, where it is stuck, and what to do: from the summary. A job that computes is not accused.
    hung = {find(line, r"job ([0-9a-f-]{36})"): line for line in summary.splitlines() if "LOOKS HUNG" in line}
    assert hung.keys() == {str(jobs[name].id) for name in ("lock", "pipe")}
    for name, wait in (("lock", r"a lock \(\w*futex\w*\)"), ("pipe", r"a pipe \(\w*pipe\w*\)")):
        line = hung[str(jobs[name].id)]
        assert re.search(rf"wait for {wait}", line), line
        assert f"computepool cancel {jobs[name].id}" in line
        assert f"attempt {jobs[name].get_slice(0).attempts[-1].id}" in line
        since = datetime.strptime(find(line, r"since (.*?) UTC"), "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
        assert before - timedelta(minutes=5) < since <= before
    # And all that tells the rest, without anything that is somebody's secret.
    assert {"doctor.json", "settings.json", "why.txt", "debug.log", "status.json"} <= files.keys()
    assert "hub_call" in files["debug.log"]
    everything = "\n".join(files.values())
    for secret in (SECRET, owner.key, "half done"):
        assert secret not in everything
    # What the bundle says to do helps.
    for job in jobs.values():
        job.cancel()
    assert {job.wait(timeout=60).state for job in jobs.values()} == {"cancelled"}


def find(text: str, pattern: str) -> str:
    found = re.search(pattern, text)
    assert found is not None, f"{pattern} is not in: {text}"
    return found[1]
