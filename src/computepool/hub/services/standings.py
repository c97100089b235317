"""Where nodes stand, moved in one place: by checks, trials, and audits of networks; and what follows from it.

What follows is written with the standing and done after that, each part once however often it is tried: a hub that
dies anywhere in between leaves nothing that another does not finish.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime

from computepool.core.ids import AttemptId, NodeId
from computepool.core.ledger.dispute import DisputeOrigin, DisputeRefused
from computepool.core.trust.standing import NodeTrust, TrustEffect, readmit, record_validated
from computepool.core.trust.validation import RETRO_AUDITS_MAX
from computepool.hub.services.disputes import take_back
from computepool.hub.store import credits as credit_store
from computepool.hub.store import events as event_store
from computepool.hub.store import hub as hub_store
from computepool.hub.store import validation as store
from computepool.hub.store.connect import Connection, Pool
from computepool.hub.store.events import NewEvent
from computepool.hub.store.hub import ChangeKind
from computepool.hub.store.validation import PendingEffect

log = logging.getLogger("computepool.trust")

FORFEITS_MAX = 10_000
# What is left is found within a day.
TAKEN_UP_MAX = 10_000
READMITTED_MAX = 1_000
# Whoever has taken an effect has so long for it.
TURN_SECONDS = 120.0
REASON_BOND = "held back from a node that returned wrong results"


async def count_validated(conn: Connection, counted: Sequence[tuple[NodeId, bool, bool]], *, now: datetime) -> None:
    """Results that were found right or wrong, as (the node, right, by a retro-audit), in their order."""
    known = await store.lock_trust(conn, {node_id for node_id, _, _ in counted})
    for node_id, right, is_retro in counted:
        after, effects = record_validated(known[node_id], right=right, now=now, is_retro=is_retro)
        await move(conn, node_id, known[node_id], after, effects)
        known[node_id] = after


async def move(
    conn: Connection, node_id: NodeId, before: NodeTrust, after: NodeTrust, effects: Sequence[TrustEffect]
) -> None:
    """The caller has locked it."""
    await store.put_trust(conn, node_id, after)
    if effects:
        await store.insert_effects(conn, [(node_id, effect) for effect in effects])
    if after.standing is not before.standing:
        await tell_standing(conn, node_id, after)


async def tell_standing(conn: Connection, node_id: NodeId, trust: NodeTrust) -> None:
    log.warning("node_standing node_id=%s standing=%s", node_id, trust.standing.value)
    await event_store.record_events(
        conn, [NewEvent(kind=f"node_{trust.standing.value}", node_id=node_id, body={"bugged": trust.bugged_count})]
    )
    # Every hub reads its slots again.
    await hub_store.record_change(conn, ChangeKind.NODE, node_id)


# What follows


async def follow_due(pool: Pool, *, limit: int) -> int:
    """Does what is still to be done about nodes, for each in its order. What fails is logged, and tried again when
    its turn is over."""
    count = 0
    while taken := await _take(pool, limit):
        for each in taken:
            try:
                await _follow(pool, each.node_id, each.effect)
                async with pool.acquire() as conn:
                    await store.delete_effect(conn, each.id)
            except Exception:
                log.exception("trust_effect_failed node_id=%s effect=%s", each.node_id, each.effect.value)
        count += len(taken)
    return count


async def _take(pool: Pool, limit: int) -> list[PendingEffect]:
    async with pool.acquire() as conn:
        return await store.take_effects(conn, seconds=TURN_SECONDS, limit=limit)


async def _follow(pool: Pool, node_id: NodeId, effect: TrustEffect) -> None:
    """The others need nothing done: pay of a node that is not clear is not released (releases.py), and one that is
    out gets no leases (nodes.sql, networks.sql)."""
    if effect is TrustEffect.RETRO_AUDIT:
        async with pool.acquire() as conn:
            await store.open_retro_checks(conn, node_id, limit=RETRO_AUDITS_MAX)
    elif effect is TrustEffect.FORFEIT_PAY:
        async with pool.acquire() as conn:
            unreleased = await store.list_unreleased(conn, node_id, limit=FORFEITS_MAX)
        for attempt_id in unreleased:
            await take_pay_back(pool, attempt_id, REASON_BOND)
    elif effect is TrustEffect.UNFREEZE_PAY:
        async with pool.acquire() as conn:
            await credit_store.take_up(conn, node_id, limit=TAKEN_UP_MAX)


async def take_pay_back(pool: Pool, attempt_id: AttemptId, reason: str) -> None:
    try:
        async with pool.acquire() as conn, conn.transaction():
            await take_back(conn, attempt_id, origin=DisputeOrigin.AUDIT, reason=reason, by=None)
    except DisputeRefused as refusal:
        # Nothing was paid for it, or its owner and the submitter are one.
        log.info("nothing_taken_back attempt_id=%s reason=%s", attempt_id, refusal.message)


# The way back


async def readmit_due(pool: Pool) -> int:
    """Bugged nodes whose cool-off is over are on their way back."""
    async with pool.acquire() as conn:
        node_ids = await store.list_bugged(conn, limit=READMITTED_MAX)
    if not node_ids:
        return 0
    count = 0
    async with pool.acquire() as conn, conn.transaction():
        now = await hub_store.get_now(conn)
        for node_id, known in (await store.lock_trust(conn, node_ids)).items():
            readmitted = readmit(known, now=now)
            if readmitted is not known:
                await move(conn, node_id, known, readmitted, ())
                count += 1
    return count
