"""The host's process. The agent writes its options to its standard input, as one line of JSON, and keeps that open:
when it ends, so does the host. With `--describe` it only says what this machine computes like."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import msgspec
import torch

from computepool.core.errors import ComputePoolError
from computepool.node import journal
from computepool.node.host_options import REFUSED_EXIT_CODE, HostOptions
from computepool.node.vnodes.driver import take_short_turns
from computepool.node.vnodes.host import run_host
from computepool.node.vnodes.numeric_class import describe_machine


def main() -> int:
    env = os.environ
    journal.set_up(env.get("COMPUTEPOOL_NODE_LOG_LEVEL", "info"))
    torch.set_num_threads(int(env.get("COMPUTEPOOL_NODE_NETWORKS_THREADS", "1")))
    torch.set_num_interop_threads(1)
    take_short_turns()
    if "--describe" in sys.argv:
        print(msgspec.json.encode(describe_machine(env.get("COMPUTEPOOL_NODE_NETWORKS_DEVICE", "cpu"))).decode())
        return 0
    line = sys.stdin.buffer.readline()
    if not line:
        print("This process is started by an agent: `computepool node --networks`.", file=sys.stderr)
        return REFUSED_EXIT_CODE
    try:
        asyncio.run(_run(msgspec.json.decode(line, type=HostOptions)))
    except ComputePoolError as error:
        journal.error("host_refused", code=error.code, message=error.message)
        return REFUSED_EXIT_CODE
    return 0


async def _run(options: HostOptions) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    loop.add_reader(sys.stdin.fileno(), _hear_agent, ended)
    await run_host(options, ended)


def _hear_agent(ended: asyncio.Event) -> None:
    """Nothing comes but the end of it."""
    if not os.read(sys.stdin.fileno(), 4_096):
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        ended.set()


if __name__ == "__main__":
    code = main()
    # The thread that computes may be in the midst of it; nobody needs what it comes to, and nobody waits for it.
    sys.stderr.flush()
    sys.stdout.flush()
    os._exit(code)
