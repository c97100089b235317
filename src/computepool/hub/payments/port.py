"""What every payment provider can do for a hub. Orders carry our id, under which the provider can be asked later.

None of these is called inside a transaction, and none repeats a call by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol
from uuid import UUID

from computepool.core.errors import NotFound
from computepool.core.payments.claim import Claim
from computepool.core.payments.webhook import REPLAY_WINDOW_SECONDS, check_secrets


@dataclass(frozen=True, slots=True)
class TopUpOrder:
    id: UUID
    currency: str
    amount_minor: int


@dataclass(frozen=True, slots=True)
class TopUpOpened:
    # The provider's own name for it.
    reference: str
    # Where the person pays; empty: as the instructions say.
    pay_url: str
    instructions: str = ""


@dataclass(frozen=True, slots=True)
class PayoutOrder:
    id: UUID
    currency: str
    amount_minor: int
    # As the provider understands it.
    destination: str


class CallOutcome(str, Enum):
    ACCEPTED = "accepted"
    # Said by the provider itself: it has not sent and will not send anything.
    REFUSED = "refused"
    # No connection was ever made.
    NOT_SENT = "not_sent"
    # Everything else: it may have been sent.
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class PayoutAnswer:
    outcome: CallOutcome
    reference: str = ""
    why: str = ""


class SubjectKind(str, Enum):
    TOP_UP = "top_up"
    PAYOUT = "payout"


class PaymentAdapter(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def can_be_asked(self) -> bool:
        """Whether get_status asks anybody. If not, only the operator's word moves a payout on."""

    async def create_top_up(self, order: TopUpOrder) -> TopUpOpened:
        """Raises ProviderUnavailable. Harmless to repeat: it moves no cash."""

    async def request_payout(self, order: PayoutOrder) -> PayoutAnswer:
        """Never raises for what a network or a provider does, and is never called twice for one order."""

    async def get_status(self, kind: SubjectKind, subject_id: UUID) -> Claim | None:
        """What the provider knows of it now; None: it knows nothing. Raises ProviderUnavailable."""


@dataclass(frozen=True, slots=True)
class Provider:
    """An adapter, and by which secrets its messages to us are known."""

    adapter: PaymentAdapter
    # Several while they are changed. None: it never calls us.
    secrets: Sequence[bytes] = field(default=(), repr=False)
    window_seconds: int = REPLAY_WINDOW_SECONDS

    def __post_init__(self) -> None:
        check_secrets(self.secrets)

    @property
    def name(self) -> str:
        return self.adapter.name


class Providers:
    """Those of this hub, by name. The first is the one that new top-ups and payouts use."""

    def __init__(self, providers: Iterable[Provider]) -> None:
        self._providers = {provider.name: provider for provider in providers}

    @property
    def default(self) -> Provider:
        for provider in self._providers.values():
            return provider
        raise NotFound("This hub has no payment provider.")

    def get(self, name: str) -> Provider:
        try:
            return self._providers[name]
        except KeyError:
            raise NotFound(f"This hub has no payment provider {name!r}.") from None

    @property
    def names(self) -> list[str]:
        return list(self._providers)
