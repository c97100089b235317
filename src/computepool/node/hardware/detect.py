"""From what a machine has to the hardware that the node declares. One way for real and for played machines."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from computepool.node.hardware.port import Card, Remark, Sight
from computepool.node.hardware.profiles import read_profile
from computepool.node.hardware.source import Found, read_machine
from computepool.wire.nodes import Gpu, Hardware


@dataclass(frozen=True, slots=True)
class Lending:
    """What the owner lets go of. None means all there is."""

    cpu_slots: int = 1
    cores_max: int | None = None
    ram_bytes_max: int | None = None
    disk_bytes_max: int | None = None
    # Of all cores, rounded down; one is lent in any case.
    cpu_percent_max: int = 100


ALL_AND_ONE_SLOT = Lending()


@dataclass(frozen=True, slots=True)
class Detected:
    hardware: Hardware
    synthetic: bool
    # For the owner: why a GPU is missing from the list.
    troubles: tuple[Remark, ...]
    # As in `hardware.gpus` and in its order, with how this machine calls each.
    cards: tuple[Card, ...] = ()
    # Where the machine says it is; the owner's word beats it.
    region: str | None = None

    @property
    def remarks(self) -> tuple[str, ...]:
        """In plain words."""
        nothing = () if self.hardware.gpus else ("no GPU will be lent, only the CPU.",)
        return (*map(str, self.troubles), *nothing)


def detect(
    profile: Path | None,
    *,
    disk_of: Path = Path("/"),
    lending: Lending = ALL_AND_ONE_SLOT,
    sight: Sight | None = None,
) -> Detected:
    """`disk_of` is the folder whose disk the jobs will fill."""
    if profile is not None:
        return describe(read_profile(profile), lending)
    return describe(read_machine(disk_of, sight or Sight()), lending)


def describe(found: Found, lending: Lending) -> Detected:
    cards = found.cards.cards
    hardware = Hardware(
        gpus=tuple(_to_gpu(card) for card in cards),
        cpu_name=found.cpu_name,
        instruction_set=found.instruction_set,
        cores=_at_most(max(1, found.cores * lending.cpu_percent_max // 100), lending.cores_max),
        ram_bytes=_at_most(found.ram_bytes, lending.ram_bytes_max),
        disk_bytes=_at_most(found.disk_free_bytes, lending.disk_bytes_max),
        cpu_slots=lending.cpu_slots,
    )
    return Detected(hardware, found.synthetic, found.cards.remarks, cards, found.region)


def _to_gpu(card: Card) -> Gpu:
    """Its address stays here: a UUID tells one machine from all others in the world."""
    return Gpu(
        name=card.name,
        vram_bytes=card.vram_bytes,
        driver=card.driver,
        vendor=card.vendor,
        runtime=card.runtime,
    )


def _at_most(found: int, limit: int | None) -> int:
    return found if limit is None else min(found, limit)
