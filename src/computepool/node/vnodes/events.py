"""What an engine tells its host about: losses, checkpoints, digests and faults.

All of it is for people and the hub; no host waits for the events of another.
"""

from __future__ import annotations

from dataclasses import dataclass

from computepool.core.networks.audit import SpanDigest
from computepool.core.networks.host_faults import HostFaultCode


@dataclass(frozen=True, slots=True)
class LossKnown:
    """From the host of the loss (replica 0), once per step. Steps count from 0."""

    epoch: int
    step: int
    loss: float


@dataclass(frozen=True, slots=True)
class StepEnded:
    """All VNodes of this host have made their update of the step."""

    epoch: int
    step: int


@dataclass(frozen=True, slots=True)
class CheckpointReady:
    """One VNode after `step` updates, as bytes that another host can go on from. Told by the writer's thread."""

    epoch: int
    step: int
    vnode_id: str
    content: bytes
    sha256: str
    # Over weights, buffers and optimizer state, whatever file they stand in.
    digest: bytes


@dataclass(frozen=True, slots=True)
class DigestKnown:
    """What this seat got and gave between two checkpoints."""

    span: SpanDigest


@dataclass(frozen=True, slots=True)
class FaultFound:
    """The engine has stopped and waits to be prepared anew."""

    epoch: int
    vnode_id: str
    step: int
    micro_batch: int
    code: HostFaultCode
    message: str


Event = LossKnown | StepEnded | CheckpointReady | DigestKnown | FaultFound
