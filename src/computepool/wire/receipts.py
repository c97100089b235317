"""What nodes have signed for the results of a job. As a file it is checked without a hub."""

from __future__ import annotations

from uuid import UUID

import msgspec

from computepool.wire.jobs import OutputFile


class Receipt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One signature for all results of one call, of whichever jobs they are."""

    id: UUID
    node_id: UUID
    # The node's Ed25519 key: 32 raw bytes, base64url without padding.
    public_key: str
    # EdDSA JWT: iss the node, aud the hub, and `results`, from each attempt's id to what it vouches for.
    token: str


class SignedResult(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    attempt_id: UUID
    slice_index: int
    # Of the attempt.
    number: int
    # It is the slice's result; others came too late, or were found wrong.
    accepted: bool
    # Hash over the outputs' manifest: see docs/reference/node-protocol.md.
    result_sha256: str | None
    outputs: list[OutputFile]
    # Absent: from before nodes signed.
    receipt_id: UUID | None = None
    # The attempt that the receipt names, if it is another: the result was taken over from the run that checked it.
    signed_id: UUID | None = None


class JobReceipts(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`results` are by slice and number, of whole slices; `receipts` are those that they name."""

    hub_id: UUID
    job_id: UUID
    slice_count: int
    results: list[SignedResult]
    receipts: list[Receipt]
    # Hand it back as ?after= for the next page; absent on the last one.
    next_after: int | None = None
