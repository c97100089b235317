"""The public proof that the books add up, and the operator's check of the chain."""

from __future__ import annotations

import re

import msgspec

from computepool.core.errors import InvalidRequest
from computepool.core.ledger.audit import BatchFault
from computepool.core.ledger.decimals import to_decimal
from computepool.hub.http.routing import Access, Call, Routes
from computepool.hub.services import audit as service
from computepool.hub.store.audit import StoredBatch
from computepool.wire import audit as wire

routes = Routes()

# Public, and a sum over all accounts.
PROOFS_PER_MINUTE = 60
_KNOWN = re.compile(r"([1-9][0-9]{0,17}):([0-9a-f]{64})\Z")


class CheckQuery(msgspec.Struct, frozen=True, kw_only=True):
    # The first batch to recompute.
    number: int = 1
    limit: int = service.BATCHES_PER_CHECK_MAX
    # A batch's number and hash that somebody kept, as number:hash.
    known: str | None = None


class BalancesQuery(msgspec.Struct, frozen=True, kw_only=True):
    from_start: bool = False


@routes.add("GET", "/v1/credits/proof", Access.PUBLIC, answer=wire.Proof, public_per_minute=PROOFS_PER_MINUTE)
async def prove(call: Call) -> wire.Proof:
    """All accounts of the ledger come to zero; what each kind of account comes to; the newest sealed batch."""
    proof = await service.prove(call.hub.pool)
    return wire.Proof(
        balance_sum_microcredits=proof.balance_sum,
        totals=[
            wire.KindTotal(
                kind=kind,
                account_count=total.account_count,
                balance_microcredits=total.balance,
                balance_credits=to_decimal(total.balance),
            )
            for kind, total in proof.totals.items()
        ],
        last_batch=_to_batch(proof.head) if proof.head else None,
    )


@routes.add("GET", "/v1/operator/audit/batches", Access.OPERATOR, query=CheckQuery, answer=wire.AuditCheck)
async def check_batches(call: Call) -> wire.AuditCheck:
    """Recompute some batches of the chain from their transfers; names the first bad batch and row."""
    query: CheckQuery = call.query
    found = await service.check_batches(
        call.hub.pool,
        first_number=min(query.number, 1 << 60),
        limit=query.limit,
        known=_read_known(query.known) if query.known else None,
    )
    return wire.AuditCheck(
        batch_count=found.batch_count,
        row_count=found.row_count,
        next_number=found.next_number,
        fault=_to_fault(found.fault) if found.fault else None,
        last_batch=_to_batch(found.head) if found.head else None,
    )


@routes.add("GET", "/v1/operator/audit/balances", Access.OPERATOR, query=BalancesQuery, answer=wire.BalanceCheck)
async def check_balances(call: Call) -> wire.BalanceCheck:
    """Recompute all balances and holds from the transfers: those since the last checkpoint, or every one."""
    found = await service.check_balances(call.hub.pool, from_start=call.query.from_start)
    return wire.BalanceCheck(
        drifts=[
            wire.BalanceDrift(name=each.name, kept_microcredits=each.kept, counted_microcredits=each.counted)
            for each in found.drifts
        ],
        stray_ids=found.stray_ids,
        unsealed_count=found.unsealed_count,
        checkpoint_faults=list(found.checkpoint_faults),
        counted_from_batch=found.counted_from_batch,
    )


def _read_known(text: str) -> tuple[int, bytes]:
    found = _KNOWN.match(text)
    if found is None:
        raise InvalidRequest("known is a batch's number, a colon and its hash in 64 hex digits.")
    return int(found[1]), bytes.fromhex(found[2])


def _to_batch(stored: StoredBatch) -> wire.AuditBatch:
    batch = stored.batch
    return wire.AuditBatch(
        number=batch.number,
        sha256=batch.sha256.hex(),
        previous_sha256=batch.previous_sha256.hex(),
        row_count=batch.row_count,
        last_id=batch.last_id,
        sealed_at=stored.sealed_at,
    )


def _to_fault(fault: BatchFault) -> wire.AuditFault:
    return wire.AuditFault(
        kind=fault.kind, batch_number=fault.batch_number, words=fault.words, transfer_id=fault.transfer_id
    )
