"""Reads what nvidia-smi prints. A card that cannot be read is left out and said so, never guessed."""

from __future__ import annotations

from dataclasses import dataclass

from computepool.wire.nodes import Gpu

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class GpuReading:
    gpus: tuple[Gpu, ...]
    # Plain words for the owner on every card or line that was left out.
    remarks: tuple[str, ...]


def parse_nvidia_smi(printed: str) -> GpuReading:
    """One line per card: index, name, memory in MiB, driver version."""
    gpus, remarks = [], []
    for line in printed.splitlines():
        if not line.strip():
            continue
        try:
            gpus.append(_parse_line(line))
        except ValueError as error:
            remarks.append(str(error))
    return GpuReading(tuple(gpus), tuple(remarks))


def _parse_line(line: str) -> Gpu:
    fields = [field.strip() for field in line.split(",")]
    if len(fields) < 4 or not fields[0].isdigit():
        raise ValueError(f"nvidia-smi printed {line.strip()!r}, which names no card")
    # A name may hold a comma; what stands around it may not.
    name, memory, driver = ", ".join(fields[1:-2]), fields[-2], fields[-1]
    if not memory.isdigit():
        raise ValueError(f"the memory of card {fields[0]} ({name}) cannot be read: {memory}")
    return Gpu(name=name[:200], vram_bytes=int(memory) * MIB, driver="" if driver.startswith("[") else driver[:100])
