"""The hard gates. Each check returns a reason or nothing; the cheapest stand first."""

from __future__ import annotations

from collections.abc import Callable

from computepool.core.ids import AccountId
from computepool.core.jobs.wants import CONTAINER_EGRESS, EGRESS, IMAGE, PACKAGES, list_of, list_refused
from computepool.core.placement.price import say_price
from computepool.core.placement.shape import Shape
from computepool.core.placement.slot import Slot, SlotKind
from computepool.core.words import say_seconds


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


def check_job_kind(shape: Shape, slot: Slot) -> str | None:
    if slot.job_kinds and shape.job_kind not in slot.job_kinds:
        return f"is a job of the kind {shape.job_kind}, the owner takes {' and '.join(sorted(slot.job_kinds))}"
    return None


def check_slice_seconds(shape: Shape, slot: Slot) -> str | None:
    if shape.slice_seconds < slot.slice_seconds_min:
        runs, least = say_seconds(shape.slice_seconds), say_seconds(slot.slice_seconds_min)
        return f"its slices run for {runs} at most, the owner takes those of {least} or more"
    return None


def check_image(shape: Shape, slot: Slot) -> str | None:
    return _allowed("brings the image", shape, slot, IMAGE)


def check_egress(shape: Shape, slot: Slot) -> str | None:
    return _allowed("wants to reach", shape, slot, EGRESS, CONTAINER_EGRESS)


def check_packages(shape: Shape, slot: Slot) -> str | None:
    return _allowed("wants packages installed", shape, slot, PACKAGES)


def check_pool(account_id: AccountId | None, slot: Slot) -> str | None:
    """Not of the shape's making: whoever's work it is. None is nobody in particular."""
    if slot.welcome is not None and account_id not in slot.welcome:
        return "the owner keeps it for a private pool"
    return None


def check_price(
    shape: Shape, price_microcredits_per_hour: int, base_price_microcredits_per_hour: int = 0
) -> str | None:
    """Not of the slot's making: what its owner asks, against what the submitter pays at most.

    A fixed price per slice grows with tier and region of the slot: before both it is compared with what the slot asks
    before both.
    """
    ceiling = shape.ceiling_microcredits_per_hour
    if ceiling is not None and price_microcredits_per_hour > ceiling:
        return f"pays at most {say_price(ceiling)}, the slot asks {say_price(price_microcredits_per_hour)}"
    base = shape.base_ceiling_microcredits_per_hour
    if base is not None and base_price_microcredits_per_hour > base:
        asked = say_price(base_price_microcredits_per_hour)
        return f"pays {say_price(base)} before tier and region, the slot asks {asked}"
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
    check_job_kind,
    check_slice_seconds,
    check_image,
    check_egress,
    check_packages,
)


def find_refusal(
    shape: Shape,
    slot: Slot,
    *,
    price_microcredits_per_hour: int = 0,
    base_price_microcredits_per_hour: int = 0,
    account_id: AccountId | None = None,
) -> str | None:
    """The first gate that the slot fails, in plain words. Without a price it is taken as lent for nothing; without
    an account, as work of somebody who is in no private pool."""
    return (
        find_gate_refusal(shape, slot)
        or check_pool(account_id, slot)
        or check_price(shape, price_microcredits_per_hour, base_price_microcredits_per_hour)
    )


def find_gate_refusal(shape: Shape, slot: Slot) -> str | None:
    """The same without price and pool: what can be said of a shape and a slot alone."""
    for check in CHECKS:
        reason = check(shape, slot)
        if reason is not None:
            return reason
    return None


def _allowed(says: str, shape: Shape, slot: Slot, *kinds: str) -> str | None:
    if not shape.wants:
        return None
    refused = list_of(list_refused(shape.wants, slot.allows), *kinds)
    if not refused:
        return None
    asked = f"{says} {', '.join(refused)}".rstrip()
    return f"{asked}, which the owner does not allow"


def _at_least(what: str, needed_bytes: int, present_bytes: int) -> str | None:
    if present_bytes < needed_bytes:
        return f"needs {needed_bytes / 1e9:.1f} GB of {what}, the slot has {present_bytes / 1e9:.1f} GB"
    return None
