"""Apple's own chips and the cards of older Macs, by system_profiler. Memory of Apple's chips is the machine's."""

from __future__ import annotations

import json
import re
from typing import Any

from computepool.node.hardware.port import SHARED_MEMORY_RATIO, Card, Reading, Remark, Sight

_UNITS = {"MB": 1 << 20, "GB": 1 << 30}


def read(sight: Sight) -> Reading:
    printed = sight.run("system_profiler", "SPDisplaysDataType", "-json")
    if printed.absent:
        return Reading()
    if printed.trouble:
        return Reading(remarks=(Remark(printed.trouble),))
    memory = sight.run("sysctl", "-n", "hw.memsize").text.strip()
    version = sight.run("sw_vers", "-productVersion").text.strip()
    return parse_displays(printed.text, ram_bytes=int(memory) if memory.isdigit() else 0, version=version)


def parse_displays(printed: str, *, ram_bytes: int, version: str) -> Reading:
    try:
        listed: list[dict[str, Any]] = json.loads(printed)["SPDisplaysDataType"]
    except (ValueError, KeyError, TypeError):
        return Reading(remarks=(Remark("system_profiler printed something that cannot be read", "Update macOS"),))
    cards, remarks = [], []
    for each in listed:
        name = str(each.get("sppci_model") or each.get("_name") or "")[:200]
        metal = str(each.get("spdisplays_mtlgpufamilysupport") or each.get("spdisplays_metal") or "")
        own = _parse_memory(str(each.get("spdisplays_vram") or ""))
        is_chip = "vendor_apple" in str(each.get("spdisplays_vendor", "")).lower()
        vram_bytes = int(ram_bytes * SHARED_MEMORY_RATIO) if is_chip else own
        if not vram_bytes:
            shared = each.get("spdisplays_vram_shared")
            why = "it shares the memory of the processor" if shared else "its memory is not told"
            remarks.append(Remark(f"{name or 'a display controller'} is not lent: {why}"))
            continue
        vendor = "apple" if is_chip else "amd" if "AMD" in name else "nvidia" if "NVIDIA" in name else "intel"
        cards.append(Card(vendor, name, vram_bytes, f"macOS {version}".strip(), "Metal" if metal else ""))
    return Reading(tuple(cards), tuple(remarks))


def _parse_memory(text: str) -> int:
    """`8 GB` or `1536 MB`."""
    found = re.fullmatch(r"(\d+) (MB|GB)", text.strip())
    return int(found.group(1)) * _UNITS[found.group(2)] if found else 0
