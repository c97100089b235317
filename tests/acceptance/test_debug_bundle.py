"""A job hangs on a lent machine; whoever gets the debug bundle, and nothing else, sees which one and why."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile

from tests.support.owner_seat import wait_for_jobs

HANGS = """
import threading
print("half done", flush=True)
a = threading.Lock()
a.acquire()
a.acquire()
"""
SECRET = "tell-nobody-8361"


def test_a_hung_job_is_diagnosed_from_the_bundle_alone_and_no_secret_is_in_it(start_agent, client, owner, tmp_path):
    agent = start_agent(cpu_slots=1)
    job = client.submit(script=HANGS, env={"SIGN": SECRET})
    wait_for_jobs(agent, 1)
    for piece in job.logs():
        if "half done" in piece:
            break
    out = tmp_path / "bundle.tar.gz"
    env = {**os.environ, "COMPUTEPOOL_KEY": owner.key, "HUB_URL": agent._env["HUB_URL"]}
    command = [sys.executable, "-m", "computepool", "debug", "bundle", "--state-dir", str(agent.state_dir)]
    done = subprocess.run([*command, "--out", str(out)], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    with tarfile.open(fileobj=io.BytesIO(out.read_bytes())) as archive:
        files = {m.name.partition("/")[2]: archive.extractfile(m).read().decode() for m in archive.getmembers()}
    attempt_id = str(job.get_slice(0).attempts[-1].id)
    summary = files["summary.txt"]
    (line,) = [line for line in summary.splitlines() if attempt_id in line and "LOOKS HUNG" in line]
    assert "cpu:0" in line
    assert "agent: lent." in summary
    assert {"doctor.json", "settings.json", "why.txt", "debug.log", "status.json"} <= files.keys()
    assert "hub_call" in files["debug.log"]
    everything = "\n".join(files.values())
    for secret in (SECRET, owner.key, "half done"):
        assert secret not in everything
    job.cancel()
