"""What both ends of a gRPC call agree on besides the messages: versions, limits, metadata, how errors travel.

Needs no gRPC itself. The messages stand in proto/ and, generated, in wire/pb.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterable, Mapping
from typing import Any

from computepool.core.errors import ComputePoolError, HubUnavailable, InvalidRequest, VersionMismatch, leaves

# A different major version is refused; of two minor versions the lower one is spoken.
API_VERSION = (1, 0)

# One frame's content. Larger ones block the loops that carry them.
FRAME_BYTES_MAX = 256 * 1024
# A whole frame: content and header.
FRAME_WIRE_BYTES_MAX = FRAME_BYTES_MAX + 16 * 1024
# Any message of any call.
MESSAGE_BYTES_MAX = 8 * 1024 * 1024
# How long a stream may be open before it has said who it is.
HELLO_SECONDS = 5.0

# Metadata of calls. Keys and node tokens come as `authorization: Bearer ...`, as over REST.
AUTHORIZATION = "authorization"
VERSION = "computepool-api-version"
# A host names its lease instead of a key.
ATTEMPT_ID = "attempt-id"
LEASE_SECRET = "lease-secret"
# Metadata of refusals.
ERROR_CODE = "computepool-code"
ERROR_RETRYABLE = "computepool-retryable"
ERROR_DETAILS = "computepool-details-bin"

_KEEPALIVE = (
    # A peer whose machine has gone without a word is noticed within interval and timeout together. The timeout has
    # two names; with the first alone, gRPC waits for its own 60 s.
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
_SIZES = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
)
CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    *_KEEPALIVE,
    *_SIZES,
    # Who calls decides when to dial again.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    # A proxy that the environment names is for web pages; peers are dialled directly.
    ("grpc.enable_http_proxy", 0),
)
SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    *_KEEPALIVE,
    *_SIZES,
    # A port that somebody has already is an error, not something to share.
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
)


def agree_version(major: int, minor: int) -> tuple[int, int]:
    """The version that both sides speak, given the caller's. Raises VersionMismatch with what to do."""
    ours = f"{API_VERSION[0]}.{API_VERSION[1]}"
    if major != API_VERSION[0]:
        older = "the caller" if major < API_VERSION[0] else "the called"
        raise VersionMismatch(
            f"The caller speaks version {major}.{minor} of the protocol, this side {ours}; major versions must "
            f"agree. Upgrade {older}.",
            version=ours,
        )
    return (major, min(minor, API_VERSION[1]))


def check_version_text(text: str) -> None:
    """As it stands in a call's metadata: `1.0`."""
    major, _, minor = text.partition(".")
    if not (major.isdecimal() and minor.isdecimal() and len(text) < 12):
        raise InvalidRequest(f"{VERSION} is not a version such as {API_VERSION[0]}.{API_VERSION[1]}: {text[:40]!r}.")
    agree_version(int(major), int(minor))


def prove_address(lease_secret: str, nonce: str) -> str:
    """Said by whoever listens at an address and holds this lease; shows the secret to nobody."""
    return hmac.digest(lease_secret.encode(), nonce.encode(), "sha256").hex()


def to_error_metadata(error: ComputePoolError) -> tuple[tuple[str, str | bytes], ...]:
    return (
        (ERROR_CODE, error.code),
        (ERROR_RETRYABLE, "true" if error.retryable else "false"),
        (ERROR_DETAILS, json.dumps(error.details, default=str).encode()),
    )


def from_error_metadata(metadata: Iterable[tuple[str, Any]] | None, message: str) -> ComputePoolError:
    """The error as its class. What no hub of ours has said is "hub unavailable": it may pass."""
    said: Mapping[str, Any] = dict(metadata or ())
    if ERROR_CODE not in said:
        return HubUnavailable(f"The call failed on its way: {message}")
    retryable = said.get(ERROR_RETRYABLE) == "true"
    known = leaves().get(said[ERROR_CODE], HubUnavailable if retryable else InvalidRequest)
    try:
        details = json.loads(said.get(ERROR_DETAILS, b"{}"))
    except ValueError:
        details = {}
    return known(message, **details)
