"""Receipts: the node's signed statement of a result, checked before the result counts."""

from __future__ import annotations

from uuid import UUID

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from computepool.core.errors import InvalidRequest

RECEIPT_TYPE = "computepool-receipt+jwt"
CLOCK_LEEWAY_SECONDS = 600


def verify_receipt(
    receipt: str, key: Ed25519PublicKey, *, hub_id: UUID, node_id: UUID, attempt_id: UUID, result_sha256: str
) -> None:
    try:
        if jwt.get_unverified_header(receipt).get("typ") != RECEIPT_TYPE:
            raise InvalidRequest(f"The receipt's typ must be {RECEIPT_TYPE}.")
        claims = jwt.decode(
            receipt,
            key,
            algorithms=["EdDSA"],
            audience=str(hub_id),
            issuer=str(node_id),
            # A home PC's clock may run ahead; what the receipt says does not hang on the minute.
            leeway=CLOCK_LEEWAY_SECONDS,
        )
    except jwt.PyJWTError as error:
        raise InvalidRequest(f"The receipt does not hold: {error}.") from None
    if claims.get("jti") != str(attempt_id) or claims.get("result_sha256") != result_sha256:
        raise InvalidRequest("The receipt speaks of another attempt or result.")
