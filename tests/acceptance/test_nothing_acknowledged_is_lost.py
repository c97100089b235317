"""Hubs and the database are killed with -9 under load; what was acknowledged survives and everything finishes.

Short forms; the long one is `make soak/spine`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from soaks.spine import postmaster_pid, run_soak
from tests.support.hub_process import HubProcess
from tests.support.people import sign_up
from tests.support.postgres import wait_for
from tests.support.protocol_node import Held, ProtocolNode

pytestmark = pytest.mark.alone


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """A folder that the database's own user can reach, which pytest's are not."""
    with tempfile.TemporaryDirectory(prefix="cp-spine-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.timeout(280)
async def test_acknowledged_work_survives_kills_of_hubs_and_of_the_postmaster(open_dir):
    outcome = await run_soak(open_dir, slices=400, hub_kills=4, postmaster_kills=1, seconds=180)
    assert (outcome["hub_kills"], outcome["postmaster_kills"]) == (4, 1)
    assert outcome["acknowledged"] >= 480
    assert {k: outcome[k] for k in ("lost", "unfinished", "duplicate_jobs", "double_results")} == {
        "lost": 0,
        "unfinished": 0,
        "duplicate_jobs": 0,
        "double_results": 0,
    }


@pytest.mark.timeout(280)
async def test_control_a_hub_that_answers_before_it_commits_is_caught(open_dir):
    outcome = await run_soak(
        open_dir, slices=300, hub_kills=5, postmaster_kills=0, planted="answer_before_commit", seconds=180
    )
    assert outcome["lost"] > 0


@pytest.mark.timeout(280)
async def test_no_running_attempt_is_lost_while_hub_and_database_are_away_for_three_leases(open_dir):
    hub = HubProcess(dsn=None, data_dir=open_dir, lease_seconds=3, beat_seconds=1).start()
    try:
        owner, submitter = sign_up(hub.url, "owner"), sign_up(hub.url, "submitter")
        fleet = [ProtocolNode([hub.url], owner, name=f"n{i}", seed=i, cpu_slots=2) for i in range(4)]
        for node in fleet:
            await node.enrol()
        answer = httpx.post(
            f"{hub.url}/v1/jobs",
            json={"command": ["true"], "slice_count": 8},
            headers=submitter.headers,
            timeout=20,
        )
        job_id = answer.json()["id"]
        release, stop = asyncio.Event(), asyncio.Event()

        async def work(held: Held) -> None:
            await release.wait()

        living = [asyncio.create_task(node.run(stop, work=work)) for node in fleet]
        await wait_for(lambda: sum(len(node.held) for node in fleet) == 8, what="all slices to run")
        hub.kill()
        pid = postmaster_pid(open_dir)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(9)
        await asyncio.to_thread(hub.start)
        # Long enough for a hasty reaper to give the work away.
        await asyncio.sleep(6)
        release.set()
        await wait_for(
            lambda: (
                httpx.get(f"{hub.url}/v1/jobs/{job_id}", headers=submitter.headers, timeout=60).json()["state"]
                == "succeeded"
            ),
            what="the job to succeed",
        )
        page = httpx.get(f"{hub.url}/v1/jobs/{job_id}/slices", headers=submitter.headers, timeout=60).json()
        assert [slice_["attempt_count"] for slice_ in page["slices"]] == [1] * 8
        stop.set()
        await asyncio.gather(*living, return_exceptions=True)
        for node in fleet:
            await node.close()
    finally:
        hub.stop()
