"""Allowances: what accounts may still submit, as of a moment ago, and what this hub has let in since.

Nobody is refused by what is remembered: whoever seems to ask for too much is looked up first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from computepool import clock
from computepool.core.errors import ComputePoolError, LimitExceeded
from computepool.core.ids import AccountId
from computepool.core.ledger.accounts import submitter_held
from computepool.core.ledger.refusal import InsufficientCredits
from computepool.core.payments.errors import AccountFrozen
from computepool.core.placement.price import format_credits
from computepool.hub.store import accounts as account_store
from computepool.hub.store import ledger
from computepool.hub.store.accounts import Usage
from computepool.hub.store.connect import Connection, Pool

log = logging.getLogger("computepool.submissions")

# An account's use of its limits is read again after this long.
ALLOWANCE_SECONDS = 5.0
# One that is used when it has so long left is read again meanwhile, so that nobody waits for that.
RENEWAL_SECONDS = 0.5
REMEMBERED_MAX = 50_000


class Want(NamedTuple):
    """What jobs would take of an allowance."""

    slice_count: int
    hold_microcredits: int

    def add(self, other: Want) -> Want:
        return Want(self.slice_count + other.slice_count, self.hold_microcredits + other.hold_microcredits)

    def without(self, other: Want) -> Want:
        return Want(self.slice_count - other.slice_count, self.hold_microcredits - other.hold_microcredits)


NOTHING = Want(0, 0)


@dataclass(slots=True)
class _Allowance:
    usage: Usage
    good_until: float
    # What this hub has let in since.
    taken: Want = NOTHING
    # Read for this very question.
    fresh: bool = False

    def find_refusal(self, want: Want) -> ComputePoolError | None:
        usage, open_count = self.usage, self.usage.open_slices + self.taken.slice_count
        available = usage.available - self.taken.hold_microcredits
        if usage.frozen and want.hold_microcredits:
            return AccountFrozen(
                "This account is frozen: a payment was taken back after it was spent. Want the operator."
            )
        if want.hold_microcredits > available:
            return to_credit_refusal(want.hold_microcredits, available=available)
        if open_count + want.slice_count > usage.queued_slices_max:
            return LimitExceeded(
                f"You have {open_count:,} unfinished slices; with {want.slice_count:,} more you would pass your "
                f"limit of {usage.queued_slices_max:,}. Wait for some to finish, cancel some, or ask the operator "
                "for more.",
                retry_after_seconds=30,
            )
        if usage.stored_bytes > usage.stored_bytes_max:
            return LimitExceeded(
                f"Your files take {usage.stored_bytes / 1e9:.1f} GB of the {usage.stored_bytes_max / 1e9:.1f} GB "
                "that you may store. Want the operator for more.",
                retry_after_seconds=300,
            )
        return None


class Allowances:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._known: dict[AccountId, _Allowance] = {}
        self._renewal: asyncio.Task[None] | None = None

    async def load(self, conn: Connection, account_ids: Set[AccountId]) -> None:
        """After this these accounts are known, unless they are forgotten meanwhile."""
        now = clock.seconds()
        old = {id for id in account_ids if id not in self._known or self._known[id].good_until < now}
        if not old:
            self._renew_ageing(account_ids, now)
            return
        if len(self._known) + len(old) > REMEMBERED_MAX:
            self._known.clear()
            old = set(account_ids)
        found = await account_store.list_usage(conn, old)
        for account_id, usage in found.items():
            self._known[account_id] = _Allowance(usage, now + ALLOWANCE_SECONDS)
        # Once in an account's life: its first job is then written like all others, at once.
        new = [submitter_held(usage.id) for usage in found.values() if usage.available and not usage.has_held]
        if new:
            await ledger.open_accounts(conn, new)

    async def let_in(
        self, conn: Connection, account_id: AccountId, want: Want, *, in_batch: Want
    ) -> ComputePoolError | None:
        """Counts it in when there is room. `in_batch` is what was let in of the same batch."""
        # It may have been forgotten since it was loaded.
        allowance = self._known.get(account_id)
        if allowance is None or (allowance.find_refusal(want) is not None and not allowance.fresh):
            [usage] = (await account_store.list_usage(conn, {account_id})).values()
            # What was let in before this batch is in the database, but for what another lane or hub is writing: the
            # limit is soft by that much. What this batch lets in is not there yet.
            allowance = self._known[account_id] = _Allowance(usage, 0.0, in_batch, fresh=True)
        refusal = allowance.find_refusal(want)
        if refusal is None:
            allowance.taken = allowance.taken.add(want)
        return refusal

    def forget(self, account_id: UUID) -> None:
        """It was frozen, or freed, or has got other limits: it is asked for anew."""
        self._known.pop(AccountId(account_id), None)

    def forget_all(self) -> None:
        self._known.clear()

    def _renew_ageing(self, account_ids: Set[AccountId], now: float) -> None:
        ageing = {id: each for id in account_ids if (each := self._known[id]).good_until < now + RENEWAL_SECONDS}
        if ageing and (self._renewal is None or self._renewal.done()):
            # As of now: what is let in from here on, by this very submit, may be written after it was read.
            taken = {id: each.taken for id, each in ageing.items()}
            self._renewal = asyncio.create_task(self._renew(ageing, taken))

    async def _renew(self, before: Mapping[AccountId, _Allowance], taken: Mapping[AccountId, Want]) -> None:
        started = clock.seconds()
        try:
            async with self._pool.acquire() as conn:
                found = await account_store.list_usage(conn, before.keys())
        except Exception as error:
            # Whoever comes next reads it, and is told what is wrong.
            log.warning("allowances_not_renewed error=%r", error)
            return
        for account_id, usage in found.items():
            allowance = self._known.get(account_id)
            if allowance is before[account_id]:
                # What was let in meanwhile may be in it or not: it counts twice rather than not at all.
                since = allowance.taken.without(taken[account_id])
                self._known[account_id] = _Allowance(usage, started + ALLOWANCE_SECONDS, since)


def to_credit_refusal(hold: int, *, available: int | None = None) -> InsufficientCredits:
    have = "" if available is None else f" You have {format_credits(max(0, available))}."
    return InsufficientCredits(
        f"This job may cost up to {format_credits(hold)} credits, which are set aside until it ends.{have} "
        "Top up, or set a lower ceiling (--max-price, --max-price-per-slice), a shorter wall limit or fewer slices.",
        hold_microcredits=hold,
    )
