"""What a node claims of each slot, and what it is granted: its claim, or what it has shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from computepool.core.nodes.slots import Machine, list_declared_tflops
from computepool.core.placement.tier import CPU_TIER, UNKNOWN_TIER, tier_of_gpu
from computepool.core.trust.challenge import Claim

# All CPU slots are shares of the same cores: one of them stands for all.
CPU_SLOT = "cpu:0"


@dataclass(frozen=True, slots=True)
class SlotClaim:
    claim: Claim
    # Changes with what is claimed: what was shown by another card says nothing of this one.
    fingerprint: str
    # Of the card; 0 for the processor.
    vram_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Shown:
    """What a proof comes to."""

    tier: str
    tflops: float | None


@dataclass(frozen=True, slots=True)
class Granted:
    tier: str
    tflops: float | None


def list_claims(machine: Machine) -> dict[str, SlotClaim]:
    """By the name of the slot that is challenged for it."""
    claims = {
        f"gpu:{index}": SlotClaim(
            Claim(tier_of_gpu(gpu.name, gpu.vram_bytes), gpu.tflops, machine.cores),
            f"{gpu.name}|{gpu.vram_bytes}",
            gpu.vram_bytes,
        )
        for index, gpu in enumerate(machine.gpus)
    }
    if machine.cpu_slots:
        claims[CPU_SLOT] = SlotClaim(Claim(CPU_TIER, machine.cpu_tflops, machine.cores), f"cpu|{machine.cores}")
    return claims


def slot_of_proof(slot: str) -> str:
    return slot if slot.startswith("gpu:") else CPU_SLOT


def grant(machine: Machine, shown: Mapping[str, Shown], *, demanded: bool) -> list[Granted]:
    """For each slot, in the order of `cut_into_slots`. `demanded`: a card's name alone earns it no tier."""
    count = len(machine.gpus) + machine.cpu_slots
    share = max(1, machine.cores // count) / machine.cores
    declared = list_declared_tflops(machine)
    granted = []
    for index, gpu in enumerate(machine.gpus):
        proof = shown.get(f"gpu:{index}")
        claimed = tier_of_gpu(gpu.name, gpu.vram_bytes)
        if proof is not None:
            granted.append(Granted(proof.tier, proof.tflops))
        elif demanded and claimed != UNKNOWN_TIER:
            granted.append(Granted(UNKNOWN_TIER, None))
        else:
            granted.append(Granted(claimed, declared[index]))
    cpu = shown.get(CPU_SLOT)
    for own in declared[len(machine.gpus) :]:
        speed = own if cpu is None else None if cpu.tflops is None else cpu.tflops * share
        granted.append(Granted(CPU_TIER, speed))
    return granted
