"""Why a node was paid what it was paid on a day. Looks only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from uuid import UUID

from computepool.core.ids import AttemptId, NodeId
from computepool.core.jobs.checkpoint_proofs import Lack
from computepool.core.ledger.earning import EarningState
from computepool.core.ledger.explain import Explained, explain_pay
from computepool.core.ledger.period import day_period, read_cursor, write_cursor
from computepool.core.trust.release import find_pay_wait, find_proof_wait
from computepool.core.trust.standing import NodeTrust
from computepool.core.trust.words import say_pay_wait, say_proof_wait
from computepool.hub.services import nodes as node_service
from computepool.hub.services.callers import AccountCaller
from computepool.hub.services.checkpoint_proofs import find_lacks
from computepool.hub.store import hub as hub_store
from computepool.hub.store import pay as store
from computepool.hub.store import validation as trust_store
from computepool.hub.store.connect import Pool
from computepool.hub.store.nodes import Node
from computepool.hub.store.pay import PaidAttempt

PAGE_MAX = 500
_FIRST = UUID(int=0)


@dataclass(frozen=True, slots=True)
class PayStory:
    node: Node
    day: date
    attempts: list[tuple[PaidAttempt, Explained]]
    # By attempt: why its pay is not released, of those for which something other than the holdback is waited for.
    waits: dict[AttemptId, str]
    cursor: str | None


async def explain_day(
    pool: Pool, caller: AccountCaller, node_id: NodeId, *, day: date, cursor: str | None, limit: int
) -> PayStory:
    """One page of the attempts that ended on a day (UTC), each with what it should have been paid and what it was."""
    node = (await node_service.get_node(pool, caller, node_id)).node
    period, limit = day_period(day), max(1, min(limit, PAGE_MAX))
    first = (period.since, _FIRST)
    async with pool.acquire() as conn:
        found = await store.list_pay(
            conn,
            node_id=node_id,
            until=period.until,
            after=max(read_cursor(cursor), first) if cursor else first,
            limit=limit,
        )
        known = (await trust_store.list_trust(conn, [node_id])).get(node_id, NodeTrust())
        lacks = await find_lacks(conn, {each.id: (each.job_id, each.slice_index) for each in found if each.is_saved})
        waits = _list_waits(found, known, lacks, await hub_store.get_now(conn))
    next_cursor = write_cursor(found[-1].counted_at, found[-1].id) if len(found) == limit else None
    return PayStory(node, day, [(each, explain_pay(each.facts)) for each in found], waits, next_cursor)


def _list_waits(
    found: Iterable[PaidAttempt], known: NodeTrust, lacks: Mapping[AttemptId, Lack], now: datetime
) -> dict[AttemptId, str]:
    waits = {}
    for each in found:
        earned_at = each.facts.finished_at
        if each.facts.earning_state is not EarningState.PENDING or earned_at is None:
            continue
        wait = find_pay_wait(known, is_checked=each.is_checked, earned_at=earned_at, now=now)
        proof = find_proof_wait(lacks.get(each.id), earned_at=earned_at, now=now)
        if wait is not None:
            waits[each.id] = say_pay_wait(known, wait)
        elif proof is not None:
            waits[each.id] = say_proof_wait(proof)
    return waits
