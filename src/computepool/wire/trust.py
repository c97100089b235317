"""Where a node stands by its results, and how sure the results of a job are."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from computepool.core.trust.challenge import ProofState
from computepool.core.trust.standing import Standing
from computepool.core.trust.validation import Verify


class CheckedResult(msgspec.Struct, frozen=True, kw_only=True):
    """One result of a node that somebody else ran as well."""

    at: datetime
    # Absent: nobody could tell, or the job differs by itself; it counts for nothing.
    right: bool | None = None


class NodeTrust(msgspec.Struct, frozen=True, kw_only=True):
    node_id: UUID
    standing: Standing
    # What it means, and the way up from here.
    words: str
    # With 95 % confidence at least this share of its results is right.
    integrity: float
    validated_count: int
    # The share of its results that is run again by others; at 1 they are kept back until then.
    audit_rate: float
    # Whether it may check others.
    is_trusted: bool
    # The operator vouches for it.
    is_vouched: bool
    bugged_count: int
    since: datetime | None = None
    # Of a bugged node: when its way back begins.
    back_at: datetime | None = None
    # Right results that are still missing: until it is trusted, or, on the way back, until it may work again.
    results_missing: int = 0
    # How soon it is paid, and what pay waits for.
    pay_words: str = ""
    # Since when its service is clean; absent: it has not passed probation.
    serving_since: datetime | None = None
    # Agreed with its next lease: how long the owner's part is held back; and the bonus, in parts of a million of the
    # price, which comes out of the fee.
    holdback_seconds: int = 0
    bonus_ppm: int = 0
    # Attempts whose holdback is over and whose pay waits for the node, and the owner's part of it.
    pay_waiting_count: int = 0
    pay_waiting_microcredits: int = 0
    # Newest first.
    recent: list[CheckedResult] = []


class Vouch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    vouched: bool


class WrongSpan(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Steps of a run for which others, who computed them again, got something else."""

    run_id: UUID
    seat: str
    from_step: int
    until_step: int
    # How many computed it again.
    witness_count: int
    message: str
    decided_at: datetime


class ShownSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """What a slot of the node has shown of its speed, when it was last asked to."""

    slot: str
    state: ProofState
    claimed_tier: str
    tier: str
    reason: str
    decided_at: datetime


class DistrustedNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node that is not clear, and why."""

    node_id: UUID
    node_name: str
    owner_id: UUID
    standing: Standing
    # What it means, and the way up or back.
    words: str
    bugged_count: int
    # Results that were validated since it was readmitted, or ever.
    validated_count: int
    # Of its results of jobs that others ran as well, as far back as is looked: so many, of which so many were wrong.
    checked_count: int
    wrong_count: int
    # Right results that are still missing until it is clear.
    results_missing: int = 0
    since: datetime | None = None
    # Of a bugged node: when its way back begins.
    back_at: datetime | None = None
    # What audits of networks found wrong, newest first, and no more than a few.
    wrong_spans: list[WrongSpan] = []
    # Absent: no slot of it was ever asked.
    speed: ShownSpeed | None = None


class DistrustedPage(msgspec.Struct, frozen=True, kw_only=True):
    nodes: list[DistrustedNode]
    cursor: str | None = None


class ResultCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Slices of a job by how far their results can be relied on."""

    # Kept back until somebody else has got the same.
    verifying: int = 0
    # Somebody else has got the same.
    verified: int = 0
    # Of trusted nodes, not drawn for an audit.
    accepted: int = 0
    # Nobody could check them, or nobody was asked to.
    unverified: int = 0
    # The first result was wrong; the right one was put in its place.
    replaced: int = 0


class JobValidation(msgspec.Struct, frozen=True, kw_only=True):
    job_id: UUID
    counts: ResultCounts
    words: str
    # How results are checked; absent: they are not.
    verify: Verify | None = None
    # Runs that should have agreed did not: nothing can be said of its results.
    nondeterministic: bool = False
    # The share of its results that is right, as far as the records of their nodes let expect.
    confidence: float | None = None
    # Runs that were made to check, and what they have cost.
    check_count: int = 0
    check_microcredits: int = 0
