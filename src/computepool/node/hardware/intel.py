"""Intel cards with memory of their own, by what i915 or xe say in sysfs. Graphics inside a processor are not lent."""

from __future__ import annotations

from computepool.node.hardware import pci
from computepool.node.hardware.port import Card, Reading, Remark, Sight

VENDOR = "intel"
# What different drivers call the size of the card's memory, seen from its folder.
_MEMORY = ("drm/card*/lmem_total_bytes", "drm/card*/prelim_lmem_total_bytes", "tile0/physical_vram_size_bytes")


def read(sight: Sight) -> Reading:
    cards, remarks = [], []
    for device in pci.list_displays(sight, pci.INTEL):
        label = f"Intel graphics ({device.address})"
        vram_bytes = _find_memory(sight, device)
        if vram_bytes:
            name = f"Intel Arc {device.device_id:04x}"
            cards.append(Card(VENDOR, name, vram_bytes, _find_driver(sight, device), "", device.address))
        elif device.address.startswith("0000:00:02"):
            # The fixed place of what is part of the processor: common, and nothing to mend.
            continue
        elif not device.driver:
            remarks.append(Remark(f"{label} has no driver", "Update the kernel to 6.8 or later"))
        else:
            remarks.append(
                Remark(
                    f"the memory of {label} cannot be read from {device.driver}", "Update the kernel to 6.8 or later"
                )
            )
    return Reading(tuple(cards), tuple(remarks))


def _find_memory(sight: Sight, device: pci.Device) -> int | None:
    for pattern in _MEMORY:
        for path in sight.glob(f"{device.folder}/{pattern}"):
            found = sight.read_int(path)
            if found:
                return found
    return None


def _find_driver(sight: Sight, device: pci.Device) -> str:
    return f"{device.driver} of Linux {sight.read('/proc/sys/kernel/osrelease').strip()}"[:100]
