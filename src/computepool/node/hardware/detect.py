"""From texts to the hardware that the node declares. One way for real and for played machines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from computepool.node.hardware.cpu import parse_core_count, parse_cpu_name, parse_ram_bytes
from computepool.node.hardware.nvidia import parse_nvidia_smi
from computepool.node.hardware.profiles import read_profile
from computepool.node.hardware.source import MachineTexts, read_machine
from computepool.wire.nodes import Hardware


@dataclass(frozen=True, slots=True)
class Lending:
    """What the owner lets go of. None means all there is."""

    cpu_slots: int = 1
    cores_max: int | None = None
    ram_bytes_max: int | None = None
    disk_bytes_max: int | None = None


ALL_AND_ONE_SLOT = Lending()


@dataclass(frozen=True, slots=True)
class Detected:
    hardware: Hardware
    synthetic: bool
    # Plain words for the owner: why a GPU is missing from the list.
    remarks: tuple[str, ...]


def detect(profile: Path | None, *, disk_of: Path = Path("/"), lending: Lending = ALL_AND_ONE_SLOT) -> Detected:
    """`disk_of` is the folder whose disk the jobs will fill."""
    texts = read_profile(profile) if profile is not None else read_machine(disk_of)
    return describe(texts, lending)


def describe(texts: MachineTexts, lending: Lending) -> Detected:
    reading = parse_nvidia_smi(texts.nvidia_smi)
    remarks = list(reading.remarks)
    if not reading.gpus:
        reason = texts.nvidia_smi_trouble or "nvidia-smi lists no usable card"
        remarks.append(f"no GPU will be lent, only the CPU: {reason}")
    hardware = Hardware(
        gpus=reading.gpus,
        cpu_name=parse_cpu_name(texts.proc_cpuinfo),
        cores=_at_most(parse_core_count(texts.proc_status), lending.cores_max),
        ram_bytes=_at_most(parse_ram_bytes(texts.proc_meminfo), lending.ram_bytes_max),
        disk_bytes=_at_most(texts.disk_free_bytes, lending.disk_bytes_max),
        cpu_slots=lending.cpu_slots,
    )
    return Detected(hardware, texts.synthetic, tuple(remarks))


def _at_most(found: int, limit: int | None) -> int:
    return found if limit is None else min(found, limit)
