"""The operator's desk: how the grid stands, how it stood, and what has happened."""

from __future__ import annotations

from uuid import UUID

import msgspec

from computepool import __version__, clock
from computepool.core.errors import InvalidRequest
from computepool.hub.http.routing import Access, Call, Routes
from computepool.hub.services import mesh
from computepool.hub.services import views as service
from computepool.wire import views as wire
from computepool.wire.live import LiveEvent

routes = Routes()

HOURS_MAX = 24 * 90


class HistoryQuery(msgspec.Struct, frozen=True, kw_only=True):
    hours: float = 24.0


class SearchQuery(msgspec.Struct, frozen=True, kw_only=True):
    # One kind, or what several begin with, such as `payout`.
    kind: str | None = None
    account: UUID | None = None
    job: UUID | None = None
    node: UUID | None = None
    before: int | None = None
    limit: int = 100


@routes.add("GET", "/v1/operator/overview", Access.OPERATOR, answer=wire.Overview)
async def get_overview(call: Call) -> wire.Overview:
    """How the grid stands, and what waits for the operator."""
    live = call.hub.live
    desk, seconds = await service.count_desk(call.hub.pool)
    found = await live.get_mesh()
    return wire.Overview(
        version=__version__,
        at=clock.now(),
        database_ms=round(seconds * 1_000, 2),
        hub_processes=max(1, desk.hub_processes),
        feed=wire.FeedHealth(
            viewers=len(live.viewers),
            watermark_seconds=round(live.watermark_seconds, 2),
            look_seconds=round(live.look_seconds, 2),
        ),
        counts=found.counts,
        accounts=desk.accounts,
        accounts_suspended=desk.accounts_suspended,
        payouts_waiting=desk.payouts_waiting,
        disputes_open=desk.disputes_open,
        freezes=desk.freezes,
        provider_events_refused=desk.provider_events_refused,
    )


@routes.add("GET", "/v1/operator/history", Access.OPERATOR, query=HistoryQuery, answer=wire.GridHistory)
async def get_grid_history(call: Call) -> wire.GridHistory:
    """Fleet and queue over the last hours or days."""
    hours: float = call.query.hours
    if not 0 < hours <= HOURS_MAX:
        raise InvalidRequest(f"hours is above 0 and at most {HOURS_MAX}.")
    points = await mesh.list_samples(call.hub.pool, hours=hours)
    return wire.GridHistory(
        points=[
            wire.GridPoint(
                at=each.at,
                nodes_online=each.nodes_online,
                slots=each.slot_count,
                busy_slots=each.busy_count,
                slices_queued=each.slices_queued,
            )
            for each in points
        ]
    )


@routes.add("GET", "/v1/operator/events", Access.OPERATOR, query=SearchQuery, answer=wire.EventSearch)
async def search_events(call: Call) -> wire.EventSearch:
    """What has happened, newest first: by kind, account, job or node."""
    query: SearchQuery = call.query
    found = await service.search_events(
        call.hub.pool,
        kind=query.kind,
        account_id=query.account,
        job_id=query.job,
        node_id=query.node,
        before=None if query.before is None else max(1, min(query.before, 1 << 60)),
        limit=max(1, min(query.limit, service.PAGE_MAX)),
    )
    return wire.EventSearch(
        events=[
            LiveEvent(
                id=each.id,
                at=each.at,
                kind=each.kind,
                account_id=each.account_id,
                job_id=each.job_id,
                node_id=each.node_id,
                body=each.body,
            )
            for each in found.events
        ],
        before=found.before,
    )
