"""Which reader fits this machine."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from computepool.node.comfort.linux import LinuxReader
from computepool.node.comfort.macos import MacReader
from computepool.node.comfort.played import PlayedReader
from computepool.node.comfort.port import Reader
from computepool.node.comfort.windows import WindowsReader

AUTO = "auto"
FILE_PREFIX = "file:"


def get_reader(seat: str, env: Mapping[str, str], *, platform: str = sys.platform) -> Reader:
    """`seat` is the setting of that name."""
    if seat.startswith(FILE_PREFIX):
        return PlayedReader(Path(seat.removeprefix(FILE_PREFIX)))
    if platform == "darwin":
        return MacReader()
    if platform == "win32":
        return WindowsReader()
    return LinuxReader(env)
