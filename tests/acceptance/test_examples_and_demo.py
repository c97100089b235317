"""What a newcomer runs first: the tiny agent, the one-file agent, the demo."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from computepool.cli.demo_chaos import Chaos, weather
from computepool.cli.demo_grid import run_grid
from tests.support.checkpoint_story import wait_for
from tests.support.hub_process import free_port

ROOT = Path(__file__).resolve().parents[2]


def test_the_tiny_agent_runs_jobs_from_a_real_hub(hub, owner, client, tmp_path):
    lines = (ROOT / "examples" / "tiny_agent.py").read_text().splitlines()
    assert len(lines) <= 150
    env = {**os.environ, "HUB_URL": hub.url, "OWNER_KEY": owner.key}
    agent = subprocess.Popen(
        ["/usr/bin/python3", "-I", str(ROOT / "examples" / "tiny_agent.py")], env=env, cwd=tmp_path
    )
    try:
        script = (
            "import os, pathlib\nprint('hello')\n"
            "out = pathlib.Path(os.environ['COMPUTEPOOL_OUTPUT_DIR'])\n"
            "(out / 'x.txt').write_text(os.environ['COMPUTEPOOL_SLICE_INDEX'])\n"
        )
        job = client.submit(script=script, slices=3)
        assert job.wait(timeout=90).state == "succeeded"
        job.download(tmp_path / "results")
        assert [(tmp_path / "results" / str(i) / "x.txt").read_text() for i in range(3)] == ["0", "1", "2"]
        assert "hello" in "".join(job.logs(follow=False))
        failing = client.submit(command=["sh", "-c", "exit 3"], retries=0)
        assert failing.wait(timeout=60).state == "failed"
        assert failing.get_slice(0).attempts[0].exit_code == 3
    finally:
        agent.send_signal(signal.SIGTERM)
        agent.wait(60)


@pytest.mark.timeout(280)
def test_the_demo_runs_its_examples_on_all_five_nodes_and_ends_cleanly():
    with tempfile.TemporaryDirectory(prefix="cp-demo-") as folder:
        Path(folder).chmod(0o755)
        env = {**os.environ, "PORT": str(free_port())}
        run = subprocess.run(
            [sys.executable, "-m", "computepool", "demo", "--once", "--dir", folder],
            env=env,
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert run.returncode == 0, run.stdout + run.stderr
        for node in ("rtx-4090", "rtx-3090", "rtx-4070", "rtx-3060", "cpu-only"):
            assert node in run.stdout
        picture = Path(folder) / "results" / "mandelbrot.png"
        assert picture.read_bytes().startswith(b"\x89PNG")
        left = subprocess.run(["pgrep", "-f", folder], capture_output=True, text=True).stdout.split()
        assert left == []


@pytest.mark.timeout(280)
def test_chaos_takes_a_host_from_under_a_network_whose_curve_goes_on_and_the_books_stay_exact():
    told = []
    with tempfile.TemporaryDirectory(prefix="cp-chaos-") as folder:
        Path(folder).chmod(0o755)
        with (
            run_grid(Path(folder), host="127.0.0.1", port=free_port(), say=told.append, networks=True) as grid,
            Chaos(grid, told.append, network_steps=600) as storm,
        ):
            # A network that lost nobody is a fault, and so are a step too few, another curve, a lost job, a sum of
            # the books that is not 0.
            assert weather(storm, seconds=220) == [], told
            assert any("with a part of the network" in line for line in told), told
            # Whose plug was pulled comes back by itself.
            wait_for(lambda: all(node.online for _, node in grid.list_nodes()), "all five nodes online", seconds=60)


@pytest.mark.timeout(280)
def test_the_agent_as_one_file_runs_a_job(hub, owner, client, tmp_path):
    subprocess.run([sys.executable, "scripts/build_agent_pyz.py"], cwd=ROOT, check=True, timeout=200)
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("COMPUTEPOOL_")},
        "HUB_URL": hub.url,
        "COMPUTEPOOL_NODE_OWNER_KEY": owner.key,
        "COMPUTEPOOL_NODE_STATE_DIR": str(tmp_path / "state"),
        "SHIV_ROOT": str(tmp_path / "shiv"),
    }
    log = (tmp_path / "agent.log").open("wb")
    agent = subprocess.Popen(
        [sys.executable, "-I", str(ROOT / "dist" / "agent.pyz")], env=env, cwd=tmp_path, stdout=log, stderr=log
    )
    try:
        job = client.submit(command=["true"])
        try:
            ended = job.wait(timeout=90)
        except TimeoutError:
            raise AssertionError(f"exit code {agent.poll()}\n{(tmp_path / 'agent.log').read_text()}") from None
        assert ended.state == "succeeded"
    finally:
        agent.send_signal(signal.SIGTERM)
        agent.wait(60)
