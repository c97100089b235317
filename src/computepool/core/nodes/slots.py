"""Cuts a machine into slots: one per GPU, and as many CPU slots as its owner allows.

The hub does this from what the node declares, so that every hub and every agent counts alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from computepool.core.ids import NodeId, SlotName
from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.placement.slot import Slot, SlotKind
from computepool.core.placement.tier import CPU_TIER, tier_of_gpu

GPUS_MAX = 64
CPU_SLOTS_MAX = 256


@dataclass(frozen=True, slots=True)
class GpuCard:
    name: str
    vram_bytes: int


@dataclass(frozen=True, slots=True)
class Machine:
    gpus: Sequence[GpuCard]
    cores: int
    ram_bytes: int
    disk_bytes: int
    cpu_slots: int
    region: str | None
    isolation: IsolationLevel


def list_machine_faults(machine: Machine) -> list[str]:
    faults = []
    if machine.cores < 1 or machine.ram_bytes < 1 or machine.disk_bytes < 0:
        faults.append("cores and ram_bytes must be positive")
    if len(machine.gpus) > GPUS_MAX or not 0 <= machine.cpu_slots <= CPU_SLOTS_MAX:
        faults.append(f"at most {GPUS_MAX} GPUs and {CPU_SLOTS_MAX} CPU slots")
    if not machine.gpus and machine.cpu_slots == 0:
        faults.append("there is nothing to lend: no GPU and no CPU slot")
    if any(gpu.vram_bytes < 0 or len(gpu.name) > 200 for gpu in machine.gpus):
        faults.append("a GPU has a negative VRAM or an over-long name")
    if max([machine.ram_bytes, machine.disk_bytes, *(g.vram_bytes for g in machine.gpus)]) > 1 << 50:
        faults.append("a size is larger than 2^50 bytes")
    if machine.cores > 4096:
        faults.append("more than 4096 cores")
    return faults


def cut_into_slots(node_id: NodeId, machine: Machine) -> list[Slot]:
    """Cores, RAM and disk are shared out evenly; with more slots than cores, each still counts one core."""
    count = len(machine.gpus) + machine.cpu_slots
    cores = max(1, machine.cores // count)
    ram_bytes, disk_bytes = machine.ram_bytes // count, machine.disk_bytes // count

    def make(name: str, kind: SlotKind, tier: str, vram_bytes: int) -> Slot:
        return Slot(
            node_id=node_id,
            name=SlotName(name),
            kind=kind,
            tier=tier,
            vram_bytes=vram_bytes,
            cores=cores,
            ram_bytes=ram_bytes,
            disk_bytes=disk_bytes,
            region=machine.region,
            isolation=machine.isolation,
        )

    gpus = [
        make(f"gpu:{i}", SlotKind.GPU, tier_of_gpu(gpu.name, gpu.vram_bytes), gpu.vram_bytes)
        for i, gpu in enumerate(machine.gpus)
    ]
    return gpus + [make(f"cpu:{i}", SlotKind.CPU, CPU_TIER, 0) for i in range(machine.cpu_slots)]
