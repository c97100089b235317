"""Finds the prebuilt system-call filter of this machine. The list itself lives in scripts/build_seccomp.py."""

from __future__ import annotations

import os

from computepool.node.sandbox.port import SandboxRefused

FILTERS_DIR = os.path.join(os.path.dirname(os.path.abspath(__file__)), "filters")


def find_filter(machine: str = "") -> str:
    """Path of the filter for this architecture; raises SandboxRefused where there is none."""
    machine = machine or os.uname().machine
    path = os.path.join(FILTERS_DIR, f"{machine}.bpf")
    if not os.path.isfile(path):
        shipped = ", ".join(sorted(name[:-4] for name in os.listdir(FILTERS_DIR) if name.endswith(".bpf")))
        raise SandboxRefused(f"no system-call filter for {machine} processors (there is one for: {shipped})")
    return path
