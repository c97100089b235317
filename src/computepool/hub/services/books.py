"""Closes a day: trial balance, payout file, and all that does not agree. Closed again, it comes to the same."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from computepool.core.errors import Conflict, InvalidRequest
from computepool.core.ledger.checkpoint import Checkpoint
from computepool.core.ledger.closing import (
    DifferenceKind,
    Figures,
    digest_figures,
    list_trial_faults,
    make_trial,
)
from computepool.core.ledger.decimals import say_credits, to_decimal
from computepool.core.ledger.period import Period, day_period
from computepool.core.ledger.table import quote_formula, to_csv
from computepool.core.payments.books import CashMovement
from computepool.hub.services.callers import AccountCaller
from computepool.hub.services.checkpoints import Start, advance, find_start
from computepool.hub.services.reconciliation import compare_with_provider
from computepool.hub.store import books as store
from computepool.hub.store import events as event_store
from computepool.hub.store import hub as hub_store
from computepool.hub.store import ledger as ledger_store
from computepool.hub.store.books import Closing, SentPayout
from computepool.hub.store.connect import Connection, Pool
from computepool.hub.store.events import NewEvent
from computepool.hub.store.ledger import BEFORE_ALL

# A transfer is dated by the begin of its transaction: a day's last ones are all there when no transaction of that day
# can be running any more.
QUIET_SECONDS = 600
DIFFERENCES_MAX = 200
PAYOUTS_MAX = 20_000
MOVEMENTS_MAX = 20_000

# No checkpoint is made while transfers and balances disagree: it would outlive the repair.
_UNSOUND = frozenset({DifferenceKind.CHECKPOINT, DifferenceKind.TRIAL, DifferenceKind.DRIFT})

PAYOUT_HEADS = (
    "payout_id",
    "account_id",
    "sent_at",
    "provider",
    "region",
    "currency",
    "amount_minor",
    "amount_microcredits",
    "credits",
    "destination",
)


@dataclass(frozen=True, slots=True)
class Difference:
    kind: DifferenceKind
    subject: str
    words: str


@dataclass(frozen=True, slots=True)
class ClosedDay:
    closing: Closing
    figures: Figures
    differences: Sequence[Difference]
    # There are more differences than are told.
    is_cut: bool
    # Whether the provider's own books were looked at.
    compared_with_provider: bool
    # The batch that the count began after; None: every transfer was counted.
    counted_from_batch: int | None


async def close_day(
    pool: Pool,
    caller: AccountCaller,
    day: date,
    *,
    provider_movements: Sequence[CashMovement] | None,
    from_start: bool = False,
) -> ClosedDay:
    """Counts what came since the last checkpoint, or with `from_start` every transfer; and leaves a checkpoint."""
    period = day_period(day)
    if provider_movements is not None and len(provider_movements) > MOVEMENTS_MAX:
        raise InvalidRequest(f"A provider's books of a day have at most {MOVEMENTS_MAX:,} movements here.")
    # In one snapshot: a checkpoint and its sums, and all that is counted on top of them.
    async with pool.acquire() as conn, conn.transaction(isolation="repeatable_read", readonly=True):
        await _check_over(conn, period)
        start = Start() if from_start else await find_start(conn, since=period.since)
        figures = await _count(conn, day, period, start.before)
        differences = await _list_own_differences(conn, period, figures, start)
    if not any(each.kind in _UNSOUND for each in differences):
        await advance(pool, until=period.until, from_start=from_start)
    if provider_movements is not None:
        differences += await _list_provider_differences(pool, period, provider_movements)
    closing = await _record(pool, caller, figures)
    if closing.sha256 != digest_figures(figures):
        words = f"{day} was closed at {closing.closed_at:%Y-%m-%d %H:%M} UTC and came to something else then."
        differences.insert(0, Difference(DifferenceKind.REOPENED, str(day), words))
    return ClosedDay(
        closing,
        figures,
        differences[:DIFFERENCES_MAX],
        is_cut=len(differences) > DIFFERENCES_MAX,
        compared_with_provider=provider_movements is not None,
        counted_from_batch=start.before.batch_number if start.before else None,
    )


async def render_payout_file(pool: Pool, day: date) -> str:
    """The payouts that were handed to the provider on a day, for whoever pays them out or checks a bank's list."""
    async with pool.acquire() as conn:
        return _to_payout_file(await _list_payouts(conn, day_period(day)))


