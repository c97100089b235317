"""Cuts a machine into slots: one per GPU, and as many CPU slots as its owner allows.

The hub does this from what the node declares, so that every hub and every agent counts alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from computepool.core.ids import NodeId, SlotName
from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.placement.slot import Slot, SlotKind
from computepool.core.placement.tier import CPU_TIER, tier_of_gpu

GPUS_MAX = 64
CPU_SLOTS_MAX = 256
TFLOPS_MAX = 1e6


@dataclass(frozen=True, slots=True)
class GpuCard:
    name: str
    vram_bytes: int
    # As the node declares; None: it has not measured.
    tflops: float | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    gpus: Sequence[GpuCard]
    cores: int
    ram_bytes: int
    disk_bytes: int
    cpu_slots: int
    region: str | None
    isolation: IsolationLevel
    # Of all cores together, as the node declares.
    cpu_tflops: float | None = None


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
    declared = [machine.cpu_tflops, *(gpu.tflops for gpu in machine.gpus)]
    if any(speed is not None and not (isfinite(speed) and 0 < speed <= TFLOPS_MAX) for speed in declared):
        faults.append(f"a declared speed is a positive number of TFLOPS, at most {TFLOPS_MAX:,.0f}, or absent")
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


def list_declared_tflops(machine: Machine) -> list[float | None]:
    """What the node says of each slot's speed, in the order of `cut_into_slots`. CPU slots share by their cores."""
    count = len(machine.gpus) + machine.cpu_slots
    share = max(1, machine.cores // count) / machine.cores
    cpu = None if machine.cpu_tflops is None else machine.cpu_tflops * share
    return [gpu.tflops for gpu in machine.gpus] + [cpu] * machine.cpu_slots
