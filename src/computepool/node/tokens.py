"""Signed texts: job tokens and seat tokens come in and are verified, assertions and receipts go out.

Knows EdDSA and nothing else: whatever a token's header says, no other algorithm is ever tried.
Refuses to read files or the clock; keys and times are arguments.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from computepool import entropy
from computepool.receipts import RECEIPT_TYPE
from computepool.wire.attempts import Completion
from computepool.wire.nodes import HubKey

ALGORITHM = "EdDSA"
JOB_TOKEN_TYPE = "computepool-job+jwt"
SEAT_TOKEN_TYPE = "computepool-seat+jwt"
KEY_SET_TYPE = "computepool-keys+jwt"
ASSERTION_SECONDS = 60
# Home PCs' clocks wander. A token that ran out a minute ago by our clock may be good by the hub's.
CLOCK_LEEWAY_SECONDS = 60

# Every claim is judged below, by the caller's clock; PyJWT is trusted with the signature and the audience only.
_DECODING: Any = {
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "verify_sub": False,
    "verify_jti": False,
}


class TokenRefused(Exception):
    """The token does not prove that the hub wants this order run here; the text says what is wrong."""


@dataclass(frozen=True, slots=True)
class JobToken:
    """What the hub signed for this node: which orders it may begin, and until when."""

    # Unix seconds.
    expires_at: float
    # From an attempt's id to the sha256 of its order.
    orders: Mapping[str, object]
    # This node: orders of others may be named beside its own.
    node_id: UUID | None = None

    def check(self, attempt_id: UUID, order: str) -> None:
        """Raises TokenRefused unless the hub wants exactly this order run under this attempt."""
        promised = self.orders.get(str(attempt_id))
        if promised is None:
            raise TokenRefused("the job token does not name this attempt")
        found = hashlib.sha256(order.encode()).hexdigest()
        if not isinstance(promised, str) or not hmac.compare_digest(promised.encode(), found.encode()):
            raise TokenRefused("the order is not the one that the hub signed")


# Allows nothing: for attempts that are not to be begun, because an earlier agent began them.
NO_TOKEN = JobToken(expires_at=0.0, orders={})


def verify_job_token(token: str, *, node_id: UUID, hub_keys: Sequence[HubKey], now_seconds: float) -> JobToken:
    """One check for all assignments of an answer. Raises TokenRefused unless all of it holds."""
    claims = _verify(token, audience=str(node_id), hub_keys=hub_keys, token_type=JOB_TOKEN_TYPE)
    expires_at = _check_expiry(claims, now_seconds)
    orders = claims.get("orders")
    if not isinstance(orders, dict):
        raise TokenRefused("the job token names no orders")
    return JobToken(expires_at, orders, node_id)


@dataclass(frozen=True, slots=True)
class SeatToken:
    """What the hub signed for a host of a run: where it sits, and in which epoch."""

    seat: str
    epoch: int


def verify_seat_token(token: str, *, run_id: str, hub_keys: Sequence[HubKey], now_seconds: float) -> SeatToken:
    """Raises TokenRefused unless the hub made it for this run, a short while ago."""
    claims = _verify(token, audience=run_id, hub_keys=hub_keys, token_type=SEAT_TOKEN_TYPE)
    _check_expiry(claims, now_seconds)
    seat, epoch = claims.get("sub"), claims.get("epoch")
    if not isinstance(seat, str) or isinstance(epoch, bool) or not isinstance(epoch, int):
        raise TokenRefused("the seat token names no seat and epoch")
    return SeatToken(seat, epoch)


def find_vouched_keys(
    signed: Sequence[str], *, node_id: UUID, pinned: Sequence[HubKey], now_seconds: float
) -> list[HubKey] | None:
    """The hub's new key list, if one entry is signed by a key that this node has pinned already."""
    for entry in signed:
        try:
            claims = _verify(entry, audience=str(node_id), hub_keys=pinned, token_type=KEY_SET_TYPE)
            # An old list would bring back a key that was withdrawn for a reason.
            _check_expiry(claims, now_seconds)
            keys = msgspec.convert(claims.get("hub_keys"), list[HubKey])
            for key in keys:
                to_public_key(key.public_key)
        except (TokenRefused, msgspec.ValidationError):
            continue
        if keys:
            return keys
    return None