async def _check_over(conn: Connection, period: Period) -> None:
    now = await hub_store.get_now(conn)
    if now < period.until + timedelta(seconds=QUIET_SECONDS):
        raise Conflict(f"{period.since:%Y-%m-%d} is not over yet, by UTC. Close it ten minutes after its end.")


async def _count(conn: Connection, day: date, period: Period, since: Checkpoint | None) -> Figures:
    payouts = await _list_payouts(conn, period)
    lines = await store.list_trial(conn, period, after_id=since.last_id if since else BEFORE_ALL)
    return Figures(
        day=day,
        trial=make_trial(lines, since.kind_sums if since else {}),
        kinds=tuple(await store.list_moved(conn, period)),
        payout_count=len(payouts),
        payout_sha256=hashlib.sha256(_to_payout_file(payouts).encode()).hexdigest(),
    )


async def _list_payouts(conn: Connection, period: Period) -> list[SentPayout]:
    found = await store.list_sent_payouts(conn, period, limit=PAYOUTS_MAX + 1)
    if len(found) > PAYOUTS_MAX:
        raise Conflict(
            f"More than {PAYOUTS_MAX:,} payouts were sent on {period.since:%Y-%m-%d}: too many for a file."
        )
    return found


def _to_payout_file(payouts: Sequence[SentPayout]) -> str:
    rows = [
        (
            payout.id,
            payout.account_id,
            payout.sent_at,
            payout.provider,
            payout.region,
            payout.currency,
            payout.amount_minor,
            payout.amount_microcredits,
            to_decimal(payout.amount_microcredits),
            quote_formula(payout.destination),
        )
        for payout in payouts
    ]
    return to_csv(PAYOUT_HEADS, rows)


async def _list_own_differences(conn: Connection, period: Period, figures: Figures, start: Start) -> list[Difference]:
    limit = DIFFERENCES_MAX + 1
    found = [Difference(DifferenceKind.CHECKPOINT, "checkpoint", words) for words in start.faults]
    found += [Difference(DifferenceKind.TRIAL, "all accounts", words) for words in list_trial_faults(figures.trial)]
    found += [
        Difference(
            DifferenceKind.DRIFT,
            drift.name,
            f"{drift.name} stands at {say_credits(drift.kept)}, by its transfers {say_credits(drift.counted)}",
        )
        for drift in await ledger_store.list_drifts(conn, since=start.newest, limit=limit)
    ]
    found += [
        Difference(
            DifferenceKind.CHARGE,
            str(each.job_id),
            f"job {each.job_id}, {each.party}: its attempts were charged {say_credits(each.charged)}, the ledger "
            f"settled {say_credits(each.settled)}",
        )
        for each in await store.list_charge_differences(conn, period, limit=limit)
    ]
    return found


async def _list_provider_differences(
    pool: Pool, period: Period, movements: Sequence[CashMovement]
) -> list[Difference]:
    return [
        Difference(
            DifferenceKind.PROVIDER,
            str(each.subject_id),
            f"{each.subject_id}: {each.ours_minor:,} minor units of {each.currency} by our books, "
            f"{each.theirs_minor:,} by the provider's",
        )
        for each in await compare_with_provider(pool, movements, since=period.since, until=period.until)
    ]


async def _record(pool: Pool, caller: AccountCaller, figures: Figures) -> Closing:
    sha256 = digest_figures(figures)
    async with pool.acquire() as conn, conn.transaction():
        if await store.insert_closing(conn, day=figures.day, closed_by=caller.account_id, sha256=sha256):
            body = {"day": str(figures.day), "sha256": sha256.hex(), "by": str(caller.account_id)}
            await event_store.record_events(
                conn, [NewEvent(kind="books_closed", account_id=caller.account_id, body=body)]
            )
        closing = await store.find_closing(conn, figures.day)
    assert closing is not None
    return closing
