"""The hub's own keys: signs and verifies tokens, derives lease secrets and keys to seal with.

Two signing keys may be live at once.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from computepool import clock, entropy
from computepool.core.errors import Conflict, NotFound, Unauthenticated
from computepool.core.ids import AttemptId, NodeId
from computepool.hub.store import hub as store
from computepool.hub.store.connect import Pool
from computepool.wire.nodes import HubKey

ALGORITHM = "EdDSA"
NODE_TOKEN_TYPE = "computepool-node+jwt"
JOB_TOKEN_TYPE = "computepool-job+jwt"
KEY_SET_TYPE = "computepool-keys+jwt"
SEAT_TOKEN_TYPE = "computepool-seat+jwt"


@dataclass(frozen=True, slots=True)
class SigningKey:
    kid: str
    private: Ed25519PrivateKey
    public: Ed25519PublicKey
    public_raw: bytes
    signs_from: datetime
    signs: bool


class Keyring:
    """Keys as they stood when last read; `refresh` is called on a timer, so that a rotation reaches every hub."""

    def __init__(self, hub_id: UUID, *, pepper: str = "") -> None:
        self.hub_id = hub_id
        # From outside of the database, for keys that are derived: who has its backup alone cannot derive them.
        self._pepper = pepper.encode()
        self._signing: dict[str, SigningKey] = {}
        # The same object while the signing keys are the same: whoever remembers what they signed looks at it.
        self.kids: frozenset[str] = frozenset()
        self._lease_key = b""

    async def refresh(self, pool: Pool) -> None:
        async with pool.acquire() as conn:
            rows = await store.list_keys(conn)
        self._signing = {row.kid: _to_signing(row) for row in rows if row.purpose == "signing"}
        if self.kids != self._signing.keys():
            self.kids = frozenset(self._signing)
        self._lease_key = next(row.secret for row in rows if row.purpose == "lease")

    def sign(self, claims: Mapping[str, Any], *, typ: str) -> str:
        # The newest key whose time has come.
        key = [k for k in self._signing.values() if k.signs][-1]
        return _encode(claims, key, typ)

    def verify(self, token: str, *, typ: str, audience: str) -> dict[str, Any]:
        header = _read_header(token, typ)
        key = self._signing.get(header.get("kid", ""))
        if key is None:
            raise Unauthenticated("The token was signed by a key that this hub does not know. Renew it.")
        return decode_token(token, key.public, audience=audience)

    def lease_secret(self, attempt_id: AttemptId) -> str:
        """Derived, not stored: whoever can read the table still cannot finish an attempt."""
        digest = hmac.digest(self._lease_key, attempt_id.bytes, "sha256")
        return base64.urlsafe_b64encode(digest[:18]).decode()

    def is_lease_secret(self, attempt_id: AttemptId, secret: str) -> bool:
        return hmac.compare_digest(self.lease_secret(attempt_id).encode(), secret.encode())

    def derive_key(self, purpose: bytes) -> bytes:
        """32 bytes for this purpose and no other, the same in every hub with the same pepper. Never stored."""
        return hmac.digest(self._lease_key, purpose + b"\0" + self._pepper, "sha256")

    @property
    def audit_key(self) -> bytes:
        """What is drawn with it nobody can know before, and the hub can show afterwards."""
        return hmac.digest(self._lease_key, b"audits", "sha256")

    def public_keys(self) -> list[HubKey]:
        return [HubKey(kid=k.kid, public_key=to_base64(k.public_raw)) for k in self._signing.values()]

    def newest_signs_from(self) -> datetime:
        return max(key.signs_from for key in self._signing.values())

    def vouch_for_keys(self, node_id: NodeId) -> list[str]:
        """The key set, signed once by each live key: whichever an agent has pinned vouches for the others."""
        now = int(clock.unix_seconds())
        keys = [{"kid": k.kid, "public_key": k.public_key} for k in self.public_keys()]
        claims = {"iss": str(self.hub_id), "aud": str(node_id), "iat": now, "exp": now + 600, "hub_keys": keys}
        return [_encode(claims, key, KEY_SET_TYPE) for key in self._signing.values()]


async def ensure_keys(pool: Pool) -> None:
    """Makes the first keys; hubs that start together agree on one."""
    async with pool.acquire() as conn, conn.transaction():
        await store.lock_keys(conn)
        purposes = {row.purpose for row in await store.list_keys(conn)}
        if "signing" not in purposes:
            await _insert_signing_key(conn, announce_seconds=0)
        if "lease" not in purposes:
            await store.insert_key(
                conn,
                kid=f"lease-{entropy.new_id()}",
                purpose="lease",
                secret=entropy.new_bytes(32),
                public_key=None,
                announce_seconds=0,
            )


async def rotate_keys(pool: Pool, *, announce_seconds: float) -> None:
    """Adds a key that signs after `announce_seconds`; the old ones are accepted for as long again after that."""
    async with pool.acquire() as conn, conn.transaction():
        await store.lock_keys(conn)
        old = [row.kid for row in await store.list_keys(conn) if row.purpose == "signing"]
        await _insert_signing_key(conn, announce_seconds=announce_seconds)
        await store.retire_keys(conn, kids=old, retire_seconds=2 * announce_seconds)


async def revoke_key(pool: Pool, *, kid: str) -> None:
    """A key that may be in wrong hands counts no more, from now on; the newest of the others signs in its place.

    Nodes must have heard of that one before: they believe what a pinned key vouches for and nothing else. So the last
    key cannot be revoked.
    """
    async with pool.acquire() as conn, conn.transaction():
        await store.lock_keys(conn)
        live = [row.kid for row in await store.list_keys(conn) if row.purpose == "signing"]
        others = [each for each in live if each != kid]
        if kid not in live:
            raise NotFound("This hub has no such key.")
        if not others:
            raise Conflict(
                "This is the hub's only key. Rotate, give nodes the time to renew their tokens, then revoke."
            )
        await store.revoke_key(conn, kid=kid)
        await store.keep_key(conn, kid=others[-1])


def decode_token(token: str, key: Ed25519PublicKey, *, audience: str, require: Sequence[str] = ()) -> dict[str, Any]:
    """Pinned algorithm, required audience and expiry; anything else is refused with one and the same error."""
    try:
        claims: dict[str, Any] = jwt.decode(
            token,
            key,
            algorithms=[ALGORITHM],
            audience=audience,
            options={"require": ["exp", "aud", *require]},
            leeway=5,
        )
    except jwt.PyJWTError as error:
        raise Unauthenticated(f"The token does not hold: {error}. Renew it.") from None
    return claims


def to_base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def from_base64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _read_header(token: str, typ: str) -> dict[str, Any]:
    try:
        header: dict[str, Any] = jwt.get_unverified_header(token)
    except jwt.PyJWTError:
        raise Unauthenticated("This is not a token of this hub.") from None
    if header.get("alg") != ALGORITHM or header.get("typ") != typ:
        raise Unauthenticated("This token was made for something else.")
    return header


def _encode(claims: Mapping[str, Any], key: SigningKey, typ: str) -> str:
    """A compact JWS (RFC 7515). PyJWT does the same in twice the time, and every answer to a node needs one."""
    header = msgspec.json.encode({"alg": ALGORITHM, "kid": key.kid, "typ": typ})
    signed = _to_base64_bytes(header) + b"." + _to_base64_bytes(msgspec.json.encode(claims))
    return (signed + b"." + _to_base64_bytes(key.private.sign(signed))).decode()


def _to_base64_bytes(raw: bytes) -> bytes:
    return base64.urlsafe_b64encode(raw).rstrip(b"=")


def _to_signing(row: store.HubKeyRow) -> SigningKey:
    private = Ed25519PrivateKey.from_private_bytes(row.secret)
    return SigningKey(row.kid, private, private.public_key(), row.public_key or b"", row.signs_from, row.signs)


async def _insert_signing_key(conn: Any, *, announce_seconds: float) -> None:
    private = Ed25519PrivateKey.generate()
    await store.insert_key(
        conn,
        kid=str(entropy.new_id()),
        purpose="signing",
        secret=private.private_bytes_raw(),
        public_key=private.public_key().public_bytes_raw(),
        announce_seconds=announce_seconds,
    )
