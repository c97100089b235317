"""What a machine has, before its owner says how much is lent: this machine, or a profile that plays another one.

A played machine takes the same way through the parsers as a real one.
"""

from __future__ import annotations

import platform
import shutil
from dataclasses import dataclass
from pathlib import Path

from computepool.node.hardware.cpu import (
    UnreadableMachine,
    parse_core_count,
    parse_cpu_name,
    parse_instruction_set,
    parse_ram_bytes,
)
from computepool.node.hardware.port import Reading, Sight
from computepool.node.hardware.region import find_region
from computepool.node.hardware.vendors import read_cards


@dataclass(frozen=True, slots=True)
class Found:
    cards: Reading
    cpu_name: str
    # That this process may use.
    cores: int
    ram_bytes: int
    disk_free_bytes: int
    instruction_set: str = ""
    region: str | None = None
    synthetic: bool = False


def read_machine(disk_of: Path, sight: Sight) -> Found:
    is_mac = platform.system() == "Darwin"
    cpu_name, cores, ram_bytes = _read_mac(sight) if is_mac else _read_linux(sight)
    return Found(
        cards=read_cards(sight),
        cpu_name=cpu_name,
        cores=cores,
        ram_bytes=ram_bytes,
        disk_free_bytes=shutil.disk_usage(disk_of).free,
        instruction_set=parse_instruction_set("" if is_mac else sight.read("/proc/cpuinfo"), platform.machine()),
        region=find_region(sight),
    )


def _read_linux(sight: Sight) -> tuple[str, int, int]:
    return (
        parse_cpu_name(sight.read("/proc/cpuinfo")),
        parse_core_count(sight.read("/proc/self/status")),
        parse_ram_bytes(sight.read("/proc/meminfo")),
    )


def _read_mac(sight: Sight) -> tuple[str, int, int]:
    name, cores, memory = (
        sight.run("sysctl", "-n", key).text.strip()
        for key in ("machdep.cpu.brand_string", "hw.logicalcpu", "hw.memsize")
    )
    if not cores.isdigit() or not memory.isdigit():
        raise UnreadableMachine("sysctl does not tell the number of cores or the amount of memory")
    return name[:200], int(cores), int(memory)
