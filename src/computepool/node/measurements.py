"""How fast this machine's devices are, as the agent has measured it; kept, so that a start costs that once."""

from __future__ import annotations

import hashlib

import msgspec

from computepool.node import files, journal
from computepool.node.hardware.detect import Detected
from computepool.node.hardware.measured import Measured
from computepool.node.hardware.measuring import CannotMeasure, open_measuring
from computepool.node.hardware.port import Card
from computepool.node.state_dir import StateDir


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """One slot's device: a measurement, or why there is none."""

    slot: str
    measured: Measured | None = None
    trouble: str = ""


class Measurements(msgspec.Struct, frozen=True, kw_only=True):
    # Of the hardware that was measured: another card is measured anew.
    hardware_sha256: str
    devices: list[Device]


async def measure_machine(detected: Detected) -> Measurements:
    """One device after the other, each in a process of its own."""
    targets: list[tuple[str, Card | None]] = [(f"gpu:{index}", card) for index, card in enumerate(detected.cards)]
    if detected.hardware.cpu_slots:
        targets.append(("cpu:0", None))
    devices = []
    for slot, card in targets:
        try:
            async with open_measuring(card) as process:
                devices.append(Device(slot=slot, measured=await process.measure()))
        except CannotMeasure as error:
            devices.append(Device(slot=slot, trouble=str(error)))
    return Measurements(hardware_sha256=_digest(detected), devices=devices)


async def find_measurements(state: StateDir, detected: Detected) -> Measurements:
    """What was measured before, if it was this hardware."""
    kept = files.find_bytes(state.measurements_path)
    if kept is not None:
        try:
            found = msgspec.json.decode(kept, type=Measurements)
        except msgspec.DecodeError:
            found = None
        if found is not None and found.hardware_sha256 == _digest(detected):
            return found
    made = await measure_machine(detected)
    for device in made.devices:
        _tell(device)
    files.write_whole(state.measurements_path, msgspec.json.format(msgspec.json.encode(made)))
    return made


def declare(detected: Detected, measurements: Measurements) -> Detected:
    """The same machine with the speeds that it declares."""
    speeds = {each.slot: each.measured.tflops for each in measurements.devices if each.measured is not None}
    hardware = msgspec.structs.replace(
        detected.hardware,
        gpus=tuple(
            msgspec.structs.replace(gpu, tflops=speeds.get(f"gpu:{index}"))
            for index, gpu in enumerate(detected.hardware.gpus)
        ),
        cpu_tflops=speeds.get("cpu:0"),
    )
    return Detected(hardware, detected.synthetic, detected.troubles, detected.cards, detected.region)


def _tell(device: Device) -> None:
    if device.measured is None:
        journal.warning("not_measured", slot=device.slot, reason=device.trouble)
        return
    journal.info(
        "measured",
        slot=device.slot,
        engine=device.measured.engine,
        tflops=device.measured.tflops,
        spread_ratio=device.measured.spread_ratio,
        memory_gb_per_second=device.measured.memory_gb_per_second,
    )


def _digest(detected: Detected) -> str:
    hardware = detected.hardware
    what = [
        hardware.cpu_name,
        hardware.cores,
        hardware.cpu_slots,
        [msgspec.to_builtins(gpu) for gpu in hardware.gpus],
    ]
    return hashlib.sha256(msgspec.json.encode(what)).hexdigest()
