"""The chain over the books: batches of transfers, each with a hash over its rows and over the batch before it.

Whoever changes, removes or adds a row later must make every hash from there on anew, and whoever wrote down one of
them notices. A fingerprint of each row is kept beside, so that the bad row can be named and not only its batch.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

# What the first batch follows.
GENESIS_SHA256 = bytes(32)
_LABEL = "computepool ledger batch 1"
_ID_BYTES = 8
_FINGERPRINT_BYTES = 8
ENTRY_BYTES = _ID_BYTES + _FINGERPRINT_BYTES

# One dense line, the same for ever: every hash hangs on it.
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True).encode


@dataclass(frozen=True, slots=True)
class AuditRow:
    """A transfer as it is hashed: all that it says, in plain texts and numbers."""

    id: int
    key: str
    leg: int
    kind: str
    source_id: str
    target_id: str
    amount: int
    # Of the Unix clock.
    at_microseconds: int
    job_id: str | None
    attempt_id: str | None
    payout_id: str | None
    top_up_id: str | None


@dataclass(frozen=True, slots=True)
class Batch:
    """Covers every transfer with an id from `first_id` to `last_id`; ids that nobody used are no rows of it."""

    number: int
    first_id: int
    last_id: int
    row_count: int
    # Of all amounts that were moved.
    amount_sum: int
    # The earliest and the latest time that a row of it names.
    first_at_microseconds: int
    last_at_microseconds: int
    previous_sha256: bytes
    sha256: bytes
    # Of each row its id and the beginning of its hash. Says which row is bad; that one is, the hash says.
    fingerprints: bytes


class BatchFaultKind(str, Enum):
    """Stable: stands in answers and scripts."""

    TRANSFER_CHANGED = "transfer_changed"
    TRANSFER_MISSING = "transfer_missing"
    TRANSFER_ADDED = "transfer_added"
    BATCH_CHANGED = "batch_changed"
    BATCH_MISSING = "batch_missing"
    CHAIN_BROKEN = "chain_broken"
    # Not what somebody wrote down earlier.
    HASH_UNKNOWN = "hash_unknown"


@dataclass(frozen=True, slots=True)
class BatchFault:
    kind: BatchFaultKind
    batch_number: int
    words: str
    transfer_id: int | None = None


def seal(previous: Batch | None, *, last_id: int, rows: Sequence[AuditRow]) -> Batch:
    """The next batch: all rows with ids after the previous one's, up to `last_id`."""
    number = previous.number + 1 if previous else 1
    first_id = previous.last_id + 1 if previous else 1
    if not rows or not all(first_id <= row.id <= last_id for row in rows):
        raise ValueError(f"a batch has rows, and all from {first_id} to {last_id}")
    digests = [digest_row(row) for row in rows]
    batch = Batch(
        number=number,
        first_id=first_id,
        last_id=last_id,
        row_count=len(rows),
        amount_sum=sum(row.amount for row in rows),
        first_at_microseconds=min(row.at_microseconds for row in rows),
        last_at_microseconds=max(row.at_microseconds for row in rows),
        previous_sha256=previous.sha256 if previous else GENESIS_SHA256,
        sha256=b"",
        fingerprints=_to_fingerprints(rows, digests),
    )
    return replace(batch, sha256=_hash(batch, digests))


def find_batch_fault(previous: Batch | None, batch: Batch, rows: Sequence[AuditRow]) -> BatchFault | None:
    """Why this batch does not follow the one before it or does not hold these rows, in their order; None: it does."""
    link_fault = _find_link_fault(previous, batch)
    if link_fault is not None:
        return link_fault
    digests = [digest_row(row) for row in rows]
    if _hash(batch, digests) == batch.sha256:
        if _to_fingerprints(rows, digests) == batch.fingerprints:
            return None
        return _batch_changed(batch, "its fingerprints are others")
    return _find_row_fault(batch, rows, digests) or _batch_changed(batch, "its hash is another")


