"""The agent's hand on a measuring process: everything waits for a bounded time, and nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

import computepool
from computepool.node.hardware.measured import Measured
from computepool.node.hardware.measuring_words import Answer, Compute, Fill, Open, Opened, Order
from computepool.node.hardware.port import Card

# Not by -m: an agent in one file has its packages where a new process does not look. Ours go last in the search.
PROGRAM = (
    "import sys; sys.path.append(sys.argv.pop(1)); from computepool.node.hardware.measuring_process import main; "
    "sys.exit(main())"
)
# A first start of torch with CUDA takes its time.
START_SECONDS = 60.0
MEASURE_SECONDS = 60.0
LINE_BYTES_MAX = 1 << 24
# By which a card is shown to a process, and no other card is.
_VISIBLE = {"nvidia": ("CUDA_VISIBLE_DEVICES",), "amd": ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")}


class CannotMeasure(Exception):
    """Nothing here can compute on this device, or it failed; the message says why."""


class Measuring:
    def __init__(self, process: asyncio.subprocess.Process, engine: str) -> None:
        self._process = process
        self.engine = engine

    async def measure(self) -> Measured:
        answer = await self._ask(Order(), seconds=MEASURE_SECONDS)
        if answer.measured is None:
            raise CannotMeasure("the measuring process answered something else")
        return answer.measured

    async def compute(self, *, seed: str, size: int, products: int, seconds: float) -> str:
        """The root of what was computed, in hex."""
        order = Order(compute=Compute(seed=seed, size=size, products=products))
        return (await self._ask(order, seconds=seconds)).root

    async def open(self, segments: Sequence[int]) -> list[Opened]:
        answer = await self._ask(Order(open=Open(segments=list(segments))), seconds=MEASURE_SECONDS)
        return answer.opened or []

    async def fill(self, *, seed: str, byte_count: int, indices: Sequence[int], seconds: float) -> list[int]:
        """Words of a pattern that has filled the device's memory."""
        if not indices:
            return []
        order = Order(fill=Fill(seed=seed, byte_count=byte_count, indices=list(indices)))
        return (await self._ask(order, seconds=seconds)).words or []

    async def _ask(self, order: Order, *, seconds: float) -> Answer:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(order) + b"\n")
            await self._process.stdin.drain()
        except ConnectionError:
            raise CannotMeasure("the measuring process has died") from None
        return await _read(self._process, seconds)


@asynccontextmanager
async def open_measuring(card: Card | None) -> AsyncIterator[Measuring]:
    """A process that computes on this card, or on the processor. Raises CannotMeasure."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROGRAM,
        str(Path(computepool.__file__).parent.parent),
        "cpu" if card is None else "gpu",
        "" if card is None else card.name,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=make_env(card, dict(os.environ)),
        limit=LINE_BYTES_MAX,
        start_new_session=True,
    )
    try:
        yield Measuring(process, (await _read(process, START_SECONDS)).engine)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def make_env(card: Card | None, env: dict[str, str]) -> dict[str, str]:
    """The owner's key is not for it."""
    kept = {name: value for name, value in env.items() if not name.startswith("COMPUTEPOOL_")}
    if card is not None and card.address:
        for name in _VISIBLE.get(card.vendor, ()) if ":" not in card.address else ():
            kept[name] = card.address
    # Cards are counted as the driver lists them, not by how fast torch takes them to be.
    return {**kept, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


async def _read(process: asyncio.subprocess.Process, seconds: float) -> Answer:
    assert process.stdout is not None
    try:
        async with asyncio.timeout(seconds):
            line = await process.stdout.readline()
        answer = msgspec.json.decode(line, type=Answer)
    except TimeoutError:
        raise CannotMeasure(f"the device did not answer within {seconds:.0f} s") from None
    except (msgspec.DecodeError, ValueError):
        raise CannotMeasure("the measuring process has died") from None
    if answer.trouble:
        raise CannotMeasure(answer.trouble)
    return answer
