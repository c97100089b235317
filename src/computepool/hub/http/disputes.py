"""Disputes over pay: opened by submitters, seen by both sides, decided by operators."""

from __future__ import annotations

from uuid import UUID

import msgspec

from computepool.core.ids import AttemptId, JobId
from computepool.core.ledger.dispute import DisputeSide, DisputeState
from computepool.hub.http.credits import PageQuery, clamp_page, next_cursor
from computepool.hub.http.routing import Access, Call, Routes
from computepool.hub.services import disputes as service
from computepool.hub.store.disputes import StoredDispute
from computepool.wire import disputes as wire

routes = Routes()


class DisputesQuery(msgspec.Struct, frozen=True, kw_only=True):
    state: DisputeState = DisputeState.OPEN
    limit: int = 50
    cursor: UUID = UUID(int=0)


@routes.add(
    "POST", "/v1/credits/disputes", Access.SUBMITTER, body=wire.OpenDispute, answer=wire.OwnDispute, status=201
)
async def open_dispute(call: Call) -> wire.OwnDispute:
    """Doubt the pay for an attempt of one's job while it is held back. It is frozen until the operator decides."""
    body: wire.OpenDispute = call.body
    found = await service.open_dispute(
        call.hub.pool,
        call.account,
        job_id=JobId(body.job_id),
        slice_index=body.slice_index,
        number=body.number,
        reason=body.reason,
    )
    return _to_own(found, DisputeSide.SUBMITTER)


@routes.add("GET", "/v1/credits/disputes", Access.ACCOUNT, query=PageQuery, answer=wire.OwnDisputePage)
async def list_disputes(call: Call) -> wire.OwnDisputePage:
    """Disputes over the caller's jobs, and over pay of the caller's nodes, newest first."""
    limit = clamp_page(call.query.limit)
    found = await service.list_disputes(call.hub.pool, call.account, before=call.query.cursor, limit=limit)
    return wire.OwnDisputePage(
        disputes=[_to_own(dispute, side) for dispute, side in found],
        cursor=next_cursor([dispute.id for dispute, _ in found], limit),
    )


@routes.add("GET", "/v1/credits/disputes/{dispute_id}", Access.ACCOUNT, answer=wire.OwnDispute)
async def get_dispute(call: Call) -> wire.OwnDispute:
    """One dispute and what became of it."""
    return _to_own(*await service.get_dispute(call.hub.pool, call.account, call.path["dispute_id"]))


# The operator's side


@routes.add("GET", "/v1/operator/disputes", Access.OPERATOR, query=DisputesQuery, answer=wire.AccountDisputePage)
async def list_account_disputes(call: Call) -> wire.AccountDisputePage:
    """Everybody's disputes in one state, oldest first. Open ones wait for the operator."""
    query: DisputesQuery = call.query
    limit = clamp_page(query.limit)
    found = await service.list_disputes_in_state(call.hub.pool, state=query.state, after=query.cursor, limit=limit)
    return wire.AccountDisputePage(
        disputes=[_to_account_dispute(each) for each in found],
        cursor=next_cursor([each.id for each in found], limit),
    )


@routes.add(
    "POST",
    "/v1/operator/disputes/{dispute_id}/uphold",
    Access.OPERATOR,
    body=wire.DecideDispute,
    answer=wire.AccountDispute,
)
async def uphold_dispute(call: Call) -> wire.AccountDispute:
    """For the submitter: everything goes back to them, the fee too, from wherever the owner's part is by now."""
    return await _decide(call, DisputeState.UPHELD)


@routes.add(
    "POST",
    "/v1/operator/disputes/{dispute_id}/dismiss",
    Access.OPERATOR,
    body=wire.DecideDispute,
    answer=wire.AccountDispute,
)
async def dismiss_dispute(call: Call) -> wire.AccountDispute:
    """For the owner: the pay is released when its holdback is over."""
    return await _decide(call, DisputeState.DISMISSED)


@routes.add(
    "POST", "/v1/operator/disputes/reverse", Access.OPERATOR, body=wire.ReversePay, answer=wire.AccountDispute
)
async def reverse_pay(call: Call) -> wire.AccountDispute:
    """Late fraud: take the pay for an attempt back, also when it was released or paid out. What is gone is owed."""
    body: wire.ReversePay = call.body
    found = await service.reverse_earning(call.hub.pool, call.account, AttemptId(body.attempt_id), reason=body.reason)
    return _to_account_dispute(found)


async def _decide(call: Call, decision: DisputeState) -> wire.AccountDispute:
    found = await service.decide_dispute(
        call.hub.pool, call.account, call.path["dispute_id"], decision=decision, note=call.body.note
    )
    return _to_account_dispute(found)


def _to_own(found: StoredDispute, side: DisputeSide) -> wire.OwnDispute:
    return wire.OwnDispute(side=side, dispute=_to_dispute(found))


def _to_account_dispute(found: StoredDispute) -> wire.AccountDispute:
    return wire.AccountDispute(
        submitter_id=found.submitter_id,
        owner_id=found.owner_id,
        opened_by=found.opened_by,
        decided_by=found.decided_by,
        dispute=_to_dispute(found),
    )


def _to_dispute(found: StoredDispute) -> wire.Dispute:
    # The message has no field that the record has not.
    return wire.Dispute(**{name: getattr(found, name) for name in wire.Dispute.__struct_fields__})
