"""The gates that a slot must pass, each with its check, and what is asked and what is had there, in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from computepool.core.ids import AccountId
from computepool.core.jobs import wants
from computepool.core.jobs.spec import Requirements
from computepool.core.placement import checks
from computepool.core.placement.price import format_credits, say_price
from computepool.core.placement.shape import Shape, to_shape
from computepool.core.placement.slot import Slot, SlotKind
from computepool.core.words import say_bytes, say_count, say_seconds


class Gate(str, Enum):
    GPU = "gpu"
    VRAM = "vram"
    CORES = "cores"
    RAM = "ram"
    DISK = "disk"
    ISOLATION = "isolation"
    TIER = "tier"
    REGION = "region"
    KIND = "kind"
    SECONDS = "seconds"
    IMAGE = "image"
    EGRESS = "egress"
    PACKAGES = "packages"
    POOL = "pool"
    PRICE = "price"
    # Others who wait for the same slots pay spot: whoever pays less waits until they are served.
    SPOT = "spot"


# What a job wants beyond a plain sandbox: its owner allows it or not.
WANTS_GATES = {
    Gate.IMAGE: (wants.IMAGE,),
    Gate.EGRESS: (wants.EGRESS, wants.CONTAINER_EGRESS),
    Gate.PACKAGES: (wants.PACKAGES,),
}
# Gates that nobody passes by asking for less: what a job is stays what it is, and whom a machine is lent to, and what
# for, is its owner's to say.
OWNERS_GATES = (Gate.KIND, *WANTS_GATES, Gate.POOL)
# Every check of a slot has its gate here; a test holds the two together. Pool and prices have `check_pool` and
# `check_price`, which look at more than a shape and a slot.
CHECK_OF: Mapping[Gate, Callable[[Shape, Slot], str | None]] = {
    Gate.GPU: checks.check_gpu,
    Gate.VRAM: checks.check_vram,
    Gate.CORES: checks.check_cores,
    Gate.RAM: checks.check_ram,
    Gate.DISK: checks.check_disk,
    Gate.ISOLATION: checks.check_isolation,
    Gate.TIER: checks.check_tier,
    Gate.REGION: checks.check_region,
    Gate.KIND: checks.check_job_kind,
    Gate.SECONDS: checks.check_slice_seconds,
    Gate.IMAGE: checks.check_image,
    Gate.EGRESS: checks.check_egress,
    Gate.PACKAGES: checks.check_packages,
}
PRICE_GATES = (Gate.PRICE, Gate.SPOT)
AMOUNTS: Mapping[Gate, tuple[str, Callable[[Requirements | Slot], int]]] = {
    Gate.VRAM: ("VRAM", lambda of: of.vram_bytes),
    Gate.RAM: ("RAM", lambda of: of.ram_bytes),
    Gate.DISK: ("disk", lambda of: of.disk_bytes),
}


def list_failed(
    shape: Shape,
    slot: Slot,
    price_microcredits_per_hour: int = 0,
    base_price_microcredits_per_hour: int = 0,
    *,
    account_id: AccountId | None = None,
    by_spot: bool = False,
) -> tuple[Gate, ...]:
    """`by_spot`: the price is what others pay, and not what the owner asks."""
    failed = tuple(gate for gate, check in CHECK_OF.items() if check(shape, slot) is not None)
    if checks.check_pool(account_id, slot) is not None:
        failed = (*failed, Gate.POOL)
    if checks.check_price(shape, price_microcredits_per_hour, base_price_microcredits_per_hour) is None:
        return failed
    return (*failed, Gate.SPOT if by_spot else Gate.PRICE)


@dataclass(frozen=True, slots=True)
class Margin:
    gate: Gate
    needs: str
    has: str
    passes: bool
    # What is left over beyond the need; None where nothing is measured.
    spare: str | None = None


def list_margins(
    need: Requirements, slot: Slot, price_microcredits_per_hour: int = 0, *, account_id: AccountId | None = None
) -> tuple[Margin, ...]:
    """Need against slot, for each gate that the request sets, or the slot's owner."""
    shape, price = to_shape(need), price_microcredits_per_hour
    failed = list_failed(shape, slot, price, account_id=account_id)
    asked = {
        Gate.GPU: shape.gpu and not shape.vram_bytes,
        Gate.VRAM: shape.vram_bytes > 0,
        Gate.TIER: bool(shape.tiers),
        Gate.REGION: bool(shape.regions),
        Gate.KIND: bool(slot.job_kinds),
        Gate.SECONDS: slot.slice_seconds_min > 0,
        **{gate: bool(_list_wanted(need, gate)) for gate in WANTS_GATES},
        Gate.POOL: slot.welcome is not None,
        Gate.PRICE: shape.ceiling_microcredits_per_hour is not None,
        # What others pay while it waits is no matter any more.
        Gate.SPOT: False,
    }
    return tuple(
        Margin(
            gate,
            say_asked(need, gate),
            say_has(slot, gate, price),
            gate not in failed,
            _say_spare(need, slot, gate, price),
        )
        for gate in Gate
        if asked.get(gate, True)
    )


