"""Where nodes stand, for their owners and the operator; how sure the results of a job are, for its submitter."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from datetime import datetime

from computepool.core.errors import NotFound
from computepool.core.ids import JobId, NodeId
from computepool.core.ledger.charging import LeaseTerms
from computepool.core.trust.inspection import CheckOutcome
from computepool.core.trust.reputation import expected_wrong_ratio
from computepool.core.trust.standing import NodeTrust, may_release_pay
from computepool.core.trust.words import find_job_confidence
from computepool.hub.services import jobs as job_service
from computepool.hub.services import nodes as node_service
from computepool.hub.services.callers import AccountCaller
from computepool.hub.services.prices import PriceBook
from computepool.hub.services.standings import TAKEN_UP_MAX, tell_standing
from computepool.hub.store import challenges as challenge_store
from computepool.hub.store import credits as credit_store
from computepool.hub.store import hub as hub_store
from computepool.hub.store import nodes as node_store
from computepool.hub.store import run_audits as audit_store
from computepool.hub.store import validation as store
from computepool.hub.store.challenges import Proof
from computepool.hub.store.connect import Connection, Pool
from computepool.hub.store.jobs import Job
from computepool.hub.store.run_audits import WrongSpan
from computepool.hub.store.validation import DistrustedNode

RECENT = 20
PAGE_MAX = 500
# Of one node: enough to see what it does wrong.
CHECKED_MAX = 50
SPANS_MAX = 10


@dataclass(frozen=True, slots=True)
class TrustStory:
    trust: NodeTrust
    recent: list[tuple[datetime, bool | None]]
    # What a lease is agreed on with it now, and the part of the price that the fee is smaller by.
    terms: LeaseTerms
    bonus_ppm: int
    # Attempts whose holdback is over and whose pay waits for the node, and how much that is.
    waiting_count: int
    waiting_microcredits: int
    now: datetime


@dataclass(frozen=True, slots=True)
class DistrustStory:
    """Why a node is not clear."""

    node: DistrustedNode
    # Of its results of jobs, of the last that others ran as well.
    checked_count: int
    wrong_count: int
    # By audits of networks, newest first.
    wrong_spans: list[WrongSpan]
    # The newest verdict on the speed of a slot of it.
    proof: Proof | None
    now: datetime


@dataclass(frozen=True, slots=True)
class DistrustPage:
    stories: list[DistrustStory]
    # Where the list goes on; None at its end.
    following: NodeId | None


@dataclass(frozen=True, slots=True)
class ValidationStory:
    job: Job
    # By what a check has said; None: not checked.
    counts: Counter[CheckOutcome | None]
    confidence: float | None
    check_count: int
    check_microcredits: int


async def get_trust(pool: Pool, prices: PriceBook, caller: AccountCaller, node_id: NodeId) -> TrustStory:
    await node_service.get_node(pool, caller, node_id)
    async with pool.acquire() as conn:
        known = await store.list_trust(conn, [node_id])
        return await _tell(conn, prices, node_id, known.get(node_id, NodeTrust()))


async def list_distrusted(pool: Pool, *, before: NodeId | None, limit: int) -> DistrustPage:
    async with pool.acquire() as conn:
        found = await store.list_distrusted(conn, before=before, limit=limit)
        ids = {each.node_id for each in found}
        verdicts = await store.list_recent_verdicts(conn, ids, limit=CHECKED_MAX)
        spans = await audit_store.list_wrong_spans(conn, ids, limit=SPANS_MAX)
        proofs = await challenge_store.list_proofs(conn, ids)
        now = await hub_store.get_now(conn)
    newest: dict[NodeId, Proof] = {}
    for proof in sorted(proofs.values(), key=lambda each: each.decided_at):
        newest[proof.node_id] = proof
    stories = []
    for node in found:
        counted = [right for _, right in verdicts[node.node_id] if right is not None]
        stories.append(
            DistrustStory(
                node, len(counted), counted.count(False), spans[node.node_id], newest.get(node.node_id), now
            )
        )
    return DistrustPage(stories, found[-1].node_id if len(found) == limit else None)


async def _tell(conn: Connection, prices: PriceBook, node_id: NodeId, known: NodeTrust) -> TrustStory:
    terms = prices.find_terms(known.serving_since)
    waiting_count, waiting_microcredits = await credit_store.sum_waiting(conn, node_id)
    return TrustStory(
        known,
        (await store.list_recent_verdicts(conn, [node_id], limit=RECENT))[node_id],
        terms,
        prices.terms.fee_ppm - terms.fee_ppm,
        waiting_count,
        waiting_microcredits,
        await hub_store.get_now(conn),
    )


async def vouch(pool: Pool, prices: PriceBook, node_id: NodeId, *, vouched: bool) -> TrustStory:
    """By the operator: such a node may check others from the first day."""
    async with pool.acquire() as conn, conn.transaction():
        if not await node_store.find_nodes(conn, [node_id]):
            raise NotFound("There is no such node.")
        known = (await store.lock_trust(conn, [node_id]))[node_id]
        after = replace(known, is_vouched=vouched)
        await store.put_trust(conn, node_id, after)
        await tell_standing(conn, node_id, after)
        if may_release_pay(after):
            await credit_store.take_up(conn, node_id, limit=TAKEN_UP_MAX)
        return await _tell(conn, prices, node_id, after)


async def get_validation(pool: Pool, caller: AccountCaller, job_id: JobId) -> ValidationStory:
    job = await job_service.get_job(pool, caller, job_id)
    async with pool.acquire() as conn:
        groups = await store.list_result_groups(conn, job_id)
        known = await store.list_trust(conn, {group.node_id for group in groups})
        check_count, microcredits = await store.sum_check_jobs(conn, job_id)
        now = await hub_store.get_now(conn)
    counts: Counter[CheckOutcome | None] = Counter()
    for group in groups:
        counts[group.outcome] += group.count
    confidence = None
    if job.verify is not None:
        ratios = {
            id: expected_wrong_ratio(known.get(id, NodeTrust()).integrity, now=now)
            for id in {group.node_id for group in groups}
        }
        confidence = find_job_confidence([(ratios[each.node_id], each.outcome, each.count) for each in groups])
    return ValidationStory(job, counts, confidence, check_count, microcredits)
