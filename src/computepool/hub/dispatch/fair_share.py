"""The fair share of this hub process: charged in memory, exchanged with the other hubs in one statement a second.

Nothing here is on the way of a transaction. While the database is away, charges are kept and go with the next ones.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from computepool import clock
from computepool.core.ids import AccountId
from computepool.core.jobs.cause import SPENDS_RETRY
from computepool.core.placement import fair_share as core
from computepool.hub.services.transitions import EndedAttempt
from computepool.hub.store import fair_usage as usage_store
from computepool.hub.store.attempts import Grant
from computepool.hub.store.connect import Pool

log = logging.getLogger("computepool.dispatch")

SYNC_SECONDS = 1.0
# An account of which not even the weight is known is asked for sooner.
STRANGER_SECONDS = 0.05
# Accounts in one statement; of more, those with the largest charges go first.
ACCOUNTS_PER_SYNC = 2_000
SUSPECTS_PER_SYNC = 1_000
# A hub process that was not heard for this long does not count.
SILENT_SECONDS = 5.0


class FairShare:
    def __init__(self, pool: Pool, hub_process_id: UUID | None = None) -> None:
        self._pool = pool
        self._share = core.FairShare()
        self._strangers = asyncio.Event()
        # As it stands in hub_summaries; unset, this process counts as the first of its hubs.
        self.hub_process_id = hub_process_id

    def plan(
        self, accounts: Collection[AccountId], count: int, caps: Mapping[AccountId, int] = core.NO_CAPS
    ) -> dict[AccountId, int]:
        """How many of the next `count` grants each of these accounts should get; who gets none is left out."""
        planned = self._share.plan(accounts, count, caps, now=clock.seconds())
        if self._share.has_strangers:
            self._strangers.set()
        return planned

    def effective(self, account_id: AccountId) -> float:
        """The account's mark: the lowest of those that wait is served next."""
        return self._share.effective(account_id, now=clock.seconds())

    def expected_seconds(self, account_id: AccountId) -> float:
        return self._share.expected_seconds(account_id, now=clock.seconds())

    def note_granted(self, grant: Grant) -> None:
        """After the commit."""
        self._share.charge_lease(
            grant.account_id, grant.id, expected_seconds=grant.expected_seconds, now=clock.seconds()
        )

    def note_ended(self, ended: Sequence[EndedAttempt]) -> None:
        """After the commit; whichever hub has granted them."""
        now = clock.seconds()
        for attempt in ended:
            self._share.charge_end(
                attempt.account_id,
                attempt.attempt_id,
                expected_seconds=attempt.expected_seconds,
                held_seconds=attempt.held_seconds,
                # What was stopped or lost says nothing about how long the next one will run.
                natural=attempt.cause is None or attempt.cause in SPENDS_RETRY,
                now=now,
            )

    async def run(self) -> None:
        while True:
            await self._wait()
            try:
                await self.sync()
            except Exception as error:
                log.warning("fair_share_not_exchanged error=%r", error)
                await asyncio.sleep(SYNC_SECONDS)

    async def _wait(self) -> None:
        await asyncio.sleep(STRANGER_SECONDS)
        try:
            async with asyncio.timeout(SYNC_SECONDS - STRANGER_SECONDS):
                await self._strangers.wait()
        except TimeoutError:
            return

    async def sync(self) -> None:
        self._strangers.clear()
        await self._judge_suspects()
        deltas = self._share.take_deltas(ACCOUNTS_PER_SYNC, now=clock.seconds())
        if not deltas:
            return
        try:
            async with self._pool.acquire() as conn:
                totals = await usage_store.add_usage(conn, deltas)
                hubs = await usage_store.list_hubs(conn, seconds=SILENT_SECONDS)
        except BaseException:
            # If the answer alone was lost, they are counted twice: a second's worth, which fades like the rest.
            self._share.put_back(deltas)
            raise
        rank = hubs.index(self.hub_process_id) if self.hub_process_id in hubs else 0
        self._share.take_totals(deltas, totals, hub_count=len(hubs), hub_rank=rank)

    async def _judge_suspects(self) -> None:
        suspects = self._share.list_suspects(SUSPECTS_PER_SYNC, now=clock.seconds())
        if not suspects:
            return
        async with self._pool.acquire() as conn:
            live = await usage_store.list_live(conn, suspects)
        self._share.judge_suspects(suspects, live, now=clock.seconds())
