"""A submitter's script on a real agent in a real sandbox: results, logs, failures, abuse."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Iterator

import pytest

from computepool.sdk import Client
from tests.support.agent_process import AgentProcess
from tests.support.hub_process import HubProcess
from tests.support.people import sign_up
from tests.support.quickest import quickest
from tests.support.wheels import add_wheel

WRITES_FILES = """
import os, pathlib, sys
out = pathlib.Path(os.environ["COMPUTEPOOL_OUTPUT_DIR"])
index, count = os.environ["COMPUTEPOOL_SLICE_INDEX"], os.environ["COMPUTEPOOL_SLICE_COUNT"]
print(f"slice {index} of {count}", flush=True)
print("to standard error", file=sys.stderr, flush=True)
data = pathlib.Path("data/words.txt").read_text()
(out / "deep").mkdir()
(out / "deep" / "result.txt").write_text(f"{index}/{count} {os.environ['COLOUR']} {data}")
"""

FORKS = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
FILLS_DISK = "f = open('big', 'wb')\nwhile True: f.write(b'x' * 10**6); f.flush()"


@pytest.fixture(scope="module")
def lent(postgres, tmp_path_factory) -> Iterator[Client]:
    """A submitter at a hub with one machine that lends two slots, for all tests that need no other machine: whatever
    a job does to its sandbox, the next one finds the machine as it was."""
    root = tmp_path_factory.mktemp("lent")
    hub = HubProcess(dsn=asyncio.run(postgres.create_database()), data_dir=root).start()
    owner, submitter = sign_up(hub.url, "owner"), sign_up(hub.url, "submitter")
    agent = AgentProcess(hub_url=hub.url, owner=owner, root=root, profile="cpu-only", cpu_slots=2).start()
    with Client(hub_url=hub.url, key=submitter.key) as client:
        yield client
    agent.end()
    hub.kill()


def test_script_files_environment_logs_and_outputs_make_the_round_trip(lent, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "words.txt").write_text("hello")
    job = lent.submit(script=WRITES_FILES, files=[folder], env={"COLOUR": "green"}, slices=3, name="round trip")
    assert job.wait(timeout=60).state == "succeeded"
    job.download(tmp_path / "results")
    for index in range(3):
        text = (tmp_path / "results" / str(index) / "deep" / "result.txt").read_text()
        assert text == f"{index}/3 green hello"
        log = "".join(job.logs(slice=index, follow=False))
        assert f"slice {index} of 3" in log
        assert "to standard error" in log
    slice_ = job.get_slice(0)
    assert slice_.outputs[0].sha256 == hashlib.sha256(b"0/3 green hello").hexdigest()
    assert slice_.attempts[0].exit_code == 0
    kinds = [event.kind for event in job.events()]
    assert kinds[0] == "job_submitted"
    assert kinds[-1] == "job_succeeded"


def test_a_script_finds_the_packages_it_asked_for_and_a_wrong_list_costs_nothing(start_agent, client, tmp_path):
    add_wheel(tmp_path / "simple", "tiny", "2.0")
    start_agent(packages_index=(tmp_path / "simple").as_uri())
    job = client.submit(script="import tiny; print('tiny', tiny.VERSION)\n", requirements=["tiny>=1,<3"])
    assert job.wait(timeout=90).state == "succeeded"
    assert "tiny 2.0" in "".join(job.logs(follow=False))

    wrong = client.submit(script="print('never')\n", requirements=["tniy"], retries=0)
    assert wrong.wait(timeout=90).state == "failed"
    attempt = wrong.get_slice(0).attempts[-1]
    assert (attempt.cause, attempt.charged_microcredits or 0) == ("packages_failed", 0)
    assert "tniy" in attempt.message

    # No owner here lets jobs out: it waits, and says for what, rather than be sent to be refused.
    unwanted = client.submit(script="print('never')\n", egress=["example.org:443"], retries=0)
    waiting = unwanted.why().waiting
    assert waiting is not None
    assert [gate.gate for gate in waiting.gates] == ["egress"]
    assert "do not allow jobs to reach example.org:443" in " ".join(waiting.notes)
    assert not unwanted.get_slice(0).attempts
    unwanted.cancel()


def test_logs_arrive_while_the_job_runs(lent):
    script = "import time\nfor i in range(1000):\n    print('tick', i, flush=True)\n    time.sleep(0.2)\n"
    job = lent.submit(script=script)
    for piece in job.logs():
        if "tick 3" in piece:
            break
    assert job.refresh().state == "running"
    job.cancel()


def test_a_shell_command_runs_without_a_script(lent):
    job = lent.submit(command=["sh", "-c", "echo hello from $(hostname); exit 0"])
    assert job.wait(timeout=60).state == "succeeded"
    assert "hello from job" in "".join(job.logs(follow=False))


@pytest.mark.parametrize(
    ("script", "options", "cause", "word"),
    [
        ("import sys; sys.exit(7)", {}, "exit_code", "7"),
        ("import sys; sys.exit(137)", {}, "exit_code", "137"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", {}, "exit_code", ""),
        ("x = bytearray(10**9)", {"ram": "200MB"}, "out_of_memory", "memory"),
        ("while True: pass", {"wall_seconds": 2}, "timed_out", ""),
        (FORKS, {"wall_seconds": 3}, "timed_out", ""),
        (FILLS_DISK, {"disk": "1GB", "wall_seconds": 60}, "exit_code", ""),
    ],
    ids=["exit 7", "exit 137", "kills itself", "memory hog", "endless loop", "forks for ever", "fills the disk"],
)
def test_a_program_that_goes_wrong_has_a_clear_cause(lent, script, options, cause, word):
    job = lent.submit(script=script + "\n", retries=0, **options)
    assert job.wait(timeout=90).state == "failed"
    attempt = job.get_slice(0).attempts[-1]
    assert attempt.cause == cause
    assert word in f"{attempt.message} {attempt.exit_code}"


def test_a_job_that_prints_a_gigabyte_succeeds_with_a_cut_log(lent):
    script = "line = 'x' * 999 + '\\n'\nfor _ in range(10**6): print(line, end='')\n"
    job = lent.submit(script=script, wall_seconds=120)
    assert job.wait(timeout=120).state == "succeeded"
    log = "".join(job.logs(follow=False))
    assert 1_000_000 <= len(log) <= 1_100_000
    assert "cut" in log.splitlines()[-1]


def test_a_symlink_out_of_the_folder_is_not_followed(lent, tmp_path):
    script = """
