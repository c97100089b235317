"""The line of a lent machine breaks while it uploads a large result; only the rest is sent again."""

from __future__ import annotations

import asyncio

import pytest

from computepool.sdk import Client
from tests.support.agent_process import AgentProcess
from tests.support.tcp_proxy import TcpProxy

MEGABYTE = 1_000_000
SIZE = 64 * MEGABYTE
CUT_AT = 40 * MEGABYTE
SCRIPT = f"""
import os, pathlib
piece = os.urandom({MEGABYTE})
with (pathlib.Path(os.environ["COMPUTEPOOL_OUTPUT_DIR"]) / "large.bin").open("wb") as file:
    for number in range({SIZE // MEGABYTE}):
        file.write(number.to_bytes(4, "big") + piece[4:])
"""


class CuttingProxy(TcpProxy):
    """Cuts every connection once, when so much has gone up."""

    up_bytes = 0
    cut_count = 0

    async def _carry(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, line: int, upward: bool
    ) -> None:
        while piece := await source.read(65_536):
            target.write(piece)
            await target.drain()
            self.up_bytes += len(piece) * upward
            if self.up_bytes > CUT_AT and not self.cut_count:
                self.cut_count += 1
                self.cut()


@pytest.mark.parametrize("program", ["computepool.node", "tests.support.agent_that_begins_again"])
async def test_a_cut_upload_goes_on_where_it_was_and_the_control_begins_again(
    hub, owner, submitter, tmp_path, program
):
    proxy = CuttingProxy(hub.url.removeprefix("http://"))
    agent = AgentProcess(
        hub_url=f"http://{await proxy.start()}",
        owner=owner,
        root=tmp_path,
        program=("-m", program),
        profile="cpu-only",
        cpu_slots=1,
    )
    try:
        with Client(hub_url=hub.url, key=submitter.key) as client:
            agent.start()
            job = client.submit(script=SCRIPT, disk="1GB")
            done = await asyncio.to_thread(job.wait, timeout=180)
            assert done.state == "succeeded", agent.log_text()
            [output] = job.get_slice(0).outputs
    finally:
        agent.end()
        await proxy.close()
    assert (output.size_bytes, proxy.cut_count) == (SIZE, 1)
    # A broken line swallows what was under way in its buffers; the rest lies between the two by far.
    is_whole_again = proxy.up_bytes > SIZE + CUT_AT * 3 // 4
    assert is_whole_again == (program != "computepool.node"), f"{proxy.up_bytes:,} bytes went up"
