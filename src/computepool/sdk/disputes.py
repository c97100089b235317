"""Disputes over pay, over the hub's API; for operators their decisions too."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from computepool.core.ledger.dispute import DisputeState
from computepool.sdk.transport import Transport
from computepool.wire.disputes import (
    AccountDispute,
    AccountDisputePage,
    DecideDispute,
    OpenDispute,
    OwnDispute,
    OwnDisputePage,
    ReversePay,
)

_PAGE_LENGTH = 100


class DisputesClient:
    """`Client.disputes`. Every call may be repeated: pay is frozen once, decided once and taken back once."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def open(self, *, job_id: UUID, slice_index: int = 0, number: int | None = None, reason: str) -> OwnDispute:
        """Doubts the pay for an attempt of one's own job; without `number` the slice's newest that was paid."""
        body = OpenDispute(job_id=job_id, slice_index=slice_index, number=number, reason=reason)
        return self._transport.call("POST", "/v1/credits/disputes", OwnDispute, body=body, repeatable=True)

    def get(self, *, dispute_id: UUID) -> OwnDispute:
        return self._transport.call("GET", f"/v1/credits/disputes/{dispute_id}", OwnDispute)

    def list(self, *, limit: int = _PAGE_LENGTH, cursor: str | None = None) -> OwnDisputePage:
        """One page, over one's jobs and one's nodes, newest first; hand its `cursor` back for the next."""
        params = {"limit": limit, "cursor": cursor}
        return self._transport.call("GET", "/v1/credits/disputes", OwnDisputePage, params=params)

    # For operators

    def everybodys(self, *, state: DisputeState = DisputeState.OPEN) -> Iterator[AccountDispute]:
        """Oldest first, fetched page by page."""
        path, params = "/v1/operator/disputes", {"state": state.value, "limit": _PAGE_LENGTH}
        for page in self._transport.pages(path, AccountDisputePage, params):
            yield from page.disputes

    def uphold(self, *, dispute_id: UUID, note: str) -> AccountDispute:
        """The submitter gets everything back, the fee too."""
        return self._decide(dispute_id, "uphold", note)

    def dismiss(self, *, dispute_id: UUID, note: str) -> AccountDispute:
        """The pay is released when its holdback is over."""
        return self._decide(dispute_id, "dismiss", note)

    def reverse(self, *, attempt_id: UUID, reason: str) -> AccountDispute:
        """Takes the pay for an attempt back wherever it is by now; what was cashed out is owed."""
        body = ReversePay(attempt_id=attempt_id, reason=reason)
        path = "/v1/operator/disputes/reverse"
        return self._transport.call("POST", path, AccountDispute, body=body, repeatable=True)

    def _decide(self, dispute_id: UUID, verb: str, note: str) -> AccountDispute:
        path, body = f"/v1/operator/disputes/{dispute_id}/{verb}", DecideDispute(note=note)
        return self._transport.call("POST", path, AccountDispute, body=body, repeatable=True)
