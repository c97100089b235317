"""Signed messages between a hub and a payment provider: HMAC-SHA256 over the time and the raw bytes of the body.

The header reads `t=<unix seconds>,v1=<hex>`, with one v1 per secret: while secrets are changed, both sides know two.
What cannot be verified is not parsed.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from computepool.core.errors import InvalidRequest
from computepool.core.payments.cash import is_currency
from computepool.core.payments.claim import Claim
from computepool.core.payments.errors import SignatureRefused

SIGNATURE_HEADER = "ComputePool-Signature"
# A message may be this old, or this far ahead of our clock; who repeats it later signs it anew.
REPLAY_WINDOW_SECONDS = 300
BODY_BYTES_MAX = 65_536
HEADER_LENGTH_MAX = 1_000
SIGNATURES_MAX = 5
SECRET_BYTES_MIN = 16
# Far above any sum of money, far below what a database cannot hold.
AMOUNT_MINOR_MAX = 10**15

_TIME = re.compile(r"[0-9]{1,12}\Z", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}\Z", re.ASCII)
# Ids that begin with `~` are our own: what we asked for, and what the operator says.
_EVENT_ID = re.compile(r"[A-Za-z0-9_.:\-]{1,200}\Z", re.ASCII)
_KIND = re.compile(r"[a-z_.]{1,60}\Z", re.ASCII)
_REFERENCE = re.compile(r"[\x20-\x7e]{0,200}\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class ProviderEvent:
    # Unique per provider: the same id again is the same event again.
    id: str
    claim: Claim
    # Of the raw body, to tell a repetition from another event under the same id.
    body_sha256: bytes


def check_secrets(secrets: Sequence[bytes]) -> None:
    """Raises InvalidRequest for one that could be guessed; an empty one would let everybody in."""
    if any(len(secret) < SECRET_BYTES_MIN for secret in secrets):
        raise InvalidRequest(f"A secret shared with a payment provider has at least {SECRET_BYTES_MIN} bytes.")


def sign(secret: bytes, *, body: bytes, unix_seconds: int) -> str:
    return hmac.new(secret, b"%d." % unix_seconds + body, hashlib.sha256).hexdigest()


def to_signature_header(secrets: Sequence[bytes], *, body: bytes, unix_seconds: int) -> str:
    signatures = [f"v1={sign(secret, body=body, unix_seconds=unix_seconds)}" for secret in secrets]
    return ",".join([f"t={unix_seconds}", *signatures])


def verify(
    header: str,
    body: bytes,
    *,
    secrets: Sequence[bytes],
    now: datetime,
    window_seconds: int = REPLAY_WINDOW_SECONDS,
) -> None:
    """Raises SignatureRefused unless one of the secrets signed these very bytes within the window."""
    if len(body) > BODY_BYTES_MAX:
        raise SignatureRefused(f"The body is larger than {BODY_BYTES_MAX} bytes.", why="too_large")
    signed_at, signatures = _read_header(header)
    if not _matches_any(signatures, [sign(secret, body=body, unix_seconds=signed_at) for secret in secrets]):
        raise SignatureRefused("The signature does not match the body and its time.", why="forged")
    if abs(now.timestamp() - signed_at) > window_seconds:
        raise SignatureRefused(
            f"Signed more than {window_seconds} s from now. Sign the message anew when you repeat it.", why="late"
        )


def _read_header(header: str) -> tuple[int, list[str]]:
    parts = [part.partition("=") for part in header.split(",")] if len(header) <= HEADER_LENGTH_MAX else []
    times = [value for name, _, value in parts if name == "t"]
    signatures = [value for name, _, value in parts if name == "v1"]
    if (
        len(times) != 1
        or not _TIME.match(times[0])
        or not 1 <= len(signatures) <= SIGNATURES_MAX
        or not all(_DIGEST.match(signature) for signature in signatures)
    ):
        raise SignatureRefused(f"{SIGNATURE_HEADER} must read t=<unix seconds>,v1=<hex>.", why="unreadable")
    return int(times[0]), signatures


def _matches_any(given: Sequence[str], right: Sequence[str]) -> bool:
    """Compares all with all in constant time, so that nothing is learnt from how long it took."""
    matches = 0
    for signature in given:
        for expected in right:
            matches += hmac.compare_digest(signature, expected)
    return matches > 0


def parse_event(body: bytes) -> ProviderEvent:
    """Of a verified body. Fields that we do not know are ignored: providers add some."""
    try:
        fields = json.loads(body, object_pairs_hook=_to_fields, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"The event is not JSON that can be understood: {error}.") from None
    if not isinstance(fields, dict):
        raise InvalidRequest("The event is not a JSON object.")
    claim = Claim(
        kind=_get_text(fields, "kind", _KIND),
        subject_id=_get_id(fields, "subject_id"),
        currency=_get_currency(fields),
        amount_minor=_get_amount(fields),
        reference=_get_text(fields, "reference", _REFERENCE),
    )
    return ProviderEvent(_get_text(fields, "id", _EVENT_ID), claim, hashlib.sha256(body).digest())


def _to_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        # Two readers could take two different values for true.
        raise ValueError("a field stands twice")
    return fields


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _get_text(fields: dict[str, Any], name: str, pattern: re.Pattern[str]) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not pattern.match(value):
        raise InvalidRequest(f"The event's {name} is missing or is not what a {name} looks like.")
    return value


def _get_id(fields: dict[str, Any], name: str) -> UUID:
    value = fields.get(name)
    try:
        return UUID(value) if isinstance(value, str) else UUID("")
    except ValueError:
        raise InvalidRequest(f"The event's {name} is missing or is not a UUID.") from None


def _get_currency(fields: dict[str, Any]) -> str:
    value = fields.get("currency")
    if not isinstance(value, str) or not is_currency(value):
        raise InvalidRequest("The event's currency is missing or is not an ISO 4217 code such as INR.")
    return value


def _get_amount(fields: dict[str, Any]) -> int:
    value = fields.get("amount_minor")
    # Neither 1.0 nor true is an amount.
    if type(value) is not int or not 0 < value <= AMOUNT_MINOR_MAX:
        raise InvalidRequest(f"The event's amount_minor is a whole number from 1 to {AMOUNT_MINOR_MAX}.")
    return value
