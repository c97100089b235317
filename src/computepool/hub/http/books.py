"""The close of a day, for operators."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from computepool.core.ledger.period import read_day
from computepool.core.payments.books import CashMovement
from computepool.hub.http.routing import Access, Call, Routes
from computepool.hub.services import books as service
from computepool.hub.services.books import ClosedDay
from computepool.wire import books as wire

routes = Routes()

# Room for a provider's books of a busy day.
CLOSE_BYTES_MAX = 4_000_000


class DayQuery(msgspec.Struct, frozen=True, kw_only=True):
    day: str


@routes.add(
    "POST",
    "/v1/operator/books/close",
    Access.OPERATOR,
    body=wire.CloseBooks,
    answer=wire.ClosedBooks,
    body_bytes_max=CLOSE_BYTES_MAX,
)
async def close_books(call: Call) -> wire.ClosedBooks:
    """Close a day that is over: trial balance, payout file, and everything that does not agree. Safe to repeat."""
    body: wire.CloseBooks = call.body
    movements = None
    if body.provider_movements is not None:
        movements = [CashMovement(each.id, each.currency, each.amount_minor) for each in body.provider_movements]
    closed = await service.close_day(
        call.hub.pool, call.account, body.day, provider_movements=movements, from_start=body.from_start
    )
    return _to_closed(closed)


@routes.add("GET", "/v1/operator/books/payouts", Access.OPERATOR, query=DayQuery)
async def get_payout_file(call: Call) -> Response:
    """The payouts that were handed to the provider on a day, with where they go, as CSV."""
    text = await service.render_payout_file(call.hub.pool, read_day(call.query.day))
    headers = {"Content-Disposition": 'attachment; filename="payouts.csv"', "X-Content-Type-Options": "nosniff"}
    return Response(text, media_type="text/csv; charset=utf-8", headers=headers)


def _to_closed(found: ClosedDay) -> wire.ClosedBooks:
    figures, closing = found.figures, found.closing
    return wire.ClosedBooks(
        day=closing.day,
        closed_at=closing.closed_at,
        closed_by=closing.closed_by,
        sha256=closing.sha256.hex(),
        trial=[
            wire.TrialLine(
                kind=line.kind,
                opening_microcredits=line.opening,
                gained_microcredits=line.gained,
                lost_microcredits=line.lost,
                closing_microcredits=line.closing,
            )
            for line in figures.trial
        ],
        moved=[
            wire.MovedLine(kind=line.kind, transfer_count=line.transfer_count, amount_microcredits=line.amount)
            for line in figures.kinds
        ],
        payout_count=figures.payout_count,
        payout_sha256=figures.payout_sha256,
        differences=[
            wire.BookDifference(kind=each.kind, subject=each.subject, words=each.words) for each in found.differences
        ],
        differences_is_cut=found.is_cut,
        compared_with_provider=found.compared_with_provider,
        counted_from_batch=found.counted_from_batch,
    )
