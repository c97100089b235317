"""AMD cards: by what the amdgpu driver says in sysfs; by rocm-smi where sysfs is not to be seen."""

from __future__ import annotations

import json
from typing import Any

from computepool.node.hardware import pci
from computepool.node.hardware.port import Card, Reading, Remark, Sight

VENDOR = "amd"
# Part of libdrm: device, revision and the name that the card is sold under.
_NAMES = "/usr/share/libdrm/amdgpu.ids"
_INSTALL = "Load the amdgpu driver: `sudo modprobe amdgpu`; if that fails, install AMD's driver for this card"


def read(sight: Sight) -> Reading:
    cards, remarks = [], []
    runtime = _find_runtime(sight)
    for device in pci.list_displays(sight, pci.AMD):
        vram_bytes = sight.read_int(f"{device.folder}/mem_info_vram_total")
        label = f"an AMD card ({device.address})"
        if device.driver != "amdgpu":
            remarks.append(
                Remark(f"{label} is run by {device.driver or 'no driver'}, which cannot compute", _INSTALL)
            )
        elif not vram_bytes:
            remarks.append(Remark(f"the memory of {label} cannot be read", "Update the kernel or AMD's driver"))
        else:
            cards.append(
                Card(VENDOR, _find_name(sight, device), vram_bytes, _find_driver(sight), runtime, device.address)
            )
    if not cards and not remarks:
        return _ask_rocm_smi(sight)
    if cards and not sight.exists("/dev/kfd"):
        remarks.append(
            Remark(
                "an AMD card is here, but /dev/kfd is not: ROCm cannot compute on it",
                "Install ROCm, and add yourself to its group: `sudo usermod -aG render,video $USER`",
            )
        )
    return Reading(tuple(cards), tuple(remarks))


def _find_name(sight: Sight, device: pci.Device) -> str:
    product = sight.read(f"{device.folder}/product_name").strip()
    if product:
        return product[:200]
    for line in sight.read(_NAMES).splitlines():
        fields = [field.strip() for field in line.split(",", 2)]
        try:
            if len(fields) == 3 and (int(fields[0], 16), int(fields[1], 16)) == (device.device_id, device.revision):
                return fields[2][:200]
        except ValueError:
            continue
    return f"AMD graphics {device.device_id:04x}"


def _find_driver(sight: Sight) -> str:
    """The driver of ROCm has a version of its own; the kernel's has that of the kernel."""
    version = sight.read("/sys/module/amdgpu/version").strip()
    return (version or f"Linux {sight.read('/proc/sys/kernel/osrelease').strip()}")[:100]


def _find_runtime(sight: Sight) -> str:
    version = sight.read("/opt/rocm/.info/version").strip()
    return f"ROCm {version}"[:100] if version else ""


def _ask_rocm_smi(sight: Sight) -> Reading:
    printed = sight.run("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--showdriverversion", "--json")
    if printed.absent:
        return Reading()
    if printed.trouble:
        return Reading(remarks=(Remark(printed.trouble, "Restart the machine; if it stays, install ROCm anew"),))
    return parse_rocm_smi(printed.text)


def parse_rocm_smi(printed: str) -> Reading:
    """One object per card, and one for the system; every value is a text."""
    # Warnings stand before the JSON.
    try:
        said: dict[str, Any] = json.loads(printed[max(0, printed.find("{")) :])
    except ValueError:
        return Reading(remarks=(Remark("rocm-smi printed something that cannot be read", "Install ROCm anew"),))
    driver = str(said.get("system", {}).get("Driver version", ""))[:100]
    cards, remarks = [], []
    for key in sorted(said):
        each = said[key]
        if not key.startswith("card") or not isinstance(each, dict):
            continue
        names = (each.get(label, "") for label in ("Card Series", "Card series", "Card Model", "Card model"))
        name = next((name for name in names if name and name != "N/A"), "AMD graphics")
        memory = str(each.get("VRAM Total Memory (B)", ""))
        if memory.isdigit() and int(memory) > 0:
            cards.append(Card(VENDOR, name[:200], int(memory), driver, "ROCm", key.removeprefix("card")))
        else:
            remarks.append(Remark(f"the memory of {key} ({name}) cannot be read: {memory or 'nothing is said'}"))
    return Reading(tuple(cards), tuple(remarks))
