"""Engines that compute the work of a proof, and the process that they live in."""

from __future__ import annotations

import asyncio
import base64
import os
import struct
import sys
from unittest.mock import patch

import pytest

from computepool.core.trust.commitment import is_proved
from computepool.core.trust.memory import is_filled, split_seed, word_at
from computepool.core.trust.products import Spot, Work, compute_spots
from computepool.node.hardware import measuring
from computepool.node.hardware.benchmark import measure
from computepool.node.hardware.engines.by_numpy import NumpyEngine
from computepool.node.hardware.engines.by_opencl import OpenClEngine
from computepool.node.hardware.engines.by_torch import TorchEngine
from computepool.node.hardware.engines.choose import find_engine
from computepool.node.hardware.engines.plain import PlainEngine
from computepool.node.hardware.engines.port import Engine, NoEngine
from computepool.node.hardware.measuring import CannotMeasure, make_env, open_measuring
from computepool.node.hardware.port import Card

SEED = bytes(range(32))


ENGINES = ["plain", "numpy", "opencl", "torch"]


class TorchOnProcessor(TorchEngine):
    """The same lines on another device: there is no card here."""

    def __init__(self) -> None:
        with patch("computepool.node.hardware.engines.by_torch._find_device", lambda torch: "cpu"):
            super().__init__()


def make_engine(name: str) -> Engine:
    """OpenCL runs for real, on processors (Debian's pocl-opencl-icd)."""
    makers = {
        "plain": PlainEngine,
        "numpy": NumpyEngine,
        "opencl": lambda: OpenClEngine(on_gpu=False),
        "torch": TorchOnProcessor,
    }
    return makers[name]()


def list_spots(work: Work) -> list[Spot]:
    return [Spot(number % work.products, number * 7 % work.size, number % work.strips) for number in range(8)]


def value_at(work: Work, found: bytes, spot: Spot) -> float:
    at = (spot.product * work.size + spot.row) * work.strips + spot.strip
    return struct.unpack_from("<f", found, 4 * at)[0]


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_computes_what_the_hub_expects(name):
    work = Work(SEED, 64, 3)
    found = make_engine(name).compute(work)
    assert len(found) == work.segments * work.segment_bytes
    for expected in compute_spots(work, list_spots(work)):
        assert expected.is_near(value_at(work, found, expected.spot))


def test_several_strips_stand_beside_each_other():
    work = Work(SEED, 2048, 1)
    found = make_engine("numpy").compute(work)
    for expected in compute_spots(work, list_spots(work)):
        assert expected.is_near(value_at(work, found, expected.spot))


def test_control_operands_cut_to_tf32_are_found_out():
    """What newer cards do for speed: ten bits of each operand's fraction."""
    numpy = pytest.importorskip("numpy")

    class Cutting(NumpyEngine):
        def compute(self, work, **how):
            class Cut:
                def __getattr__(self, name):
                    return getattr(numpy, name)

                def matmul(self, left, right, out):
                    cut = [
                        ((each.view(numpy.uint32) + 0x1000) & numpy.uint32(0xFFFFE000)).view(numpy.float32)
                        for each in (left, right)
                    ]
                    return numpy.matmul(*cut, out=out)

            self._numpy = Cut()
            return super().compute(work, **how)

    work = Work(SEED, 256, 2)
    found = Cutting().compute(work)
    near = [each.is_near(value_at(work, found, each.spot)) for each in compute_spots(work, list_spots(work))]
    assert not all(near)


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_fills_memory_with_the_words_that_the_hub_expects(name):
    indices = [0, 1, 777, (1 << 18) - 1]
    words = make_engine(name).fill(SEED, 1 << 20, indices)
    assert is_filled(SEED, indices, words)
    assert not is_filled(SEED, indices, [*words[:-1], words[-1] ^ 1])
    assert not is_filled(SEED, indices, words[:-1])


def test_a_card_that_is_smaller_than_it_says_loses_words():
    """What is written to a place that is not there lands on another one."""
    first, second = split_seed(SEED)
    real, claimed = 1 << 10, 1 << 11
    held = {place % real: word_at(first, second, place) for place in range(claimed)}
    assert not is_filled(SEED, [5, 700], [held[place % real] for place in (5, 700)])
    assert is_filled(SEED, [5 + real], [held[5]])


@pytest.mark.parametrize("name", ["plain", "numpy"])
def test_a_measurement_tells_speed_and_spread(name, monkeypatch):
    monkeypatch.setattr("computepool.node.hardware.benchmark.ROUND_SECONDS", 0.01)
    monkeypatch.setattr("computepool.node.hardware.benchmark.PRODUCT_SECONDS", 0.0001)
    ticks = iter(range(10_000))
    measured = measure(make_engine(name), on_gpu=False, now_seconds=lambda: next(ticks) / 100)
    # By a clock that moves by a hundredth at every look: every round takes as long.
    assert measured.spread_ratio == pytest.approx(0.0)
    assert measured.tflops > 0
    assert measured.memory_gb_per_second > 0


def test_the_processor_is_always_measured_somehow(monkeypatch):
    assert find_engine(on_gpu=False).name
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert find_engine(on_gpu=False).name == "plain Python"


def test_a_card_that_nothing_here_can_use_is_told_with_all_reasons(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(NoEngine, match=r"torch is not installed.*OpenCL"):
        find_engine(on_gpu=True)


async def test_the_process_computes_commits_and_opens():
    work = Work(SEED, 64, 3)
    async with open_measuring(None) as process:
        root = await process.compute(seed=SEED.hex(), size=64, products=3, seconds=60)
        (opened,) = await process.open([1])
    assert is_proved(
        root=bytes.fromhex(root),
        count=work.segments,
        index=1,
        piece=base64.b64decode(opened.piece),
        path=[bytes.fromhex(step) for step in opened.path],
    )


async def test_a_device_that_hangs_is_cut_off_and_nothing_is_left(monkeypatch):
    monkeypatch.setattr(measuring, "PROGRAM", "import os, time; print(os.getpid(), flush=True); time.sleep(600)")
    monkeypatch.setattr(measuring, "START_SECONDS", 0.5)
    with pytest.raises(CannotMeasure):
        async with open_measuring(None):
            pass
    assert b"time.sleep(600)" not in await list_commands()


async def test_a_process_that_dies_is_told(monkeypatch):
    monkeypatch.setattr(measuring, "PROGRAM", "raise SystemExit(1)")
    with pytest.raises(CannotMeasure, match="died"):
        async with open_measuring(None):
            pass


def test_the_process_sees_one_card_and_no_keys():
    env = {"PATH": "/bin", "COMPUTEPOOL_NODE_OWNER_KEY": "secret"}
    made = make_env(Card("nvidia", "x", 1, address="GPU-7"), env)
    assert made == {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "GPU-7", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert "HIP_VISIBLE_DEVICES" not in make_env(Card("amd", "x", 1, address="0000:03:00.0"), env)


async def list_commands() -> bytes:
    """Of this process's children."""
    found = b""
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/stat") as stat, open(f"/proc/{entry}/cmdline", "rb") as command:
                if stat.read().rpartition(")")[2].split()[1] == str(os.getpid()):
                    found += command.read()
        except (OSError, IndexError):
            continue
    await asyncio.sleep(0)
    return found
