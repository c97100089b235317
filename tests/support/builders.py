"""Builders: each makes one valid thing of core, so that a test names only what it is about."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from computepool.core.ids import AccountId, AttemptId, JobId, NodeId, ShapeId, SlotName
from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.jobs.lease import Attempt, Report, Slice
from computepool.core.jobs.order import PriorityClass
from computepool.core.jobs.spec import InputFile, JobSpec
from computepool.core.jobs.state import AttemptState, SliceState
from computepool.core.nodes.slots import Machine
from computepool.core.placement.rounds import Head, Run
from computepool.core.placement.scorers import Candidate, default_tflops
from computepool.core.placement.shape import Shape
from computepool.core.placement.slot import Slot, SlotKind

NOW = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)
SHA256 = "ab" * 32
GB = 1_000_000_000


def node_number(number: int) -> NodeId:
    return NodeId(UUID(int=number))


def account_number(number: int) -> AccountId:
    return AccountId(UUID(int=number))


def make_slice(**overrides: Any) -> Slice:
    values: dict[str, Any] = {
        "job_id": JobId(UUID(int=1)),
        "index": 0,
        "state": SliceState.RUNNING,
        "attempt_count": 1,
        "failure_count": 0,
        "retries": 2,
    }
    return Slice(**{**values, **overrides})


def make_attempt(**overrides: Any) -> Attempt:
    values: dict[str, Any] = {
        "id": AttemptId(UUID(int=100)),
        "job_id": JobId(UUID(int=1)),
        "slice_index": 0,
        "number": 1,
        "node_id": node_number(7),
        "slot": SlotName("cpu:0"),
        "state": AttemptState.RUNNING,
    }
    return Attempt(**{**values, **overrides})


def make_report(**overrides: Any) -> Report:
    values: dict[str, Any] = {"exit_code": 0, "cause": None, "sha256": b"first report"}
    return Report(**{**values, **overrides})


def make_spec(**overrides: Any) -> JobSpec:
    return JobSpec(**{"name": "job", "command": ("true",), **overrides})


def make_file(**overrides: Any) -> InputFile:
    return InputFile(**{"path": "input.bin", "sha256": SHA256, "size_bytes": 3, **overrides})


def make_shape(**overrides: Any) -> Shape:
    values: dict[str, Any] = {
        "gpu": False,
        "vram_bytes": 0,
        "cores": 1,
        "ram_bytes": GB,
        "disk_bytes": GB,
        "tiers": (),
        "regions": (),
        "isolation": IsolationLevel.SANDBOXED,
    }
    return Shape(**{**values, **overrides})


def make_slot(**overrides: Any) -> Slot:
    """A CPU slot; with `vram_bytes` a GPU one."""
    gpu = overrides.get("vram_bytes", 0) > 0
    values: dict[str, Any] = {
        "node_id": node_number(7),
        "name": SlotName("gpu:0" if gpu else "cpu:0"),
        "kind": SlotKind.GPU if gpu else SlotKind.CPU,
        "tier": "rtx-3090" if gpu else "cpu",
        "vram_bytes": 0,
        "cores": 4,
        "ram_bytes": 8 * GB,
        "disk_bytes": 50 * GB,
        "region": "IN",
        "isolation": IsolationLevel.SANDBOXED,
    }
    return Slot(**{**values, **overrides})


def make_candidate(slot: Slot | None = None, **overrides: Any) -> Candidate:
    """What a node offers for nothing, with the speed that its tier is known for."""
    slot = slot or make_slot()
    values: dict[str, Any] = {
        "slot": slot,
        "speed_tflops": default_tflops(slot),
        "price_microcredits_per_hour": 0,
        "reliability": 0.9,
    }
    return Candidate(**{**values, **overrides})


def make_run(shape_id: int = 1, account: int = 1, priority_class: PriorityClass = PriorityClass.NORMAL) -> Run:
    return Run(ShapeId(shape_id), priority_class, account_number(account))


def make_head(**overrides: Any) -> Head:
    values: dict[str, Any] = {
        "job_id": JobId(UUID(int=1)),
        "slice_index": 0,
        "run": make_run(),
        "priority": 0,
        "queued_at": NOW - timedelta(seconds=60),
        "avoid_node_id": None,
        "attempt_count": 0,
    }
    return Head(**{**values, **overrides})


def make_machine(**overrides: Any) -> Machine:
    values: dict[str, Any] = {
        "gpus": (),
        "cores": 8,
        "ram_bytes": 32 * GB,
        "disk_bytes": 100 * GB,
        "cpu_slots": 2,
        "region": "DE",
        "isolation": IsolationLevel.SANDBOXED,
    }
    return Machine(**{**values, **overrides})


def indexes_of(ranges: Sequence[Sequence[int]]) -> list[int]:
    """[[0, 2], [7, 7]] -> [0, 1, 2, 7]."""
    return [index for first, last in ranges for index in range(first, last + 1)]
