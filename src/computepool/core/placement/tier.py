"""The tier of a card: its row in the rate card. The driver's name picks it, checked against the VRAM.

A card without a row, or whose speed is not that of its row, has one by what it showed.
"""

from __future__ import annotations

import re

CPU_TIER = "cpu"
UNKNOWN_TIER = "unknown"

# Single-precision TFLOPS from which on a card counts as `unknown-29` and so on; slower ones are plainly unknown.
MEASURED_STEPS = (80, 29, 12, 8, 5)

# (pattern in the driver's name, tier, least VRAM that such a card has). More specific names stand first.
_KNOWN = (
    (r"RTX\s*5090", "rtx-5090", 31e9),
    (r"RTX\s*4090", "rtx-4090", 23e9),
    (r"RTX\s*3090", "rtx-3090", 23e9),
    (r"RTX\s*4070", "rtx-4070", 11e9),
    (r"RTX\s*3080", "rtx-3080", 9e9),
    (r"RTX\s*3060", "rtx-3060", 7e9),
    (r"RTX\s*2070", "rtx-2070", 7e9),
    (r"GTX\s*1080\s*Ti", "gtx-1080ti", 10e9),
    (r"GTX\s*1080", "gtx-1080", 7e9),
    (r"GTX\s*1660", "gtx-1660", 5e9),
)


def tier_of_gpu(name: str, vram_bytes: int) -> str:
    """A card whose memory does not match its name gets no tier: one of the two is not what it says."""
    for pattern, tier, vram_bytes_min in _KNOWN:
        if re.search(pattern, name, re.IGNORECASE):
            laptop = re.search(r"laptop|mobile|max-q", name, re.IGNORECASE)
            return tier if vram_bytes >= vram_bytes_min and not laptop else UNKNOWN_TIER
    return UNKNOWN_TIER


def tier_by_speed(tflops: float) -> str:
    """Of a card that is known by its measured speed alone."""
    step = next((step for step in MEASURED_STEPS if tflops >= step), None)
    return UNKNOWN_TIER if step is None else f"{UNKNOWN_TIER}-{step}"
