"""What the operator looks at before money moves: everybody's top-ups and payouts, and where they go."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from computepool.core.payments.payout import PayoutState
from computepool.core.payments.top_up import TopUpState
from computepool.hub.store import payments as store
from computepool.hub.store.connect import Pool
from computepool.hub.store.payments import PayoutDetails, StoredPayout, StoredTopUp


@dataclass(frozen=True, slots=True)
class AddressedPayout:
    payout: StoredPayout
    # Those that it was asked for with.
    details: PayoutDetails


async def list_top_ups(
    pool: Pool, *, state: TopUpState, reference: str, before: UUID, limit: int
) -> list[StoredTopUp]:
    """Newest first."""
    async with pool.acquire() as conn:
        return await store.list_top_ups_in_state(conn, state=state, reference=reference, before=before, limit=limit)


async def list_payouts(pool: Pool, *, state: PayoutState, after: UUID, limit: int) -> list[AddressedPayout]:
    """Oldest first."""
    async with pool.acquire() as conn:
        found = await store.list_payouts_in_state(conn, state=state, after=after, limit=limit)
        details = await store.list_details(conn, [payout.details_id for payout in found])
    return [AddressedPayout(payout, details[payout.details_id]) for payout in found]
