"""What all probes share: one way to say how it went, and system calls by name. Runs inside and outside."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Callable

NUMBERS = {
    "x86_64": {
        "clone": 56, "ptrace": 101, "add_key": 248, "perf_event_open": 298, "name_to_handle_at": 303,
        "open_by_handle_at": 304, "bpf": 321, "userfaultfd": 323, "io_uring_setup": 425,
        "process_vm_readv": 310, "syslog": 103,
    },
    "aarch64": {
        "clone": 220, "ptrace": 117, "add_key": 217, "perf_event_open": 241, "name_to_handle_at": 264,
        "open_by_handle_at": 265, "bpf": 280, "userfaultfd": 282, "io_uring_setup": 425,
        "process_vm_readv": 270, "syslog": 116,
    },
}  # fmt: skip

libc = ctypes.CDLL(None, use_errno=True)


def syscall(name: str, *arguments: object) -> int:
    """The kernel's answer; -1 for a refusal, whose reason stands in errno."""
    return int(libc.syscall(ctypes.c_long(NUMBERS[platform.machine()][name]), *arguments))


def report(is_out: bool, detail: object = "") -> None:
    errno = ctypes.get_errno()
    reason = f" ({os.strerror(errno)})" if errno and not is_out else ""
    print(f"{'ESCAPED' if is_out else 'CONTAINED'} {detail}{reason}", flush=True)


def works(act: Callable[[], object]) -> bool:
    try:
        act()
    except OSError as error:
        print(f"refused: {error}", file=sys.stderr)
        return False
    return True
