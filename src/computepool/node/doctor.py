"""Looks at this machine as the agent would and says what it found, what is missing, and the fix. Needs no hub."""

from __future__ import annotations

import asyncio
import os
import platform
import tempfile
from pathlib import Path

import msgspec

import computepool
from computepool import clock
from computepool.core.errors import ComputePoolError
from computepool.core.placement.tier import UNKNOWN_TIER, tier_of_gpu
from computepool.core.trust.challenge import BUSY_SPREAD_RATIO, KEEP_RATIO, Claim
from computepool.node.comfort.readers import AUTO, get_reader
from computepool.node.hardware.cpu import UnreadableMachine
from computepool.node.hardware.detect import Detected, Lending, detect
from computepool.node.hub_client import HubClient
from computepool.node.local_status import list_agents, look_at
from computepool.node.measurements import Device, measure_machine
from computepool.node.runner.self_test import check_backends
from computepool.node.sandbox.port import Report
from computepool.node.self_check import (
    Finding,
    Grade,
    check_agent,
    check_cards,
    check_clock,
    check_disk,
    check_sandboxes,
    check_seat,
)
from computepool.wire.nodes import Hardware

HUB_SECONDS = 15.0


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    # Whether an agent here would take work.
    ready: bool
    findings: list[Finding]
    hardware: Hardware | None = None
    speeds: list[Device] = []
    agent_version: str = ""


async def examine(
    *,
    state_dir: Path,
    hub_url: str = "",
    ca_file: str = "",
    profile: Path | None = None,
    measure: bool = True,
    probe: bool = True,
) -> Examination:
    """`measure` takes some seconds per device, `probe` a second or two."""
    folder = _find_existing(state_dir)
    findings: list[Finding] = []
    detected: Detected | None = None
    speeds: list[Device] = []
    try:
        detected = await asyncio.to_thread(detect, profile, disk_of=folder, lending=Lending())
    except (UnreadableMachine, OSError) as error:
        findings.append(Finding(topic="machine", grade=Grade.TROUBLE, words=f"This machine cannot be read: {error}."))
    if detected is not None:
        findings += [_describe_machine(detected), *check_cards(detected), _describe_region(detected)]
    findings.append(check_disk(folder))
    findings += await asyncio.to_thread(_look_at_owner, state_dir)
    if probe:
        findings += check_sandboxes(await asyncio.to_thread(_try_sandboxes))
    if detected is not None and measure and not detected.synthetic:
        speeds = (await measure_machine(detected)).devices
        findings += [_describe_speed(device, detected) for device in speeds]
    if hub_url:
        findings += await _look_at_hub(hub_url, ca_file)
    return Examination(
        ready=all(each.grade is not Grade.TROUBLE for each in findings),
        findings=findings,
        hardware=detected.hardware if detected is not None else None,
        speeds=speeds,
        agent_version=computepool.__version__,
    )


def _describe_machine(detected: Detected) -> Finding:
    hardware = detected.hardware
    played = " A played machine, for demo hubs alone." if detected.synthetic else ""
    return Finding(
        topic="machine",
        grade=Grade.FINE,
        words=f"{hardware.cpu_name or platform.machine()}: {hardware.cores} usable cores, "
        f"{hardware.ram_bytes / (1 << 30):.1f} GiB of memory, {platform.system()}, "
        f"Python {platform.python_version()}.{played}",
    )


def _describe_region(detected: Detected) -> Finding:
    if detected.region is not None:
        words = f"By its time zone this machine is in {detected.region}."
        return Finding(topic="region", grade=Grade.FINE, words=words, fix="If not, name the country: --region XX.")
    return Finding(
        topic="region",
        grade=Grade.NOTE,
        words="The time zone does not tell in which country this machine is.",
        fix="Name it with --region XX: some jobs ask for one.",
    )


def _describe_speed(device: Device, detected: Detected) -> Finding:
    measured = device.measured
    if measured is None:
        return Finding(
            topic="speed",
            grade=Grade.NOTE,
            words=f"{device.slot} cannot be measured: {device.trouble}.",
            fix="Install torch for this card, or its OpenCL driver; without a proof it counts as an unknown card.",
        )
    words = (
        f"{device.slot}: {measured.tflops:.3g} TFLOPS (rounds differ by {measured.spread_ratio:.0%}), "
        f"memory {measured.memory_gb_per_second:.3g} GB/s, by {measured.engine}."
    )
    if measured.engine == "plain Python":
        return Finding(
            topic="speed",
            grade=Grade.NOTE,
            words=f"{words} That is the speed of Python, not of the processor.",
            fix="Install numpy to show what it can: pip install numpy.",
        )
    if measured.spread_ratio > BUSY_SPREAD_RATIO:
        return Finding(
            topic="speed",
            grade=Grade.NOTE,
            words=f"{words} The machine is busy with something else.",
            fix="Look again when it is quiet: what it shows to the hub decides its tier.",
        )
    return _compare(device.slot, measured.tflops, words, detected)


def _compare(slot: str, tflops: float, words: str, detected: Detected) -> Finding:
    """With what a card of that name shows at least."""
    if slot.startswith("gpu:"):
        gpu = detected.hardware.gpus[int(slot.removeprefix("gpu:"))]
        claim = Claim(tier_of_gpu(gpu.name, gpu.vram_bytes), None, detected.hardware.cores)
        least = KEEP_RATIO * claim.expected_tflops
        if claim.tier != UNKNOWN_TIER and tflops < least:
            return Finding(
                topic="speed",
                grade=Grade.NOTE,
                words=f"{words} A {claim.tier} shows {least:.3g} at least: this one would count as what it shows.",
                fix="Close what else uses the card, install torch for it, look at its cooling and power.",
            )
    return Finding(topic="speed", grade=Grade.FINE, words=words)


async def _look_at_hub(hub_url: str, ca_file: str) -> list[Finding]:
    hub = HubClient(hub_url, agent_version=computepool.__version__, ca_file=ca_file)
    try:
        async with asyncio.timeout(HUB_SECONDS):
            await hub.get_hub()
    except (TimeoutError, ComputePoolError) as error:
        reason = error.message if isinstance(error, ComputePoolError) else f"no answer within {HUB_SECONDS:.0f} s"
        return [
            Finding(
                topic="hub",
                grade=Grade.TROUBLE,
                words=f"The hub at {hub_url} cannot be reached: {reason}",
                fix="Look at HUB_URL and at this machine's network; the agent only calls out, by HTTP.",
            )
        ]
    finally:
        await hub.close()
    return [
        Finding(topic="hub", grade=Grade.FINE, words=f"The hub at {hub_url} answers."),
        check_clock(hub.clock_skew_seconds),
    ]


def _look_at_owner(state_dir: Path) -> list[Finding]:
    """How their presence is seen, and what the agents that work here already say. `state_dir`: of one, or of all."""
    agents = [look_at(state_dir)] if (state_dir / "status.json").exists() else list_agents(state_dir)
    now_seconds = clock.unix_seconds()
    return [
        check_seat(get_reader(AUTO, os.environ).look_at_seat()),
        *(check_agent(agent, now_seconds=now_seconds) for agent in agents),
    ]


def _try_sandboxes() -> tuple[Report, ...]:
    with tempfile.TemporaryDirectory(prefix="computepool-doctor-") as folder:
        return check_backends(Path(folder))


def _find_existing(folder: Path) -> Path:
    """The folder, or where it would be made."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
