"""Why a node was paid what it was paid."""

from __future__ import annotations

from uuid import UUID

import msgspec

from computepool.core.ids import NodeId
from computepool.core.ledger.explain import Explained
from computepool.core.ledger.period import read_day
from computepool.hub.http.routing import Access, Call, Routes
from computepool.hub.http.statements import tell_dispute
from computepool.hub.services import pay as service
from computepool.hub.store.pay import PaidAttempt
from computepool.wire import pay as wire

routes = Routes()


class PayWhyQuery(msgspec.Struct, frozen=True, kw_only=True):
    node: UUID
    # Of UTC, such as 2026-11-17.
    day: str
    cursor: str | None = None
    limit: int = 200


@routes.add("GET", "/v1/credits/why", Access.ACCOUNT, query=PayWhyQuery, answer=wire.PayWhy)
async def explain_pay(call: Call) -> wire.PayWhy:
    """Each attempt of a node on a day: what it should have been paid, what was charged, what the ledger moved."""
    query: PayWhyQuery = call.query
    story = await service.explain_day(
        call.hub.pool,
        call.account,
        NodeId(query.node),
        day=read_day(query.day),
        cursor=query.cursor,
        limit=query.limit,
    )
    return wire.PayWhy(
        node_id=story.node.id,
        name=story.node.name,
        day=story.day,
        attempts=[
            to_paid_attempt(attempt, explained, story.waits.get(attempt.id, ""))
            for attempt, explained in story.attempts
        ],
        cursor=story.cursor,
    )


def to_paid_attempt(attempt: PaidAttempt, explained: Explained, waits: str = "") -> wire.PaidAttempt:
    facts = attempt.facts
    return wire.PaidAttempt(
        attempt_id=attempt.id,
        job_id=attempt.job_id,
        slice_index=attempt.slice_index,
        number=attempt.number,
        slot=attempt.slot,
        state=facts.state,
        leased_at=facts.leased_at,
        mark=explained.mark,
        words=explained.words,
        rule=explained.rule,
        due_microcredits=explained.due_microcredits,
        charged_microcredits=explained.charged_microcredits,
        fee_microcredits=facts.fee_microcredits or 0,
        due_to_owner_microcredits=explained.due_to_owner_microcredits,
        earned_microcredits=explained.earned_microcredits,
        moved_microcredits=explained.moved_microcredits,
        missing_microcredits=explained.missing_microcredits,
        differences=list(explained.differences),
        reason=explained.reason,
        made_good_microcredits=facts.made_good_microcredits,
        cause=facts.cause,
        finished_at=facts.finished_at,
        run_seconds=facts.run_seconds,
        metered_seconds=explained.metered_seconds,
        rate_microcredits_per_hour=facts.rate_microcredits_per_hour,
        slice_price_microcredits=facts.slice_price_microcredits,
        rate_card_version=attempt.rate_card_version,
        earning_state=facts.earning_state,
        release_at=attempt.release_at,
        waits=waits,
        **tell_dispute(attempt.dispute),
    )
