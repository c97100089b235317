"""The only reader of time. Everything that decides takes `now` as an argument."""

from __future__ import annotations

import time
from datetime import UTC, datetime


def now() -> datetime:
    """Wall time, aware, UTC. Leases never use it: they live on the database's clock."""
    return datetime.now(UTC)


def seconds() -> float:
    """Monotonic seconds, for intervals and timeouts inside one process."""
    return time.monotonic()


def cpu_seconds() -> float:
    """What this process has used of a processor."""
    return time.process_time()


def unix_seconds() -> float:
    """Wall time as a number, for tokens and file ages."""
    return time.time()
