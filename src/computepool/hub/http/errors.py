"""One table from error class to status."""

from __future__ import annotations

import asyncpg
import msgspec
from starlette.responses import Response

from computepool.core import errors
from computepool.core.jobs.state import IllegalTransition
from computepool.core.ledger.amount import InvalidAmount
from computepool.core.ledger.dispute import DisputeRefused
from computepool.core.ledger.refusal import InsufficientCredits, PostingMismatch, PostingRefused
from computepool.core.networks import errors as network_errors
from computepool.core.payments import errors as payment_errors
from computepool.hub.http.replies import Reply
from computepool.settings import InvalidSettings
from computepool.wire.errors import ErrorBody

STATUS: dict[type[errors.ComputePoolError], int] = {
    errors.ComputePoolError: 500,
    errors.InvalidRequest: 400,
    errors.InvalidSpec: 400,
    errors.PayloadTooLarge: 413,
    errors.Unauthenticated: 401,
    errors.Forbidden: 403,
    errors.SignUpClosed: 403,
    errors.SyntheticRefused: 403,
    errors.AccountSuspended: 403,
    errors.InputBlocked: 403,
    errors.NotFound: 404,
    errors.Conflict: 409,
    errors.IdempotencyMismatch: 409,
    errors.StaleLease: 409,
    errors.StaleBoot: 409,
    errors.NameTaken: 409,
    errors.NodeRemoved: 409,
    errors.VersionMismatch: 409,
    errors.LimitExceeded: 429,
    errors.RateLimited: 429,
    errors.NewNodesLimited: 429,
    errors.HubUnavailable: 503,
    errors.StoreError: 507,
    InvalidSettings: 500,
    IllegalTransition: 500,
    InvalidAmount: 400,
    InsufficientCredits: 402,
    PostingMismatch: 409,
    PostingRefused: 409,
    DisputeRefused: 409,
    network_errors.DataRefused: 400,
    network_errors.InferenceFailed: 400,
    network_errors.NoLiveRun: 409,
    network_errors.NoPlacement: 409,
    network_errors.RunElsewhere: 503,
    payment_errors.CurrencyMismatch: 400,
    payment_errors.PayoutBelowMinimum: 400,
    payment_errors.SignatureRefused: 401,
    payment_errors.AccountFrozen: 403,
    payment_errors.AccountOwes: 409,
    payment_errors.PaymentRefused: 409,
    payment_errors.PayoutDetailsMissing: 409,
    payment_errors.CashLimitExceeded: 429,
    payment_errors.PayoutCoolingOff: 429,
    payment_errors.ProviderUnavailable: 503,
}

# The database is away, is ending, or asks us to try again: nothing the caller did.
AWAY = (
    OSError,
    TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.PostgresConnectionError,
    asyncpg.exceptions.OperatorInterventionError,
    asyncpg.exceptions.InsufficientResourcesError,
    asyncpg.exceptions.TransactionRollbackError,
    asyncpg.exceptions.LockNotAvailableError,
    # A failover, or a migration under our feet: the next try finds another connection or plan.
    asyncpg.exceptions.ReadOnlySQLTransactionError,
    asyncpg.exceptions.InvalidCachedStatementError,
    # What a connection says that was closed under a running transaction.
    asyncpg.exceptions.InternalClientError,
)


def to_error_body(error: errors.ComputePoolError) -> ErrorBody:
    return ErrorBody(code=error.code, message=error.message, retryable=error.retryable, details=error.details)


def to_refusal(error: errors.ComputePoolError) -> Reply:
    headers: tuple[tuple[bytes, bytes], ...] = ()
    if error.retryable:
        headers = ((b"retry-after", str(error.details.get("retry_after_seconds", 1)).encode()),)
    if isinstance(error, errors.Unauthenticated):
        headers += ((b"www-authenticate", b"Bearer"),)
    return Reply(msgspec.json.encode(to_error_body(error)), STATUS[type(error)], headers)


def to_response(error: errors.ComputePoolError) -> Response:
    """The same for Starlette, which alone answers where there is no route."""
    refusal = to_refusal(error)
    headers = {name.decode(): value.decode() for name, value in refusal.headers}
    return Response(refusal.body, refusal.status, headers, media_type="application/json")
