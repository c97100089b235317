"""Who a process is, beyond its number: numbers are reused, a number with its time of birth is not."""

from __future__ import annotations

import os


def find_birth(process_id: int) -> str | None:
    """Boot and clock ticks since boot; None when there is no such process or only its corpse."""
    try:
        with open(f"/proc/{process_id}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if fields[0] in (b"Z", b"X"):
        return None
    return f"{boot}:{int(fields[19])}"


def is_alive(process_id: int | None, birth: str | None) -> bool:
    return process_id is not None and birth is not None and find_birth(process_id) == birth


def get_own_birth() -> str:
    birth = find_birth(os.getpid())
    if birth is None:
        raise RuntimeError("/proc does not show this process")
    return birth
