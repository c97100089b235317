"""Asks providers what became of what they did not tell, by our own ids. Never sends anything."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import datetime
from uuid import UUID

from computepool.core.payments.books import CashMovement, Difference, list_differences
from computepool.core.payments.claim import Claim, ClaimKind, Doubt, Verdict, digest_claim
from computepool.core.payments.errors import ProviderUnavailable
from computepool.core.payments.payout import NOT_FOUND_SECONDS, PAYOUT_OPEN_AT_PROVIDER, judge_not_found
from computepool.hub.payments.port import Provider, Providers, SubjectKind
from computepool.hub.services import payouts, provider_events
from computepool.hub.store import hub as hub_store
from computepool.hub.store import payments as store
from computepool.hub.store.connect import Connection, Pool
from computepool.hub.store.payments import NewProviderEvent, StoredPayout

log = logging.getLogger("computepool.payments")

# No call of ours takes so long: what was sent before then is in nobody's hands any more.
QUIET_SECONDS = 120.0
# A top-up that was not paid by then is not asked about any more; if it is paid, the provider tells us.
PATIENCE_SECONDS = 7 * 86_400.0


async def reconcile_payouts(
    pool: Pool,
    providers: Providers,
    *,
    limit: int,
    quiet_seconds: float = QUIET_SECONDS,
    not_found_seconds: float = NOT_FOUND_SECONDS,
) -> int:
    """Of those that are sent or unknown, the ones asked about longest ago. Returns how many have moved."""
    async with pool.acquire() as conn:
        open_payouts = await store.take_payouts_to_ask(
            conn, providers=_list_askable(providers), quiet_seconds=quiet_seconds, limit=limit
        )
    moved, away = 0, set[str]()
    for payout in open_payouts:
        if payout.provider in away:
            continue
        try:
            provider = providers.get(payout.provider)
            moved += await _reconcile_payout(pool, provider, payout.id, not_found_seconds=not_found_seconds)
        except ProviderUnavailable as error:
            away.add(payout.provider)
            log.warning("payouts_not_reconciled provider=%s error=%s", payout.provider, error)
    return moved


async def reconcile_top_ups(
    pool: Pool,
    providers: Providers,
    *,
    limit: int,
    quiet_seconds: float = QUIET_SECONDS,
    patience_seconds: float = PATIENCE_SECONDS,
) -> int:
    """Requested ones, whose payment nobody has told us of. Returns how many have moved."""
    async with pool.acquire() as conn:
        waiting = await store.take_top_ups_to_ask(
            conn,
            providers=_list_askable(providers),
            quiet_seconds=quiet_seconds,
            patience_seconds=patience_seconds,
            limit=limit,
        )
    moved, away = 0, set[str]()
    for top_up in waiting:
        if top_up.provider in away:
            continue
        provider = providers.get(top_up.provider)
        try:
            claim = await provider.adapter.get_status(SubjectKind.TOP_UP, top_up.id)
        except ProviderUnavailable as error:
            away.add(top_up.provider)
            log.warning("top_ups_not_reconciled provider=%s error=%s", top_up.provider, error)
            continue
        if claim is not None and claim.kind != ClaimKind.TOP_UP_OPENED:
            heard = await provider_events.hear_status(pool, provider, claim)
            moved += heard.verdict is Verdict.APPLIED and not heard.repeated
    return moved


async def compare_with_provider(
    pool: Pool, theirs: Iterable[CashMovement], *, since: datetime, until: datetime
) -> list[Difference]:
    """The cash of our books against that of the provider's own. Empty: they agree to the last minor unit.

    What is on its way at either end of the period differs until the next one.
    """
    async with pool.acquire() as conn:
        ours = await store.list_cash_movements(conn, since=since, until=until)
    return list_differences(ours, theirs)


def _list_askable(providers: Providers) -> Sequence[str]:
    return [name for name in providers.names if providers.get(name).adapter.can_be_asked]


async def _reconcile_payout(pool: Pool, provider: Provider, payout_id: UUID, *, not_found_seconds: float) -> bool:
    async with pool.acquire() as conn, conn.transaction():
        payout = await store.lock_payout(conn, payout_id)
        if payout is not None:
            await payouts.mark_unanswered(conn, payout)
    claim = await provider.adapter.get_status(SubjectKind.PAYOUT, payout_id)
    if claim is not None:
        heard = await provider_events.hear_status(pool, provider, claim)
        return heard.verdict is Verdict.APPLIED and not heard.repeated
    async with pool.acquire() as conn, conn.transaction():
        payout = await store.lock_payout(conn, payout_id)
        if payout is None or payout.state not in PAYOUT_OPEN_AT_PROVIDER or payout.sent_at is None:
            return False
        return await _hear_not_found(conn, payout, not_found_seconds=not_found_seconds)


async def _hear_not_found(conn: Connection, payout: StoredPayout, *, not_found_seconds: float) -> bool:
    assert payout.sent_at is not None
    if payout.acknowledged_at is not None:
        await _record_forgotten(conn, payout)
        return False
    now = await hub_store.get_now(conn)
    if judge_not_found(sent_at=payout.sent_at, acknowledged_at=None, now=now, seconds=not_found_seconds) is None:
        return False
    await payouts.fail_unheard(conn, payout)
    return True


async def _record_forgotten(conn: Connection, payout: StoredPayout) -> None:
    """The provider had it, and now has never heard of it: for the operator, once."""
    event_id = f"~status:{payout.id}:not_found"
    if await store.find_provider_event(conn, provider=payout.provider, event_id=event_id) is not None:
        return
    claim = Claim("payout.not_found", payout.id, payout.cash.currency, payout.cash.minor, "")
    await store.insert_provider_event(
        conn,
        NewProviderEvent(payout.provider, event_id, claim, digest_claim(claim), Verdict.REFUSED, Doubt.CONTRADICTION),
    )