def make_assertion(key: Ed25519PrivateKey, *, node_id: UUID, hub_id: UUID, now_seconds: float) -> str:
    """Proves to the hub that the caller holds the node's private key. Each is good for one minute."""
    issued_at = int(now_seconds)
    claims = {
        "iss": str(node_id),
        "sub": str(node_id),
        "aud": str(hub_id),
        "iat": issued_at,
        "exp": issued_at + ASSERTION_SECONDS,
        "jti": entropy.new_secret(16),
    }
    return jwt.encode(claims, key, algorithm=ALGORITHM, headers={"typ": "JWT"})


def make_receipt(
    key: Ed25519PrivateKey, *, node_id: UUID, hub_id: UUID, completions: Sequence[Completion], now_seconds: float
) -> str:
    """The node's signed word on all results of one call; empty when nothing succeeded.

    Whoever signs a wrong one cannot deny it later.
    """
    results = {str(each.attempt_id): _to_result(each) for each in completions if each.cause is None}
    if not results:
        return ""
    claims = {"iss": str(node_id), "aud": str(hub_id), "iat": int(now_seconds), "results": results}
    return jwt.encode(claims, key, algorithm=ALGORITHM, headers={"typ": RECEIPT_TYPE})


def _to_result(completion: Completion) -> dict[str, object]:
    return {
        "result_sha256": completion.result_sha256,
        "run_seconds": completion.usage.run_seconds,
        "exit_code": completion.exit_code,
    }


def to_key_text(key: Ed25519PublicKey) -> str:
    return base64.urlsafe_b64encode(key.public_bytes_raw()).rstrip(b"=").decode()


def to_public_key(text: str) -> Ed25519PublicKey:
    try:
        return Ed25519PublicKey.from_public_bytes(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (ValueError, binascii.Error):
        raise TokenRefused("a hub key is not a base64url Ed25519 key") from None


def _check_expiry(claims: dict[str, Any], now_seconds: float) -> float:
    expires_at = claims.get("exp")
    if isinstance(expires_at, bool) or not isinstance(expires_at, (int, float)):
        raise TokenRefused("the token has no expiry")
    if now_seconds > expires_at + CLOCK_LEEWAY_SECONDS:
        raise TokenRefused(f"the token ran out {now_seconds - expires_at:.0f} s ago by this machine's clock")
    return float(expires_at)


def _verify(token: str, *, audience: str, hub_keys: Sequence[HubKey], token_type: str) -> dict[str, Any]:
    try:
        header = jwt.get_unverified_header(token)
    except jwt.PyJWTError:
        raise TokenRefused("the token cannot be read") from None
    if header.get("alg") != ALGORITHM:
        raise TokenRefused(f"the token's algorithm is {header.get('alg')!r}; only {ALGORITHM} is accepted")
    if header.get("typ") != token_type:
        raise TokenRefused(f"the token's type is {header.get('typ')!r}, not {token_type!r}")
    pinned = next((key for key in hub_keys if key.kid == header.get("kid")), None)
    if pinned is None:
        raise TokenRefused("the token is signed by a key that this node has not pinned")
    try:
        claims = jwt.decode(
            token,
            key=to_public_key(pinned.public_key),
            algorithms=[ALGORITHM],
            audience=audience,
            options=_DECODING,
        )
    except jwt.InvalidAudienceError:
        raise TokenRefused("the token is meant for another node or run") from None
    except jwt.PyJWTError as error:
        raise TokenRefused(f"the token does not verify: {error}") from None
    return dict(claims)
