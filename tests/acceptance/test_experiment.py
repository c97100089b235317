"""Jobs split over two sets of weights by an operator's file, and what the operator is told of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx

from computepool.cli.main import run
from computepool.sdk import Client
from tests.support.people import sign_in_operator, sign_up
from tests.support.protocol_node import ProtocolNode

HALF_AND_HALF = """
[split]
first = "default"
second = "classic"
second_share = 0.5
[sets.default]
price = 1.0
speed = 1.0
reliability = 1.0
[sets.classic]
vram_fit = 10.0
cores_fit = 5.0
"""


async def test_jobs_are_split_as_the_file_says_and_both_sides_are_reported(start_hub, tmp_path: Path, capsys):
    file = tmp_path / "placement.toml"
    file.write_text(HALF_AND_HALF)
    hub = start_hub(placement_file=file)
    owner, submitter = sign_up(hub.url, "owner"), sign_up(hub.url, "submitter")
    operator = sign_in_operator(hub.url, hub.log_path.read_text())
    node = ProtocolNode([hub.url], owner, cpu_slots=1)
    await node.enrol()
    try:
        for _ in range(24):
            body = {"command": ["true"]}
            answer = httpx.post(f"{hub.url}/v1/jobs", json=body, headers=submitter.headers, timeout=20)
            assert answer.status_code == 201, answer.text
        for _ in range(24):
            await node.deliver(await node.claim_one())
    finally:
        await node.close()
    with Client(hub.url, operator.key) as client:
        found = await asyncio.to_thread(client.get_experiment)
    assert (found.first.name, found.second.name, found.second.share) == ("default", "classic", 0.5)
    assert found.first.succeeded_count + found.second.succeeded_count == 24
    assert min(found.first.job_count, found.second.job_count) >= 3
    assert (found.verdict.value, found.is_cut) == ("undecided", False)
    assert "Cannot be told yet" in found.words
    asked = ["experiment", "--days", "1", "--hub-url", hub.url, "--key"]
    assert await asyncio.to_thread(run, [*asked, operator.key]) == 0
    assert "classic: 50 %, placed by vram_fit 10, cores_fit 5" in capsys.readouterr().out
    assert await asyncio.to_thread(run, [*asked, submitter.key]) == 2
    assert "(forbidden)" in capsys.readouterr().err
