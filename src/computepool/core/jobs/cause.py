"""Why an attempt did not deliver.

The cause decides who pays, whose reputation moves, and whether a retry is spent.
"""

from __future__ import annotations

from enum import Enum


class Cause(str, Enum):
    OWNER_RETURNED = "owner_returned"
    SUPERSEDED = "superseded"
    OUT_OF_MEMORY = "out_of_memory"
    GPU_LOST = "gpu_lost"
    NETWORK_LOST = "network_lost"
    NODE_VANISHED = "node_vanished"
    EXIT_CODE = "exit_code"
    TIMED_OUT = "timed_out"
    SANDBOX_REFUSED = "sandbox_refused"
    INPUT_MISSING = "input_missing"
    HUB_FAULT = "hub_fault"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    POISONOUS = "poisonous"
    WRONG_RESULT = "wrong_result"
    DOUBTED = "doubted"
    PACKAGES_FAILED = "packages_failed"
    PACKAGES_UNREACHABLE = "packages_unreachable"
    NOT_ALLOWED = "not_allowed"


# The submitter's own code or limits are at fault: these spend the job's retry budget.
SPENDS_RETRY = frozenset({Cause.EXIT_CODE, Cause.OUT_OF_MEMORY, Cause.TIMED_OUT, Cause.PACKAGES_FAILED})

# The node is at fault: these lower what is expected of it. All others say nothing about the node.
NODE_FAULTS = frozenset(
    {
        Cause.GPU_LOST,
        Cause.NETWORK_LOST,
        Cause.NODE_VANISHED,
        Cause.SANDBOX_REFUSED,
        Cause.PACKAGES_UNREACHABLE,
        Cause.WRONG_RESULT,
    }
)

# What a node may say of its own attempt; the rest is for the hub to conclude.
REPORTABLE = frozenset(
    {
        Cause.OWNER_RETURNED,
        Cause.OUT_OF_MEMORY,
        Cause.GPU_LOST,
        Cause.NETWORK_LOST,
        Cause.EXIT_CODE,
        Cause.TIMED_OUT,
        Cause.SANDBOX_REFUSED,
        Cause.INPUT_MISSING,
        Cause.PACKAGES_FAILED,
        Cause.PACKAGES_UNREACHABLE,
        Cause.NOT_ALLOWED,
        Cause.CANCELLED,
    }
)

PLAIN_WORDS = {
    Cause.OWNER_RETURNED: "the machine's owner came back",
    Cause.SUPERSEDED: "an earlier attempt delivered first",
    Cause.OUT_OF_MEMORY: "it used more memory than it asked for",
    Cause.GPU_LOST: "the GPU stopped answering",
    Cause.NETWORK_LOST: "the node lost its connection to the hub",
    Cause.NODE_VANISHED: "the node went silent",
    Cause.EXIT_CODE: "the program ended with an error",
    Cause.TIMED_OUT: "it ran longer than its wall-time limit",
    Cause.SANDBOX_REFUSED: "the node could not give it a safe sandbox",
    Cause.INPUT_MISSING: "an input file was missing or had the wrong hash",
    Cause.PACKAGES_FAILED: "the Python packages it asks for cannot be installed",
    Cause.PACKAGES_UNREACHABLE: "the node could not reach its package index",
    Cause.NOT_ALLOWED: "the machine's owner does not allow what it asks for",
    Cause.HUB_FAULT: "the hub made a mistake",
    Cause.CANCELLED: "it was cancelled",
    Cause.EXPIRED: "it was not done by its expiry time",
    Cause.POISONOUS: "machines went down three times while they ran the same slice, so the job is given to no more",
    Cause.WRONG_RESULT: "two other machines came to another result",
    Cause.DOUBTED: "another machine came to another result, and nobody could decide between them",
}
