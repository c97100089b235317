"""NVIDIA's Jetson boards: the GPU is part of the processor and shares its memory; NVML knows nothing of it."""

from __future__ import annotations

import re

from computepool.node.hardware.cpu import UnreadableMachine, parse_ram_bytes
from computepool.node.hardware.port import SHARED_MEMORY_RATIO, Card, Reading, Remark, Sight

_MODEL = "/proc/device-tree/model"
_RELEASE = "/etc/nv_tegra_release"


def is_jetson(sight: Sight) -> bool:
    return "jetson" in sight.read(_MODEL).lower() or bool(sight.read(_RELEASE))


def read(sight: Sight) -> Reading:
    name = sight.read(_MODEL).strip("\0 \n") or "NVIDIA Jetson"
    # The control node of the GPU: nvhost-gpu before, nvgpu or nvidia0 since JetPack 6.
    if not any(sight.exists(path) for path in ("/dev/nvhost-gpu", "/dev/nvgpu", "/dev/nvidia0")):
        return Reading(remarks=(Remark(f"{name}: the GPU's driver is not loaded", "Install JetPack anew"),))
    try:
        ram_bytes = parse_ram_bytes(sight.read("/proc/meminfo"))
    except UnreadableMachine as error:
        return Reading(remarks=(Remark(f"{name}: {error}"),))
    release = re.search(r"R(\d+).*REVISION: ([\d.]+)", sight.read(_RELEASE))
    driver = f"L4T {release.group(1)}.{release.group(2)}" if release else ""
    return Reading((Card("nvidia", name[:200], int(ram_bytes * SHARED_MEMORY_RATIO), driver, "CUDA"),))
