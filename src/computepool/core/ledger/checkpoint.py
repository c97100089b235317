"""Checkpoints of the books: what all transfers up to the end of a sealed batch come to, to be added only once.

Each names the batch that it ends at, with that batch's hash, and follows the checkpoint before it by hash, like the
batches themselves. It saves reading and proves nothing that the transfers do not: who doubts counts from the start.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from computepool.core.ledger.accounts import AccountKind
from computepool.core.ledger.audit import GENESIS_SHA256

_LABEL = "computepool book checkpoint 1"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    number: int
    # The sealed batch that it ends at, the batch's last id, and a time that no transfer up to there is younger than.
    batch_number: int
    batch_sha256: bytes
    last_id: int
    last_at: datetime
    # What each kind of account came to.
    kind_sums: Mapping[AccountKind, int]
    # Of the sums of every account and every hold, which are kept beside the newest checkpoint.
    sums_sha256: bytes
    previous_sha256: bytes = GENESIS_SHA256
    sha256: bytes = b""


def follow(previous: Checkpoint | None, checkpoint: Checkpoint) -> Checkpoint:
    """The same as the next one in the chain, with its number and hashes."""
    number, before = (previous.number + 1, previous.sha256) if previous else (1, GENESIS_SHA256)
    linked = replace(checkpoint, number=number, previous_sha256=before)
    return replace(linked, sha256=_hash(linked))


def find_checkpoint_fault(checkpoint: Checkpoint, *, batch_sha256: bytes | None) -> str | None:
    """Why this is not as it was made; `batch_sha256` is what the chain of batches says of its end today."""
    if _hash(checkpoint) != checkpoint.sha256:
        return f"checkpoint {checkpoint.number} was changed after it was made"
    if batch_sha256 != checkpoint.batch_sha256:
        return f"checkpoint {checkpoint.number} ends at batch {checkpoint.batch_number}, which has another hash now"
    return None


def find_newest_fault(
    previous: Checkpoint | None, newest: Checkpoint, *, batch_sha256: bytes | None, sums_sha256: bytes
) -> str | None:
    """Of the newest one also that it follows the one before it, and that its sums are still those."""
    fault = find_checkpoint_fault(newest, batch_sha256=batch_sha256)
    if fault is not None:
        return fault
    if (previous.sha256 if previous else GENESIS_SHA256) != newest.previous_sha256:
        return f"checkpoint {newest.number} does not follow the one before it"
    if sums_sha256 != newest.sums_sha256:
        return f"the sums of checkpoint {newest.number} were changed after it was made"
    return None


def _hash(checkpoint: Checkpoint) -> bytes:
    fields = [
        _LABEL,
        checkpoint.number,
        checkpoint.batch_number,
        checkpoint.batch_sha256.hex(),
        checkpoint.last_id,
        checkpoint.last_at.isoformat(),
        sorted((kind.value, amount) for kind, amount in checkpoint.kind_sums.items()),
        checkpoint.sums_sha256.hex(),
        checkpoint.previous_sha256.hex(),
    ]
    return hashlib.sha256(json.dumps(fields, separators=(",", ":")).encode("ascii")).digest()
