"""What hosts say went wrong, what follows for the run, and what its owner can do. The codes are stable."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from computepool.core.jobs.cause import Cause


class HostFaultCode(str, Enum):
    # The network or its data is at fault: no other PNode would do better.
    LOSS_NOT_FINITE = "loss_not_finite"
    DATA_INVALID = "data_invalid"
    SPEC_REFUSED = "spec_refused"
    # This PNode is at fault, or too small.
    OUT_OF_MEMORY = "out_of_memory"
    CHECKPOINT_UNREADABLE = "checkpoint_unreadable"
    HOST_BROKEN = "host_broken"
    # Something between hosts: everybody goes back to the last checkpoint.
    FRAME_REFUSED = "frame_refused"


# The run ends.
FATAL = frozenset({HostFaultCode.LOSS_NOT_FINITE, HostFaultCode.DATA_INVALID, HostFaultCode.SPEC_REFUSED})
# The seat goes to another PNode. Whatever is in neither of the two starts the epoch anew.
SEAT_FAULTS: Mapping[str, Cause] = {
    HostFaultCode.OUT_OF_MEMORY: Cause.OUT_OF_MEMORY,
    HostFaultCode.CHECKPOINT_UNREADABLE: Cause.INPUT_MISSING,
    HostFaultCode.HOST_BROKEN: Cause.NETWORK_LOST,
}

_ADVICE: Mapping[str, str] = {
    HostFaultCode.LOSS_NOT_FINITE: (
        "Lower optimizer.lr or set optimizer.clip_norm, create the network anew and train it again; the weights of "
        "the last checkpoint can be exported"
    ),
    HostFaultCode.DATA_INVALID: (
        "The data must hold the tensors that the network's sources name, with their shapes and dtypes; upload it "
        "again and start another run"
    ),
    HostFaultCode.SPEC_REFUSED: "The PNodes run another version of the blocks; ask the hub's operator",
}


def advise(code: str) -> str:
    """What to do next."""
    return _ADVICE.get(code, "Resume the run to go on from its last checkpoint") + "."
