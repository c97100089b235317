"""A slot: what one attempt occupies on a node."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from computepool.core.ids import NodeId, SlotName
from computepool.core.jobs.isolation import IsolationLevel


class SlotKind(str, Enum):
    GPU = "gpu"
    CPU = "cpu"


@dataclass(frozen=True, slots=True)
class Slot:
    node_id: NodeId
    name: SlotName
    kind: SlotKind
    tier: str
    vram_bytes: int
    cores: int
    ram_bytes: int
    disk_bytes: int
    region: str | None
    isolation: IsolationLevel


def tightness(slot: Slot) -> tuple[bool, int, int, int]:
    """Smallest first."""
    return slot.kind is SlotKind.GPU, slot.vram_bytes, slot.cores, slot.ram_bytes
