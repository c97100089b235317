"""Display controllers as the kernel lists them, with or without a driver: what is plugged in, whoever can use it."""

from __future__ import annotations

from dataclasses import dataclass

from computepool.node.hardware.port import Sight

NVIDIA, AMD, INTEL = 0x10DE, 0x1002, 0x8086


@dataclass(frozen=True, slots=True)
class Device:
    # For example 0000:01:00.0.
    address: str
    vendor_id: int
    device_id: int
    revision: int
    # The kernel's driver that holds it; empty: none.
    driver: str
    # Its folder in sysfs.
    folder: str


def list_displays(sight: Sight, vendor_id: int) -> list[Device]:
    """Class 0x03: VGA, 3D and other display controllers."""
    found = []
    for folder in sight.glob("/sys/bus/pci/devices/*"):
        kind = sight.read_int(f"{folder}/class")
        if kind is None or kind >> 16 != 0x03 or sight.read_int(f"{folder}/vendor") != vendor_id:
            continue
        found.append(
            Device(
                address=folder.rpartition("/")[2],
                vendor_id=vendor_id,
                device_id=sight.read_int(f"{folder}/device") or 0,
                revision=sight.read_int(f"{folder}/revision") or 0,
                driver=sight.link_name(f"{folder}/driver"),
                folder=folder,
            )
        )
    return found
