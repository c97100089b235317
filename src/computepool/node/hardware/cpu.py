"""Reads the texts under /proc that tell of processor and memory."""

from __future__ import annotations

import re


class UnreadableMachine(Exception):
    """The machine does not tell what it has; the message says what is missing."""


def parse_cpu_name(proc_cpuinfo: str) -> str:
    """x86 says "model name"; many ARM boards say only "Hardware", "Model" or nothing."""
    for key in ("model name", "Model", "Hardware", "cpu model"):
        found = re.search(rf"^{key}\s*:\s*(.+)$", proc_cpuinfo, re.MULTILINE)
        if found:
            return " ".join(found.group(1).split())[:200]
    return ""


# What each level of x86-64 adds, highest first.
_LEVELS = (
    ("v4", {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
    ("v3", {"avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"}),
    ("v2", {"popcnt", "sse4_1", "sse4_2", "ssse3"}),
)


def parse_instruction_set(proc_cpuinfo: str, machine: str) -> str:
    """x86_64-v3-AuthenticAMD, aarch64, aarch64-sve: what libraries choose their kernels by."""
    flags = set(_find(proc_cpuinfo, "flags").split()) | set(_find(proc_cpuinfo, "Features").split())
    level = next((level for level, adds in _LEVELS if adds <= flags), "sve" if "sve" in flags else "")
    parts = [machine.lower(), level, _find(proc_cpuinfo, "vendor_id")]
    return "-".join(part for part in parts if part)[:200]


def _find(proc_cpuinfo: str, key: str) -> str:
    found = re.search(rf"^{key}\s*:\s*(.+)$", proc_cpuinfo, re.MULTILINE)
    return found.group(1).strip() if found else ""


def parse_core_count(proc_status: str) -> int:
    """How many cores this process may use, from a list such as `0-3,8`: fewer than the machine has, perhaps."""
    found = re.search(r"^Cpus_allowed_list:\s*(\S+)$", proc_status, re.MULTILINE)
    if not found:
        raise UnreadableMachine("the number of usable cores is not told")
    count = 0
    for part in found.group(1).split(","):
        first, _, last = part.partition("-")
        try:
            count += int(last or first) - int(first) + 1
        except ValueError:
            raise UnreadableMachine(f"the list of usable cores cannot be read: {found.group(1)}") from None
    return count


def parse_ram_bytes(proc_meminfo: str) -> int:
    found = re.search(r"^MemTotal:\s*(\d+) kB$", proc_meminfo, re.MULTILINE)
    if not found:
        raise UnreadableMachine("the amount of memory is not told")
    return int(found.group(1)) * 1024
