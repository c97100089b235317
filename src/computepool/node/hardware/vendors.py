"""Every vendor that is known. A new one is a module beside these and a line here."""

from __future__ import annotations

from computepool.node.hardware import amd, apple, intel, nvidia
from computepool.node.hardware.port import Reading, Sight, Vendor

VENDORS: tuple[Vendor, ...] = (nvidia.read, amd.read, intel.read, apple.read)


def read_cards(sight: Sight) -> Reading:
    """All cards of all vendors, in an order that stays: slots are named by their place in it."""
    readings = [vendor(sight) for vendor in VENDORS]
    return Reading(
        tuple(card for reading in readings for card in reading.cards),
        tuple(remark for reading in readings for remark in reading.remarks),
    )
