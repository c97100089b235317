"""The chain over the ledger: the public proof, and what an operator's check has found."""

from __future__ import annotations

from datetime import datetime

import msgspec

from computepool.core.ledger.accounts import AccountKind
from computepool.core.ledger.audit import BatchFaultKind


class AuditBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A sealed batch of transfers. Whoever keeps number and hash can tell later whether all up to it is as it was."""

    number: int
    # Hex; over its rows and over the hash of the batch before it.
    sha256: str
    previous_sha256: str
    row_count: int
    last_id: int
    sealed_at: datetime


class KindTotal(msgspec.Struct, frozen=True, kw_only=True):
    kind: AccountKind
    account_count: int
    balance_microcredits: int
    balance_credits: str


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """All accounts of the ledger together. `balance_sum_microcredits` is zero, or the books are wrong."""

    balance_sum_microcredits: int
    totals: list[KindTotal]
    # The newest; absent before the first.
    last_batch: AuditBatch | None = None


class AuditFault(msgspec.Struct, frozen=True, kw_only=True):
    kind: BatchFaultKind
    batch_number: int
    words: str
    transfer_id: int | None = None


class AuditCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Batches that were recomputed from their transfers, up to the first that is bad."""

    batch_count: int
    row_count: int
    # Where to go on; absent: the end of the chain, or a fault.
    next_number: int | None = None
    fault: AuditFault | None = None
    last_batch: AuditBatch | None = None


class BalanceDrift(msgspec.Struct, frozen=True, kw_only=True):
    """A balance or a hold that is not what the transfers come to."""

    name: str
    kept_microcredits: int
    counted_microcredits: int


class BalanceCheck(msgspec.Struct, frozen=True, kw_only=True):
    drifts: list[BalanceDrift]
    # Transfers with ids that were never handed out: no batch covers them.
    stray_ids: list[int]
    # Transfers since the last batch.
    unsealed_count: int
    # Checkpoints of the books that are not as they were made; then every transfer was counted.
    checkpoint_faults: list[str] = []
    # The sealed batch of the checkpoint that the count began after; absent: every transfer was counted.
    counted_from_batch: int | None = None
