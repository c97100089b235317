"""What an order comes to on this machine: the job's environment, its caps, and what is put beside its files. Pure."""

from __future__ import annotations

from pathlib import Path

import msgspec

import computepool
from computepool.core.jobs.spec import CHECKPOINT_SECONDS
from computepool.core.placement.slot import Slot
from computepool.node.sandbox.port import MODULE_NAME, NODE_NAME, OUTPUT_DIR, InputFile, Limits
from computepool.wire.attempts import RunOrder

# What a job may use when its order leaves a size open and the slot has none to share out.
BYTES_MIN = 64_000_000


def make_env(order: RunOrder) -> dict[str, str]:
    """The job's environment. What the protocol promises cannot be overridden by the job's own settings."""
    return {
        **order.env,
        **find_secrets(order),
        "COMPUTEPOOL_SLICE_INDEX": str(order.slice_index),
        "COMPUTEPOOL_SLICE_COUNT": str(order.slice_count),
        "COMPUTEPOOL_JOB_ID": str(order.job_id),
        "COMPUTEPOOL_ATTEMPT_NUMBER": str(order.attempt_number),
        "COMPUTEPOOL_OUTPUT_DIR": OUTPUT_DIR,
        "COMPUTEPOOL_CHECKPOINT_SECONDS": str(find_checkpoint_seconds(order)),
    }


def find_secrets(order: RunOrder) -> dict[str, str]:
    """More environment, of which nothing may be read in the log."""
    return {} if order.secrets is msgspec.UNSET else order.secrets


def find_checkpoint_seconds(order: RunOrder) -> int:
    return CHECKPOINT_SECONDS if order.checkpoint_seconds is msgspec.UNSET else max(1, order.checkpoint_seconds)


def list_module() -> tuple[InputFile, ...]:
    """`computepool.job`, for scripts that import it; it needs nothing else of the package."""
    package = Path(computepool.__file__).parent
    place = f"{NODE_NAME}/{MODULE_NAME}/computepool"
    names = ("__init__.py", "job.py")
    return tuple(InputFile(path=f"{place}/{name}", source=str((package / name).resolve())) for name in names)


def make_limits(order: RunOrder, slot: Slot | None, *, pids_max: int) -> Limits:
    """The order's caps. A size of zero means "any": then the slot's share is the cap, never nothing."""
    return Limits(
        memory_bytes=order.ram_bytes or max(BYTES_MIN, slot.ram_bytes if slot else 0),
        pids_max=pids_max,
        cpu_cores=float(max(1, order.cores)),
        disk_bytes=order.disk_bytes or max(BYTES_MIN, slot.disk_bytes if slot else 0),
        wall_seconds=float(order.wall_seconds),
        log_bytes=max(1, order.log_bytes),
    )
