"""Where nodes stand by their results, and how sure the results of a job are."""

from __future__ import annotations

from uuid import UUID

import msgspec

from computepool.core.ids import NodeId
from computepool.core.trust.inspection import CheckOutcome
from computepool.core.trust.reputation import integrity_bound
from computepool.core.trust.standing import is_trusted
from computepool.core.trust.validation import audit_rate
from computepool.core.trust.words import count_missing, find_back_at, say_job, say_pay, say_standing
from computepool.hub.http.routing import Access, Call, Routes
from computepool.hub.services import trust_views as service
from computepool.hub.services.trust_views import DistrustStory, TrustStory, ValidationStory
from computepool.wire import trust as wire

routes = Routes()


class DistrustedQuery(msgspec.Struct, frozen=True, kw_only=True):
    cursor: UUID | None = None
    limit: int = 50


@routes.add("GET", "/v1/nodes/{node_id}/trust", Access.ACCOUNT, answer=wire.NodeTrust)
async def get_node_trust(call: Call) -> wire.NodeTrust:
    """How far the results of a node are relied on: its evidence, what follows from it, and the way up or back."""
    node_id = call.path["node_id"]
    return _to_trust(node_id, await service.get_trust(call.hub.pool, call.hub.prices, call.account, node_id))


@routes.add("PUT", "/v1/operator/nodes/{node_id}/vouch", Access.OPERATOR, body=wire.Vouch, answer=wire.NodeTrust)
async def vouch_for_node(call: Call) -> wire.NodeTrust:
    """Vouch for a node, or stop: it may check others' results from the first day. This is how a new grid starts."""
    node_id, body = call.path["node_id"], call.body
    return _to_trust(node_id, await service.vouch(call.hub.pool, call.hub.prices, node_id, vouched=body.vouched))


@routes.add(
    "GET", "/v1/operator/distrusted-nodes", Access.OPERATOR, query=DistrustedQuery, answer=wire.DistrustedPage
)
async def list_distrusted_nodes(call: Call) -> wire.DistrustedPage:
    """Nodes that are not clear, those whose standing changed last first: what they got wrong, and the way back."""
    query: DistrustedQuery = call.query
    page = await service.list_distrusted(
        call.hub.pool,
        before=None if query.cursor is None else NodeId(query.cursor),
        limit=max(1, min(query.limit, service.PAGE_MAX)),
    )
    return wire.DistrustedPage(
        nodes=[_to_distrusted(story) for story in page.stories],
        cursor=str(page.following) if page.following else None,
    )


@routes.add("GET", "/v1/jobs/{job_id}/validation", Access.ACCOUNT, answer=wire.JobValidation)
async def get_job_validation(call: Call) -> wire.JobValidation:
    """How sure the results of a job are, and what it has cost to find out."""
    return to_validation(await service.get_validation(call.hub.pool, call.account, call.path["job_id"]))


def _to_trust(node_id: UUID, story: TrustStory) -> wire.NodeTrust:
    known, now = story.trust, story.now
    return wire.NodeTrust(
        node_id=node_id,
        standing=known.standing,
        words=say_standing(known, now=now),
        integrity=round(integrity_bound(known.integrity, now=now), 4),
        validated_count=known.integrity.validated_count,
        audit_rate=round(audit_rate(known, now=now), 4),
        is_trusted=is_trusted(known, now=now),
        is_vouched=known.is_vouched,
        bugged_count=known.bugged_count,
        since=known.since,
        back_at=find_back_at(known),
        results_missing=count_missing(known),
        pay_words=say_pay(known, story.terms, bonus_ppm=story.bonus_ppm),
        serving_since=known.serving_since,
        holdback_seconds=story.terms.holdback_seconds,
        bonus_ppm=story.bonus_ppm,
        pay_waiting_count=story.waiting_count,
        pay_waiting_microcredits=story.waiting_microcredits,
        recent=[wire.CheckedResult(at=at, right=right) for at, right in story.recent],
    )


def _to_distrusted(story: DistrustStory) -> wire.DistrustedNode:
    node, known, proof = story.node, story.node.trust, story.proof
    return wire.DistrustedNode(
        node_id=node.node_id,
        node_name=node.node_name,
        owner_id=node.owner_id,
        standing=known.standing,
        words=say_standing(known, now=story.now),
        bugged_count=known.bugged_count,
        validated_count=known.integrity.validated_count,
        checked_count=story.checked_count,
        wrong_count=story.wrong_count,
        results_missing=count_missing(known),
        since=known.since,
        back_at=find_back_at(known),
        wrong_spans=[
            wire.WrongSpan(
                run_id=span.run_id,
                seat=span.seat,
                from_step=span.from_step,
                until_step=span.until_step,
                witness_count=len(span.witness_ids),
                message=span.message,
                decided_at=span.decided_at,
            )
            for span in story.wrong_spans
        ],
        speed=None
        if proof is None
        else wire.ShownSpeed(
            slot=proof.slot,
            state=proof.state,
            claimed_tier=proof.claimed_tier,
            tier=proof.tier,
            reason=proof.reason,
            decided_at=proof.decided_at,
        ),
    )


def to_validation(story: ValidationStory) -> wire.JobValidation:
    job, counts = story.job, story.counts
    unchecked = counts[None]
    can_check = job.verify is not None and not job.nondeterministic
    replaced = counts[CheckOutcome.FOUND_WRONG]
    return wire.JobValidation(
        job_id=job.id,
        counts=wire.ResultCounts(
            verifying=job.verifying_count,
            verified=counts[CheckOutcome.AGREED],
            accepted=unchecked if can_check else 0,
            unverified=counts[CheckOutcome.NO_AUDITOR]
            + counts[CheckOutcome.UNDECIDED]
            + (0 if can_check else unchecked),
            replaced=replaced,
        ),
        words=say_job(
            verify=job.verify,
            nondeterministic=job.nondeterministic,
            confidence=story.confidence,
            check_count=story.check_count,
            replaced=replaced,
        ),
        verify=job.verify,
        nondeterministic=job.nondeterministic,
        confidence=None if story.confidence is None else round(story.confidence, 6),
        check_count=story.check_count,
        check_microcredits=story.check_microcredits,
    )
