"""The device nodes of one GPU: what a job in that GPU's slot may see, and nothing of any other card."""

from __future__ import annotations

import os

# Every NVIDIA card is reached through these beside its own node.
NVIDIA_SHARED = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
RENDER_FIRST = 128


def list_devices(index: int, dev: str = "/dev") -> tuple[str, ...]:
    """Of the card with this number, as the driver counts; empty where the machine shows none."""
    card = os.path.join(dev, f"nvidia{index}")
    if os.path.exists(card):
        return (card, *_existing(dev, NVIDIA_SHARED))
    amd = (os.path.join(dev, "kfd"), os.path.join(dev, "dri", f"renderD{RENDER_FIRST + index}"))
    if all(os.path.exists(path) for path in amd):
        return amd
    # Windows' own kernel shows all of its cards through one door.
    return _existing(dev, ("dxg",))


def _existing(dev: str, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(path for path in (os.path.join(dev, name) for name in names) if os.path.exists(path))
