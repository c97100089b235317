"""Receipts: a node's signed statement of the results of one call, checked before anybody is paid for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from computepool.core.ids import AttemptId
from computepool.hub.store import events as event_store
from computepool.hub.store import receipts as store
from computepool.hub.store.connect import Pool
from computepool.hub.store.events import NewEvent
from computepool.hub.store.receipts import ReceiptState, StoredReceipt

RECEIPT_TYPE = "computepool-receipt+jwt"
CLOCK_LEEWAY_SECONDS = 600
REASON_LENGTH_MAX = 200


async def verify_receipts(pool: Pool, *, hub_id: UUID, limit: int) -> int:
    """Looks at receipts that nobody has looked at. Returns how many."""
    async with pool.acquire() as conn, conn.transaction():
        receipts = await store.take_unverified(conn, limit=limit)
        if not receipts:
            return 0
        covered = await store.list_covered(conn, [receipt.id for receipt in receipts])
        faults = {r.id: find_fault(r, covered.get(r.id, {}), hub_id=hub_id) for r in receipts}
        states = {id: ReceiptState.REFUSED if fault else ReceiptState.VERIFIED for id, fault in faults.items()}
        await store.set_states(conn, states)
        refused = [receipt for receipt in receipts if faults[receipt.id]]
        await event_store.record_events(
            conn,
            [
                NewEvent(kind="receipt_refused", node_id=r.node_id, body={"receipt": str(r.id), "why": faults[r.id]})
                for r in refused
            ],
        )
    return len(receipts)


async def is_overdue(pool: Pool, *, seconds: float) -> bool:
    """Whether some receipt has waited for longer than this."""
    async with pool.acquire() as conn:
        return await store.has_unverified(conn, seconds=seconds)


def find_fault(receipt: StoredReceipt, results: Mapping[AttemptId, bytes], *, hub_id: UUID) -> str | None:
    """Why the receipt does not vouch for all of these results, or nothing."""
    try:
        if jwt.get_unverified_header(receipt.token).get("typ") != RECEIPT_TYPE:
            return f"its typ is not {RECEIPT_TYPE}"
        claims = jwt.decode(
            receipt.token,
            Ed25519PublicKey.from_public_bytes(receipt.public_key),
            algorithms=["EdDSA"],
            audience=str(hub_id),
            issuer=str(receipt.node_id),
            # A home PC's clock may run ahead; what the receipt says does not hang on the minute.
            leeway=CLOCK_LEEWAY_SECONDS,
        )
    except Exception as error:
        # Whatever it is: a node may sign what it likes, and one that cannot be judged must not hold up the others.
        # Nor may its own words: some of what JSON can say, the database cannot store.
        words = str(error).encode("ascii", "replace").decode().replace("\0", "?")
        return f"it does not hold: {words[:REASON_LENGTH_MAX]}"
    missing = [id for id, sha256 in results.items() if _read_result(claims, id) != sha256.hex()]
    return f"it says nothing of attempt {missing[0]}, or something else" if missing else None


def _read_result(claims: Mapping[str, Any], attempt_id: AttemptId) -> str | None:
    results = claims.get("results")
    result = results.get(str(attempt_id)) if isinstance(results, dict) else None
    return result.get("result_sha256") if isinstance(result, dict) else None
