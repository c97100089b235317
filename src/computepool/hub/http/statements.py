"""Statements, as JSON or as CSV. A CSV has the same pages: the header `Computepool-Cursor` names the next one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
from starlette.responses import Response

from computepool.core.ids import AccountId
from computepool.core.jobs.state import AttemptState
from computepool.core.ledger.charging import End, count_paid_seconds, meter_seconds
from computepool.core.ledger.decimals import to_decimal
from computepool.core.ledger.statement import find_flow
from computepool.core.ledger.table import quote_formula, to_csv
from computepool.hub.http.routing import Access, Call, Routes
from computepool.hub.services import statements as service
from computepool.hub.services.statements import Page
from computepool.hub.store.disputes import DisputeNote
from computepool.hub.store.statements import AccountSum, ChargeLine, NodeSum, TransferLine
from computepool.wire import statements as wire

routes = Routes()

CURSOR_HEADER = "Computepool-Cursor"
TRANSFER_HEADS = (
    "id",
    "at",
    "kind",
    "source",
    "target",
    "flow",
    "amount_microcredits",
    "credits",
    "job_id",
    "attempt_id",
    "payout_id",
    "top_up_id",
)
CHARGE_HEADS = (
    "attempt_id",
    "job_id",
    "slice_index",
    "number",
    "node_id",
    "slot",
    "state",
    "cause",
    "leased_at",
    "finished_at",
    "run_seconds",
    "metered_seconds",
    "rate_microcredits_per_hour",
    "rate_card_version",
    "charged_microcredits",
    "fee_microcredits",
    "earned_microcredits",
    "charged_credits",
    "earned_credits",
    "earning_state",
    "release_at",
    "dispute_state",
    "dispute_reason",
    "slice_price_microcredits",
)


class PageQuery(msgspec.Struct, frozen=True, kw_only=True):
    format: wire.StatementFormat = wire.StatementFormat.JSON
    cursor: str | None = None
    limit: int = 200

    @property
    def page(self) -> Page:
        return Page(self.cursor, self.limit)


class PeriodQuery(PageQuery, frozen=True, kw_only=True):
    """Days (2026-11-17) or times with an offset (2026-11-17T08:00:00Z)."""

    since: str | None = msgspec.field(name="from", default=None)
    until: str | None = msgspec.field(name="to", default=None)


class AccountStatementQuery(PeriodQuery, frozen=True, kw_only=True):
    # For operators: somebody else's.
    account: UUID | None = None


class JobStatementQuery(PageQuery, frozen=True, kw_only=True):
    lines: wire.JobLines = wire.JobLines.TRANSFERS


@routes.add("GET", "/v1/credits/statement", Access.ACCOUNT, query=AccountStatementQuery, answer=wire.AccountStatement)
async def get_account_statement(call: Call) -> wire.AccountStatement | Response:
    """Everything that moved for an account within a period, with what it stood at before and after."""
    query: AccountStatementQuery = call.query
    found = await service.get_account_statement(
        call.hub.pool, call.account, query.page, since=query.since, until=query.until, account_id=query.account
    )
    lines = [to_transfer_line(line, found.account_id) for line in found.lines]
    if query.format is wire.StatementFormat.CSV:
        return _to_csv_response(TRANSFER_HEADS, lines, "statement", query, found.cursor)
    return wire.AccountStatement(
        account_id=found.account_id,
        since=found.period.since,
        until=found.period.until,
        sums=[_to_account_sum(each) for each in found.sums],
        lines=lines,
        cursor=found.cursor,
    )


@routes.add("GET", "/v1/jobs/{job_id}/statement", Access.ACCOUNT, query=JobStatementQuery, answer=wire.JobStatement)
async def get_job_statement(call: Call) -> wire.JobStatement | Response:
    """What a job came to: every transfer from the hold to the last release, or its attempts with what each cost."""
    query: JobStatementQuery = call.query
    found = await service.get_job_statement(
        call.hub.pool,
        call.account,
        call.path["job_id"],
        query.page,
        by_attempt=query.lines is wire.JobLines.ATTEMPTS,
    )
    transfers = [to_transfer_line(line, found.account_id) for line in found.transfers]
    attempts = [to_charge_line(line) for line in found.charges]
    if query.format is wire.StatementFormat.CSV:
        if query.lines is wire.JobLines.ATTEMPTS:
            return _to_csv_response(CHARGE_HEADS, attempts, "job-attempts", query, found.cursor)
        return _to_csv_response(TRANSFER_HEADS, transfers, "job", query, found.cursor)
    money = found.money
    return wire.JobStatement(
        job_id=found.job_id,
        held_microcredits=money.held,
        earned_microcredits=money.earned,
        fee_microcredits=money.fee,
        refunded_microcredits=money.refunded,
        remaining_microcredits=money.remaining,
        reversed_microcredits=money.reversed,
        cost_microcredits=money.cost,
        cost_credits=to_decimal(money.cost),
        transfers=transfers,
        attempts=attempts,
        cursor=found.cursor,
    )


@routes.add("GET", "/v1/nodes/{node_id}/statement", Access.ACCOUNT, query=PeriodQuery, answer=wire.NodeStatement)
async def get_node_statement(call: Call) -> wire.NodeStatement | Response:
    """What a node earned: the attempts that ended on it within a period, and where their pay stands."""
    query: PeriodQuery = call.query
    found = await service.get_node_statement(
        call.hub.pool, call.account, call.path["node_id"], query.page, since=query.since, until=query.until
    )
    attempts = [to_charge_line(line) for line in found.charges]
    if query.format is wire.StatementFormat.CSV:
        return _to_csv_response(CHARGE_HEADS, attempts, "node", query, found.cursor)
    return wire.NodeStatement(
        node_id=found.node_id,
        since=found.period.since,
        until=found.period.until,
        sums=[_to_node_sum(each) for each in found.sums],
        attempts=attempts,
        cursor=found.cursor,
    )


def to_transfer_line(line: TransferLine, account_id: AccountId) -> wire.TransferLine:
    return wire.TransferLine(
        id=line.id,
        at=line.at,
        kind=line.kind,
        source=line.source.kind,
        target=line.target.kind,
        flow=find_flow(line.source, line.target, account_id),
        amount_microcredits=line.amount,
        credits=to_decimal(line.amount),
        job_id=line.job_id,
        attempt_id=line.attempt_id,
        payout_id=line.payout_id,
        top_up_id=line.top_up_id,
    )


def to_charge_line(line: ChargeLine) -> wire.ChargeLine:
    earned = line.charged_microcredits - line.fee_microcredits
    return wire.ChargeLine(
        attempt_id=line.id,
        job_id=line.job_id,
        slice_index=line.slice_index,
        number=line.number,
        node_id=line.node_id,
        slot=line.slot,
        state=line.state,
        leased_at=line.leased_at,
        charged_microcredits=line.charged_microcredits,
        fee_microcredits=line.fee_microcredits,
        earned_microcredits=earned,
        charged_credits=to_decimal(line.charged_microcredits),
        earned_credits=to_decimal(earned),
        cause=line.cause,
        finished_at=line.finished_at,
        run_seconds=line.run_seconds,
        metered_seconds=_meter(line),
        rate_microcredits_per_hour=line.rate_microcredits_per_hour,
        slice_price_microcredits=line.slice_price_microcredits,
        rate_card_version=line.rate_card_version,
        earning_state=line.earning_state,
        release_at=line.release_at,
        **tell_dispute(line.dispute),
    )


def tell_dispute(found: DisputeNote | None) -> dict[str, Any]:
    """As both answers about an attempt's pay have it; nothing where nobody has doubted it."""
    if found is None:
        return {}
    return {"dispute_state": found.state, "dispute_reason": found.reason, "dispute_note": found.note}