import os, pathlib
out = pathlib.Path(os.environ["COMPUTEPOOL_OUTPUT_DIR"])
(out / "honest.txt").write_text("fine")
os.symlink("/etc/passwd", out / "leak.txt")
os.mkfifo(out / "pipe")
"""
    job = lent.submit(script=script)
    assert job.wait(timeout=60).state == "succeeded"
    slice_ = job.get_slice(0)
    assert [output.path for output in slice_.outputs] == ["honest.txt"]
    assert "leak.txt" in (slice_.attempts[0].message or "")


def test_cancel_kills_a_running_job_and_frees_its_slot_within_two_seconds(start_agent, client):
    agent = start_agent(cpu_slots=1)

    def cancel_one() -> float:
        job = client.submit(script="import time\ntime.sleep(600)")
        while job.refresh().state != "running" or not agent.list_runners():
            time.sleep(0.1)
        time.sleep(1)
        started = time.monotonic()
        job.cancel()
        while agent.list_runners():
            time.sleep(0.02)
        return time.monotonic() - started

    assert quickest(cancel_one, enough=2.0) < 2.0
    follower = client.submit(command=["true"])
    assert follower.wait(timeout=60).state == "succeeded"


def test_gpu_work_lands_only_where_it_fits(start_agent, client):
    start_agent("big", profile="rtx-4090")
    start_agent("small", profile="rtx-3060")
    job = client.submit(command=["true"], vram="16GB", slices=4)
    assert job.wait(timeout=60).state == "succeeded"
    nodes = {str(attempt.node_id) for slice_ in job.slices() for attempt in slice_.attempts}
    assert len(nodes) == 1
