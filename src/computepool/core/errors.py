"""Everything that can go wrong and that a caller can act on.

    ComputePoolError
    ├── InvalidRequest             what was sent cannot be understood or breaks a limit
    │   ├── InvalidSpec            a job's description breaks a rule
    │   └── PayloadTooLarge        more bytes than this call takes
    ├── Unauthenticated            no credential, or one that does not hold
    ├── Forbidden                  the credential holds but does not reach this far
    │   ├── SignUpClosed           this hub takes no new accounts (or none without an invite)
    │   ├── SyntheticRefused       a synthetic node at a hub that is not a demo
    │   ├── AccountSuspended
    │   └── InputBlocked           the operator has blocked a file or script that the job names
    ├── NotFound                   absent, or not yours: the two look the same on purpose
    ├── Conflict                   the state of affairs forbids it
    │   ├── IdempotencyMismatch    this key was used with another body
    │   ├── StaleLease             another attempt owns this slice, or it is finished
    │   ├── StaleBoot              a newer start of this agent has called already
    │   ├── NameTaken
    │   ├── NodeRemoved
    │   └── VersionMismatch        the two sides of a call speak different major versions of the protocol
    ├── LimitExceeded              an account's limit, with the time to come back
    │   ├── RateLimited
    │   └── NewNodesLimited        an owner or a network brings more new nodes than may come
    ├── HubUnavailable             the hub cannot answer now (database away, shutting down)
    └── StoreError                 the embedded database cannot start or go on; the message says what to do

Each leaf has a stable `code`, which crosses the wire; the SDK rebuilds the same class from it.
Messages say what happened and what to do next.
"""

from __future__ import annotations

from typing import Any, ClassVar


class ComputePoolError(Exception):
    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details


class InvalidRequest(ComputePoolError):
    code = "invalid_request"


class InvalidSpec(InvalidRequest):
    code = "invalid_spec"


class PayloadTooLarge(InvalidRequest):
    code = "payload_too_large"


class Unauthenticated(ComputePoolError):
    code = "unauthenticated"


class Forbidden(ComputePoolError):
    code = "forbidden"


class SignUpClosed(Forbidden):
    code = "sign_up_closed"


class SyntheticRefused(Forbidden):
    code = "synthetic_refused"


class AccountSuspended(Forbidden):
    code = "account_suspended"


class InputBlocked(Forbidden):
    code = "input_blocked"


class NotFound(ComputePoolError):
    code = "not_found"


class Conflict(ComputePoolError):
    code = "conflict"


class IdempotencyMismatch(Conflict):
    code = "idempotency_mismatch"


class StaleLease(Conflict):
    code = "stale_lease"


class StaleBoot(Conflict):
    code = "stale_boot"


class NameTaken(Conflict):
    code = "name_taken"


class NodeRemoved(Conflict):
    code = "node_removed"


class VersionMismatch(Conflict):
    code = "version_mismatch"


class LimitExceeded(ComputePoolError):
    code = "limit_exceeded"
    retryable = True


class RateLimited(LimitExceeded):
    code = "rate_limited"


class NewNodesLimited(LimitExceeded):
    code = "new_nodes_limited"


class HubUnavailable(ComputePoolError):
    code = "hub_unavailable"
    retryable = True


class StoreError(ComputePoolError):
    code = "store_error"


def leaves() -> dict[str, type[ComputePoolError]]:
    """Every error class by its code."""

    def walk(cls: type[ComputePoolError]) -> dict[str, type[ComputePoolError]]:
        found = {cls.code: cls}
        for sub in cls.__subclasses__():
            found.update(walk(sub))
        return found

    return walk(ComputePoolError)