def _meter(line: ChargeLine) -> int | None:
    """Of what was paid; what costs nothing is not metered."""
    if line.finished_at is None or not line.charged_microcredits:
        return None
    seconds = meter_seconds(
        claimed_seconds=line.run_seconds,
        held_seconds=(line.finished_at - line.leased_at).total_seconds(),
        wall_seconds=line.wall_seconds,
    )
    is_seat = line.checkpoint_seconds is not None
    held = line.saved_seconds if line.checkpoint_seconds is None else line.checkpoint_seconds
    return count_paid_seconds(End(line.cause, AttemptState.RUNNING, seconds, held, is_seat))


def _to_account_sum(found: AccountSum) -> wire.AccountSum:
    return wire.AccountSum(
        kind=found.kind,
        opening_microcredits=found.opening,
        closing_microcredits=found.closing,
        opening_credits=to_decimal(found.opening),
        closing_credits=to_decimal(found.closing),
    )


def _to_node_sum(found: NodeSum) -> wire.NodeSum:
    earned = found.charged - found.fee
    return wire.NodeSum(
        attempt_count=found.attempt_count,
        charged_microcredits=found.charged,
        fee_microcredits=found.fee,
        earned_microcredits=earned,
        earned_credits=to_decimal(earned),
        earning_state=found.earning_state,
    )


def _to_csv_response(
    heads: Sequence[str], lines: Sequence[Any], name: str, query: PageQuery, cursor: str | None
) -> Response:
    rows = [[_tame(getattr(line, head)) for head in heads] for line in lines]
    # Pages can be put one after the other: only the first has a line of heads.
    text = to_csv(heads, rows, with_heads=query.cursor is None)
    headers = {"Content-Disposition": f'attachment; filename="{name}.csv"', "X-Content-Type-Options": "nosniff"}
    if cursor is not None:
        headers[CURSOR_HEADER] = cursor
    return Response(text, media_type="text/csv; charset=utf-8", headers=headers)


def _tame(cell: Any) -> Any:
    """Slots have names that their nodes gave them."""
    return quote_formula(cell) if type(cell) is str else cell
