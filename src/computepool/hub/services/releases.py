"""The end of the holdback: what owners have earned becomes theirs to use, once."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from computepool.core.ids import AccountId, AttemptId
from computepool.core.jobs.checkpoint_proofs import Lack
from computepool.core.ledger import verbs
from computepool.core.ledger.dispute import DisputeOrigin
from computepool.core.ledger.earning import Earning, EarningState
from computepool.core.ledger.refusal import Refusal, RefusalCode
from computepool.core.ledger.transfer import Posting
from computepool.core.trust.release import find_pay_wait, find_proof_wait
from computepool.hub.services.checkpoint_proofs import find_lacks
from computepool.hub.services.disputes import freeze_earnings
from computepool.hub.store import credits as store
from computepool.hub.store import hub as hub_store
from computepool.hub.store import ledger as ledger_store
from computepool.hub.store.connect import Connection, Pool
from computepool.hub.store.credits import DueEarning

log = logging.getLogger("computepool.ledger")


@dataclass(frozen=True, slots=True)
class Released:
    """Of one transaction: attempts that were due, what became free, and whose it is."""

    attempt_count: int = 0
    microcredits: int = 0
    owner_ids: frozenset[AccountId] = frozenset()
    # Looked at, and waiting for something other than their holdback.
    put_off_count: int = 0


@dataclass(frozen=True, slots=True)
class _Portion:
    """What one owner earned with one job, and the posting that releases it; none where it comes to nothing."""

    earnings: Sequence[Earning]
    posting: Posting | None


async def release_due(pool: Pool, *, limit: int) -> Released:
    """So many attempts at most. Several hubs may do it at once: each earning is locked by one of them.

    What must not be released, because its receipt does not hold or the books refuse it, is in dispute from then on:
    it would stand before all others for ever. What waits for its node, or for somebody who goes on from its
    checkpoint, is put off for the same reason.
    """
    async with pool.acquire() as conn, conn.transaction():
        now = await hub_store.get_now(conn)
        taken = await store.take_due(conn, now=now, limit=limit)
        lacks = await find_lacks(
            conn,
            {one.earning.attempt_id: (one.earning.job_id, one.slice_index) for one in taken if one.is_saved},
        )
        put_off = _list_put_off(taken, lacks, now)
        if put_off:
            await store.put_off(conn, put_off)
        due = [one for one in taken if one.earning.attempt_id not in put_off]
        if not due:
            return Released(put_off_count=len(put_off))
        refused_receipts = [one.earning for one in due if one.receipt_refused]
        await freeze_earnings(
            conn, refused_receipts, origin=DisputeOrigin.RECEIPT, reason="the node's receipt does not hold"
        )
        portions = _list_portions(due, now)
        released = [earning for portion in portions for earning in portion.earnings]
        await store.change_earnings(conn, [earning.attempt_id for earning in released], EarningState.RELEASED)
        refused = await _post(conn, portions)
    kept = [earning for earning in released if earning not in refused]
    return Released(
        attempt_count=len(due),
        microcredits=sum(earning.owner_microcredits for earning in kept),
        owner_ids=frozenset(earning.owner_id for earning in kept),
        put_off_count=len(put_off),
    )


def _list_put_off(
    taken: Iterable[DueEarning], lacks: Mapping[AttemptId, Lack], now: datetime
) -> dict[AttemptId, datetime]:
    """What waits for something, and when to look again. A receipt that does not hold waits for nothing."""
    put_off = {}
    for one in taken:
        attempt_id = one.earning.attempt_id
        wait = find_pay_wait(one.trust, is_checked=one.is_checked, earned_at=one.earned_at, now=now)
        wait = wait or find_proof_wait(lacks.get(attempt_id), earned_at=one.earned_at, now=now)
        if wait is not None and not one.receipt_refused:
            put_off[attempt_id] = wait.next_look(now)
    return put_off


def _list_portions(due: Iterable[DueEarning], now: datetime) -> list[_Portion]:
    groups: dict[tuple[object, object], list[Earning]] = defaultdict(list)
    for one in due:
        if not one.receipt_refused:
            groups[one.earning.job_id, one.earning.owner_id].append(one.earning)
    return [_to_portion(earnings, now) for earnings in groups.values()]


def _to_portion(earnings: Sequence[Earning], now: datetime) -> _Portion:
    made = verbs.release(earnings=earnings, now=now)
    if isinstance(made, Posting):
        return _Portion(earnings, made)
    if made.code is RefusalCode.NOTHING_TO_MOVE:
        return _Portion(earnings, None)
    # They were locked while pending and due, by the same clock.
    raise AssertionError(made.words)


async def _post(conn: Connection, portions: Iterable[_Portion]) -> set[Earning]:
    """Returns what the books refused. Comes last: accounts are last in the order of locks."""
    moving = [portion for portion in portions if portion.posting is not None]
    outcomes = await ledger_store.post(conn, [portion.posting for portion in moving if portion.posting])
    refused: set[Earning] = set()
    for portion, outcome in zip(moving, outcomes, strict=True):
        if isinstance(outcome, Refusal):
            log.error("release_refused reason=%s words=%s", outcome.code.value, outcome.words)
            await freeze_earnings(
                conn, portion.earnings, origin=DisputeOrigin.BOOKS, reason="the ledger does not hold what was earned"
            )
            refused.update(portion.earnings)
    return refused
