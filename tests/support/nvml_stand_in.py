"""Builds the stand-in for NVIDIA's management library, which plays the cards that a test writes down."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")
LIBRARY = "libnvidia-ml.so.1"


def build(folder: Path) -> Path:
    """The library in that folder."""
    target = folder / LIBRARY
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", str(target), str(SOURCE)], check=True, timeout=60)
    return target


def make_env(library: Path, cards_file: Path) -> dict[str, str]:
    """What a process must see to take the stand-in for the real thing."""
    before = os.environ.get("LD_LIBRARY_PATH", "")
    return {"LD_LIBRARY_PATH": f"{library.parent}:{before}".rstrip(":"), "NVML_STAND_IN": str(cards_file)}
