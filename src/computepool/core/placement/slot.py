"""A slot: what one attempt occupies on a node."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from computepool.core.ids import AccountId, NodeId, SlotName
from computepool.core.jobs.isolation import IsolationLevel


class SlotKind(str, Enum):
    GPU = "gpu"
    CPU = "cpu"


@dataclass(frozen=True, slots=True)
class Slot:
    """What a node has of everything; then the conditions at which its owner lends it."""

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
    # Slices that may run for less are not taken.
    slice_seconds_min: int = 0
    # Kinds of jobs that are taken; empty: all.
    job_kinds: frozenset[str] = frozenset()
    # Accounts that may have it, its owner among them: a private pool. None: anybody.
    welcome: frozenset[AccountId] | None = None
    # Images, hosts and packages that jobs may have, in the words of core/jobs/wants.py.
    allows: frozenset[str] = frozenset()


def tightness(slot: Slot) -> tuple[bool, int, int, int]:
    """Smallest first."""
    return slot.kind is SlotKind.GPU, slot.vram_bytes, slot.cores, slot.ram_bytes
