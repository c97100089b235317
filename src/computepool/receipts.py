"""Receipts: a node's signed word on the results of one call, and the one rule by which it holds.

The hub goes by it before anybody is paid; whoever has kept a receipt goes by it later, without a hub. Asks nobody and
reads no files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

RECEIPT_TYPE = "computepool-receipt+jwt"
CLOCK_LEEWAY_SECONDS = 600
REASON_LENGTH_MAX = 200
# A node cannot put a date to what it has signed for: a receipt that paid it holds for ever.
_DECODING: Any = {"verify_exp": False}


class ReceiptRefused(Exception):
    """This node has not signed this for this hub; the text says what is wrong."""


def find_fault(
    token: str, results: Mapping[UUID, str], *, node_id: UUID, public_key: bytes, hub_id: UUID
) -> str | None:
    """Why the receipt does not vouch for all of these results, or nothing. They are hashes by attempt."""
    try:
        vouched = read_results(token, node_id=node_id, public_key=public_key, hub_id=hub_id)
    except ReceiptRefused as refusal:
        return str(refusal)
    missing = [id for id, sha256 in results.items() if vouched.get(str(id)) != sha256]
    return f"it says nothing of attempt {missing[0]}, or something else" if missing else None


def read_results(token: str, *, node_id: UUID, public_key: bytes, hub_id: UUID) -> dict[str, str]:
    """What the node vouches for: from attempts' ids to the hashes of their results. Raises ReceiptRefused.

    `public_key` is the node's, the 32 raw bytes of an Ed25519 key.
    """
    try:
        typ = jwt.get_unverified_header(token).get("typ")
        claims = jwt.decode(
            token,
            Ed25519PublicKey.from_public_bytes(public_key),
            algorithms=["EdDSA"],
            audience=str(hub_id),
            issuer=str(node_id),
            # A home PC's clock may run ahead; what the receipt says does not hang on the minute.
            leeway=CLOCK_LEEWAY_SECONDS,
            options=_DECODING,
        )
    except Exception as error:
        # Whatever it is: a node may sign what it likes, and one that cannot be judged must not hold up the others.
        # Nor may its own words: some of what JSON can say, the database cannot store.
        words = str(error).encode("ascii", "replace").decode().replace("\0", "?")
        raise ReceiptRefused(f"it does not hold: {words[:REASON_LENGTH_MAX]}") from None
    if typ != RECEIPT_TYPE:
        raise ReceiptRefused(f"its typ is not {RECEIPT_TYPE}")
    return _list_results(claims.get("results"))


def _list_results(results: object) -> dict[str, str]:
    if not isinstance(results, dict):
        return {}
    hashes = {id: result.get("result_sha256") for id, result in results.items() if isinstance(result, dict)}
    return {str(id): sha256 for id, sha256 in hashes.items() if isinstance(sha256, str)}
