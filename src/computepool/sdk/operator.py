"""The operator's word against inputs and accounts, and nodes that are not trusted, over the hub's API."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from computepool.sdk.transport import Transport
from computepool.wire.accounts import Account
from computepool.wire.blocked_inputs import BlockedInput, BlockedInputPage, BlockInput
from computepool.wire.trust import DistrustedNode, DistrustedPage

_PAGE_LENGTH = 100


class OperatorClient:
    """`Client.operator`. Every call may be repeated: what is blocked or suspended stays so."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def block_input(self, *, sha256: str, why: str) -> BlockedInput:
        """No job may name this file or script any more; those that are open are stopped."""
        body = BlockInput(sha256=sha256, why=why)
        return self._transport.call("POST", "/v1/operator/blocked-inputs", BlockedInput, body=body, repeatable=True)

    def unblock_input(self, *, sha256: str) -> None:
        self._transport.tell("DELETE", f"/v1/operator/blocked-inputs/{sha256}")

    def blocked_inputs(self) -> Iterator[BlockedInput]:
        """Fetched page by page."""
        params = {"limit": _PAGE_LENGTH}
        for page in self._transport.pages("/v1/operator/blocked-inputs", BlockedInputPage, params):
            yield from page.inputs

    def distrusted_nodes(self) -> Iterator[DistrustedNode]:
        """Nodes that are not clear, those whose standing changed last first. Fetched page by page."""
        params = {"limit": _PAGE_LENGTH}
        for page in self._transport.pages("/v1/operator/distrusted-nodes", DistrustedPage, params):
            yield from page.nodes

    def suspend(self, *, account_id: UUID) -> Account:
        """Everything that this account asks for is refused from now on, and its open jobs are stopped."""
        return self._transport.call("POST", f"/v1/accounts/{account_id}/suspend", Account, repeatable=True)

    def resume(self, *, account_id: UUID) -> Account:
        return self._transport.call("POST", f"/v1/accounts/{account_id}/resume", Account, repeatable=True)