def find_known_fault(batch: Batch, known_sha256: bytes) -> BatchFault | None:
    """Against a hash of this batch that somebody has kept elsewhere: the whole chain up to it stands or falls."""
    if batch.sha256 == known_sha256:
        return None
    words = f"Batch {batch.number} has another hash than the one that was kept: the chain was made anew."
    return BatchFault(BatchFaultKind.HASH_UNKNOWN, batch.number, words)


def digest_row(row: AuditRow) -> bytes:
    fields = [
        row.id,
        row.key,
        row.leg,
        row.kind,
        row.source_id,
        row.target_id,
        row.amount,
        row.at_microseconds,
        row.job_id,
        row.attempt_id,
        row.payout_id,
        row.top_up_id,
    ]
    return hashlib.sha256(_encode(fields).encode("ascii")).digest()


def _hash(batch: Batch, digests: Iterable[bytes]) -> bytes:
    """Over all that a batch says, but the fingerprints, which follow from the rows."""
    head = [
        _LABEL,
        batch.number,
        batch.first_id,
        batch.last_id,
        batch.row_count,
        batch.amount_sum,
        batch.first_at_microseconds,
        batch.last_at_microseconds,
        batch.previous_sha256.hex(),
    ]
    hashed = hashlib.sha256(_encode(head).encode("ascii"))
    for digest in digests:
        hashed.update(digest)
    return hashed.digest()


def _find_link_fault(previous: Batch | None, batch: Batch) -> BatchFault | None:
    number = previous.number + 1 if previous else 1
    if batch.number != number:
        return BatchFault(BatchFaultKind.BATCH_MISSING, number, f"Batch {number} is missing.")
    first_id, sha256 = (previous.last_id + 1, previous.sha256) if previous else (1, GENESIS_SHA256)
    if (batch.first_id, batch.previous_sha256) != (first_id, sha256):
        kind, words = BatchFaultKind.CHAIN_BROKEN, f"Batch {number} does not follow the one before it."
        return BatchFault(kind, number, words)
    return None


def _find_row_fault(batch: Batch, rows: Sequence[AuditRow], digests: Sequence[bytes]) -> BatchFault | None:
    """The first row that is not as it was sealed, by the fingerprints."""
    sealed, found = _split(batch.fingerprints), _split(_to_fingerprints(rows, digests))
    lost, new = Counter(sealed) - Counter(found), Counter(found) - Counter(sealed)
    if not lost and not new:
        return None
    id = min(_id_of(entry) for entry in (*lost, *new))
    is_lost = any(_id_of(entry) == id for entry in lost)
    is_new = any(_id_of(entry) == id for entry in new)
    if is_lost and is_new:
        kind, words = BatchFaultKind.TRANSFER_CHANGED, "was changed after it was sealed"
    elif is_lost:
        kind, words = BatchFaultKind.TRANSFER_MISSING, "is missing"
    else:
        kind, words = BatchFaultKind.TRANSFER_ADDED, "was added later"
    return BatchFault(kind, batch.number, f"Transfer {id} of batch {batch.number} {words}.", id)


def _batch_changed(batch: Batch, words: str) -> BatchFault:
    return BatchFault(BatchFaultKind.BATCH_CHANGED, batch.number, f"Batch {batch.number} was changed: {words}.")


def _to_fingerprints(rows: Sequence[AuditRow], digests: Sequence[bytes]) -> bytes:
    return b"".join(
        row.id.to_bytes(_ID_BYTES, "big", signed=True) + digest[:_FINGERPRINT_BYTES]
        for row, digest in zip(rows, digests, strict=True)
    )


def _split(fingerprints: bytes) -> list[bytes]:
    return [fingerprints[at : at + ENTRY_BYTES] for at in range(0, len(fingerprints), ENTRY_BYTES)]


def _id_of(entry: bytes) -> int:
    return int.from_bytes(entry[:_ID_BYTES], "big", signed=True)
