"""Pays for the time of superseded attempts out of the fee of their slices, once the pay for the result is settled."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from computepool.core.ids import AccountId, AttemptId, JobId
from computepool.core.ledger import verbs
from computepool.core.ledger.accounts import SHARDS, AccountKind, LedgerAccount, owner_available
from computepool.core.ledger.make_good import Superseded, price_make_good
from computepool.core.ledger.refusal import Refusal, to_error
from computepool.core.ledger.transfer import Posting
from computepool.hub.services.links import load_links
from computepool.hub.store import credits as store
from computepool.hub.store import ledger as ledger_store
from computepool.hub.store.connect import Connection, Pool

log = logging.getLogger("computepool.ledger")

_FEES = SHARDS[AccountKind.FEE]


async def make_good(pool: Pool, *, limit: int) -> int:
    """So many attempts at most; several hubs may do it at once. Returns how many were looked at."""
    async with pool.acquire() as conn, conn.transaction():
        found = await store.take_superseded(conn, limit=limit)
        if not found:
            return 0
        links = await load_links(conn)
        amounts = price_all(found, links)
        await store.set_made_good(conn, amounts)
        await _post(conn, [(each, amounts[each.attempt_id]) for each in found if amounts[each.attempt_id]])
    return len(found)


def price_all(found: Sequence[Superseded], links: Mapping[AccountId, AccountId]) -> dict[AttemptId, int]:
    """Two of one slice share its fee."""
    used: Counter[tuple[JobId, int]] = Counter()
    amounts: dict[AttemptId, int] = {}
    for each in found:
        slice_key = each.job_id, each.slice_index
        left = replace(each, fee_microcredits=each.fee_microcredits - used[slice_key])
        groups = [links.get(id, id) for id in (each.owner_id, each.submitter_id, each.delivered_by)]
        amounts[each.attempt_id] = price_make_good(left, is_linked=groups[0] in groups[1:])
        used[slice_key] += amounts[each.attempt_id]
    return amounts


async def _post(conn: Connection, due: Sequence[tuple[Superseded, int]]) -> None:
    """Comes last: accounts are last in the order of locks. What the books refuse undoes the whole turn."""
    if not due:
        return
    owners = [owner_available(each.owner_id) for each, _ in due]
    balances = await ledger_store.lock_balances(conn, [*owners, *_FEES])
    fees: dict[LedgerAccount, int] = {shard: balances[shard] for shard in _FEES}
    postings: list[Posting] = []
    for each, amount in due:
        made = verbs.make_good(
            attempt_id=each.attempt_id, job_id=each.job_id, owner_id=each.owner_id, amount=amount, fees=fees
        )
        if isinstance(made, Refusal):
            raise to_error(made)
        postings.append(made)
        for leg in made.legs:
            fees[leg.source] -= leg.amount
    for outcome in await ledger_store.post(conn, postings):
        if isinstance(outcome, Refusal):
            raise to_error(outcome)
    log.info("time_made_good count=%d microcredits=%d", len(due), sum(amount for _, amount in due))
