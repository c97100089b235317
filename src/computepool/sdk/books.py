"""The books over the hub's API: statements, why a payment, the public proof; for operators audit and close."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime
from typing import Any
from uuid import UUID

from computepool.sdk.transport import Reply, Transport
from computepool.wire.audit import AuditCheck, BalanceCheck, Proof
from computepool.wire.books import CloseBooks, ClosedBooks, ProviderMovement
from computepool.wire.pay import PaidAttempt, PayWhy
from computepool.wire.statements import AccountStatement, JobLines, JobStatement, NodeStatement

_PAGE_LENGTH = 1_000
_PAY_PAGE_LENGTH = 500
_CURSOR_HEADER = "Computepool-Cursor"

# A day of UTC, or a time that knows its offset.
Moment = date | datetime | str


class BooksClient:
    """`Client.books`. Long statements come page by page: the iterators ask for the next one as you go."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def statement(
        self,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        account_id: UUID | None = None,
        cursor: str | None = None,
        limit: int = _PAGE_LENGTH,
    ) -> AccountStatement:
        """One page of what moved for one's account; an operator may name another."""
        params = {"from": _say(since), "to": _say(until), "account": _text(account_id)}
        return self._page("/v1/credits/statement", AccountStatement, params, cursor, limit)

    def job_statement(
        self,
        *,
        job_id: UUID,
        lines: JobLines = JobLines.TRANSFERS,
        cursor: str | None = None,
        limit: int = _PAGE_LENGTH,
    ) -> JobStatement:
        """What a job came to, and one page of its transfers or of its attempts."""
        return self._page(f"/v1/jobs/{job_id}/statement", JobStatement, {"lines": lines.value}, cursor, limit)

    def node_statement(
        self,
        *,
        node_id: UUID,
        since: Moment | None = None,
        until: Moment | None = None,
        cursor: str | None = None,
        limit: int = _PAGE_LENGTH,
    ) -> NodeStatement:
        params = {"from": _say(since), "to": _say(until)}
        return self._page(f"/v1/nodes/{node_id}/statement", NodeStatement, params, cursor, limit)

    def statement_csv(
        self, *, since: Moment | None = None, until: Moment | None = None, account_id: UUID | None = None
    ) -> Iterator[str]:
        """The whole period, a page at a time; put together they are one file."""
        params = {"from": _say(since), "to": _say(until), "account": _text(account_id)}
        return self._csv("/v1/credits/statement", params)

    def job_statement_csv(self, *, job_id: UUID, lines: JobLines = JobLines.TRANSFERS) -> Iterator[str]:
        return self._csv(f"/v1/jobs/{job_id}/statement", {"lines": lines.value})

    def node_statement_csv(
        self, *, node_id: UUID, since: Moment | None = None, until: Moment | None = None
    ) -> Iterator[str]:
        return self._csv(f"/v1/nodes/{node_id}/statement", {"from": _say(since), "to": _say(until)})

    def why(self, *, node_id: UUID, day: date, cursor: str | None = None, limit: int = _PAY_PAGE_LENGTH) -> PayWhy:
        """One page of a node's attempts of a day, each with what it should have been paid and what it was."""
        params = {"node": str(node_id), "day": day.isoformat()}
        return self._page("/v1/credits/why", PayWhy, params, cursor, limit)

    def why_all(self, *, node_id: UUID, day: date) -> Iterator[PaidAttempt]:
        params = {"node": str(node_id), "day": day.isoformat(), "limit": _PAY_PAGE_LENGTH}
        for page in self._transport.pages("/v1/credits/why", PayWhy, params):
            yield from page.attempts

    def proof(self) -> Proof:
        """Public: all accounts come to zero, and the newest batch of the chain."""
        return self._transport.call("GET", "/v1/credits/proof", Proof)

    # For operators

    def check_batches(
        self, *, known: str | None = None, on_progress: Callable[[int], None] | None = None
    ) -> AuditCheck:
        """The whole chain, or up to its first fault. `known` is a batch's number:hash that was kept elsewhere."""
        number, batch_count, row_count = 1, 0, 0
        while True:
            params = {"number": number, "known": known}
            found = self._transport.call("GET", "/v1/operator/audit/batches", AuditCheck, params=params)
            batch_count, row_count = batch_count + found.batch_count, row_count + found.row_count
            if on_progress is not None:
                on_progress(row_count)
            if found.next_number is None:
                return AuditCheck(
                    batch_count=batch_count, row_count=row_count, fault=found.fault, last_batch=found.last_batch
                )
            number = found.next_number

    def check_balances(self, *, from_start: bool = False) -> BalanceCheck:
        """Counts what came since the last checkpoint of the books, or every transfer there is."""
        params = {"from_start": str(from_start).lower()}
        return self._transport.call("GET", "/v1/operator/audit/balances", BalanceCheck, params=params)

    def close(
        self,
        *,
        day: date,
        provider_movements: Sequence[ProviderMovement] | None = None,
        from_start: bool = False,
    ) -> ClosedBooks:
        """Closed again, a day comes to the same, whether counted from the last checkpoint or from the start."""
        movements = None if provider_movements is None else list(provider_movements)
        body = CloseBooks(day=day, provider_movements=movements, from_start=from_start)
        return self._transport.call("POST", "/v1/operator/books/close", ClosedBooks, body=body, repeatable=True)

    def payout_file(self, *, day: date) -> str:
        """CSV. It says where people's money goes: keep it to yourself."""
        return self._text("/v1/operator/books/payouts", {"day": day.isoformat()})[0]

    def _page(self, path: str, reply: type[Reply], params: dict[str, Any], cursor: str | None, limit: int) -> Reply:
        return self._transport.call("GET", path, reply, params={**params, "cursor": cursor, "limit": limit})

    def _csv(self, path: str, params: dict[str, Any]) -> Iterator[str]:
        cursor: str | None = None
        while True:
            text, cursor = self._text(path, {**params, "format": "csv", "cursor": cursor, "limit": _PAGE_LENGTH})
            yield text
            if cursor is None:
                return

    def _text(self, path: str, params: dict[str, Any]) -> tuple[str, str | None]:
        return self._transport.get_text(path, params=params, header=_CURSOR_HEADER)


def _say(moment: Moment | None) -> str | None:
    return moment if isinstance(moment, str) or moment is None else moment.isoformat()


def _text(id: UUID | None) -> str | None:
    return None if id is None else str(id)
