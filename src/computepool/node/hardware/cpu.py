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