def say_asked(need: Requirements, gate: Gate) -> str:
    if gate in AMOUNTS:
        return say_bytes(AMOUNTS[gate][1](need))
    if gate is Gate.GPU:
        return "a GPU" if to_shape(need).gpu else "no GPU"
    if gate is Gate.CORES:
        return say_count(need.cores, "core")
    if gate is Gate.ISOLATION:
        return need.isolation.value
    if gate in PRICE_GATES and need.slice_price is not None:
        fixed = need.slice_price
        most = format_credits(fixed.ceiling_microcredits)
        return f"{format_credits(fixed.base_microcredits)} credits a slice, at most {most}"
    if gate in PRICE_GATES:
        ceiling = need.ceiling_microcredits_per_hour
        return "any price" if ceiling is None else f"at most {say_price(ceiling)}"
    if gate is Gate.KIND:
        return need.job_kind
    if gate is Gate.SECONDS:
        return f"up to {say_seconds(need.slice_seconds)}"
    if gate is Gate.PACKAGES:
        return "to be installed" if _list_wanted(need, gate) else "none"
    if gate in WANTS_GATES:
        return " and ".join(_list_wanted(need, gate)) or "none"
    if gate is Gate.POOL:
        return "lent to you"
    return " or ".join(need.tiers if gate is Gate.TIER else need.regions) or "any"


def _list_wanted(need: Requirements, gate: Gate) -> tuple[str, ...]:
    """Images by their names alone: a digest tells nobody anything. Of packages, that there are some."""
    names = wants.list_of(need.wants, *WANTS_GATES[gate])
    return tuple(name.partition("@")[0] for name in names) if gate is Gate.IMAGE else names


def say_has(slot: Slot, gate: Gate, price_microcredits_per_hour: int = 0) -> str:
    if gate in AMOUNTS:
        return say_bytes(AMOUNTS[gate][1](slot))
    if gate is Gate.GPU:
        return "a GPU" if slot.kind is SlotKind.GPU else "no GPU"
    if gate is Gate.CORES:
        return say_count(slot.cores, "core")
    if gate is Gate.ISOLATION:
        return slot.isolation.value
    if gate in PRICE_GATES:
        return say_price(price_microcredits_per_hour)
    if gate is Gate.KIND:
        return " and ".join(sorted(slot.job_kinds)) or "all kinds"
    if gate is Gate.SECONDS:
        return f"{say_seconds(slot.slice_seconds_min)} or more"
    if gate is Gate.PACKAGES:
        return "allowed" if wants.PACKAGES in slot.allows else "not allowed"
    if gate in WANTS_GATES:
        return " and ".join(wants.list_of(slot.allows, *WANTS_GATES[gate])) or "none allowed"
    if gate is Gate.POOL:
        return "anybody's" if slot.welcome is None else "a private pool"
    return slot.tier if gate is Gate.TIER else slot.region or "unknown"


def _say_spare(need: Requirements, slot: Slot, gate: Gate, price: int) -> str | None:
    if gate is Gate.PRICE:
        ceiling = need.ceiling_microcredits_per_hour
        return None if ceiling is None or ceiling < price else say_price(ceiling - price)
    if gate is Gate.CORES:
        return str(slot.cores - need.cores) if slot.cores >= need.cores else None
    if gate not in AMOUNTS:
        return None
    spare = AMOUNTS[gate][1](slot) - AMOUNTS[gate][1](need)
    return say_bytes(spare) if spare >= 0 else None
