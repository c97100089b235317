"""The hard gates. Each check returns a reason or nothing; the cheapest stand first."""

from __future__ import annotations

from collections.abc import Callable

from computepool.core.placement.price import say_price
from computepool.core.placement.shape import Shape
from computepool.core.placement.slot import Slot, SlotKind


def check_gpu(shape: Shape, slot: Slot) -> str | None:
    return "needs a GPU" if shape.gpu and slot.kind is not SlotKind.GPU else None


def check_vram(shape: Shape, slot: Slot) -> str | None:
    return _at_least("VRAM", shape.vram_bytes, slot.vram_bytes)


def check_cores(shape: Shape, slot: Slot) -> str | None:
    if slot.cores < shape.cores:
        return f"needs {shape.cores} cores, the slot has {slot.cores}"
    return None


def check_ram(shape: Shape, slot: Slot) -> str | None:
    return _at_least("RAM", shape.ram_bytes, slot.ram_bytes)


def check_disk(shape: Shape, slot: Slot) -> str | None:
    return _at_least("disk", shape.disk_bytes, slot.disk_bytes)


def check_tier(shape: Shape, slot: Slot) -> str | None:
    if shape.tiers and slot.tier not in shape.tiers:
        return f"needs tier {' or '.join(shape.tiers)}, the slot is {slot.tier}"
    return None


def check_region(shape: Shape, slot: Slot) -> str | None:
    if shape.regions and slot.region not in shape.regions:
        return f"needs region {' or '.join(shape.regions)}, the node is in {slot.region or 'no known region'}"
    return None


def check_isolation(shape: Shape, slot: Slot) -> str | None:
    if slot.isolation.rank < shape.isolation.rank:
        return f"needs isolation {shape.isolation.value}, the node offers {slot.isolation.value}"
    return None


def check_price(shape: Shape, price_microcredits_per_hour: int) -> str | None:
    """The one gate that is not of the slot's making: what its owner asks, against what the submitter pays at most."""
    ceiling = shape.ceiling_microcredits_per_hour
    if ceiling is not None and price_microcredits_per_hour > ceiling:
        return f"pays at most {say_price(ceiling)}, the slot asks {say_price(price_microcredits_per_hour)}"
    return None


CHECKS: tuple[Callable[[Shape, Slot], str | None], ...] = (
    check_gpu,
    check_vram,
    check_cores,
    check_ram,
    check_disk,
    check_isolation,
    check_tier,
    check_region,
)


def find_refusal(shape: Shape, slot: Slot, *, price_microcredits_per_hour: int = 0) -> str | None:
    """The first gate that the slot fails, in plain words. Without a price it is taken as lent for nothing."""
    for check in CHECKS:
        reason = check(shape, slot)
        if reason is not None:
            return reason
    return check_price(shape, price_microcredits_per_hour)


def _at_least(what: str, needed_bytes: int, present_bytes: int) -> str | None:
    if present_bytes < needed_bytes:
        return f"needs {needed_bytes / 1e9:.1f} GB of {what}, the slot has {present_bytes / 1e9:.1f} GB"
    return None
