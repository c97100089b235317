"""What the rooms of the dashboard show beside the nouns themselves."""

from __future__ import annotations

from uuid import UUID

import msgspec

from computepool.core.accounts.roles import Role
from computepool.core.ids import JobId, NodeId
from computepool.core.market.regions import DEFAULT_REGION
from computepool.hub.http.jobs import to_attempt
from computepool.hub.http.routing import Access, Call, Routes
from computepool.hub.services import jobs as job_service
from computepool.hub.services import views as service
from computepool.hub.store.views import PlacedAttempt, Step
from computepool.wire import views as wire
from computepool.wire.jobs import JobSpec

routes = Routes()


class TimelineQuery(msgspec.Struct, frozen=True, kw_only=True):
    limit: int = 100
    cursor: str | None = None
    # Of this slice alone.
    slice: int | None = None


class PageQuery(msgspec.Struct, frozen=True, kw_only=True):
    limit: int = 100
    cursor: UUID | None = None


class DaysQuery(msgspec.Struct, frozen=True, kw_only=True):
    days: int = 30


class DepthQuery(msgspec.Struct, frozen=True, kw_only=True):
    tier: str
    # Of the rate card.
    region: str = DEFAULT_REGION


@routes.add("GET", "/v1/jobs/{job_id}/spec", Access.ACCOUNT, answer=JobSpec)
async def get_spec(call: Call) -> JobSpec:
    """A job as it was submitted."""
    job = await job_service.get_job(call.hub.pool, call.account, JobId(call.path["job_id"]))
    return msgspec.convert(job.spec, JobSpec)


@routes.add("GET", "/v1/jobs/{job_id}/strip", Access.ACCOUNT, answer=wire.Strip)
async def get_strip(call: Call) -> wire.Strip:
    """The states of all of a job's slices, in ranges."""
    count, ranges = await service.list_strip(call.hub.pool, call.account, JobId(call.path["job_id"]))
    return wire.Strip(slice_count=count, ranges=ranges, truncated=len(ranges) >= service.RANGES_MAX)


@routes.add("GET", "/v1/jobs/{job_id}/attempts", Access.ACCOUNT, query=TimelineQuery, answer=wire.AttemptPage)
async def list_job_attempts(call: Call) -> wire.AttemptPage:
    """A job's attempts by slice and number, each with when and on what it ran."""
    query: TimelineQuery = call.query
    found, cursor = await service.list_job_attempts(
        call.hub.pool,
        call.account,
        JobId(call.path["job_id"]),
        cursor=query.cursor,
        slice_index=query.slice,
        limit=_page(query.limit),
    )
    return wire.AttemptPage(attempts=[_to_placed(call, each) for each in found], cursor=cursor)


@routes.add("GET", "/v1/nodes/{node_id}/attempts", Access.ACCOUNT, query=PageQuery, answer=wire.AttemptPage)
async def list_node_attempts(call: Call) -> wire.AttemptPage:
    """What runs on a node, then what has ended there, newest first."""
    query: PageQuery = call.query
    found, cursor = await service.list_node_attempts(
        call.hub.pool,
        call.account,
        NodeId(call.path["node_id"]),
        before=query.cursor,
        limit=_page(query.limit),
    )
    return wire.AttemptPage(attempts=[_to_placed(call, each) for each in found], cursor=cursor)


@routes.add("GET", "/v1/nodes/{node_id}/earnings", Access.ACCOUNT, query=DaysQuery, answer=wire.NodeEarnings)
async def get_node_earnings(call: Call) -> wire.NodeEarnings:
    """What a node has earned, by day."""
    node_id = NodeId(call.path["node_id"])
    days = await service.list_node_days(call.hub.pool, call.account, node_id, days=call.query.days)
    return wire.NodeEarnings(
        node_id=node_id,
        days=[
            wire.EarningDay(
                day=each.day,
                earned_microcredits=each.earned_microcredits,
                seconds=each.seconds,
                attempt_count=each.attempt_count,
            )
            for each in days
        ],
        earned_microcredits=sum(each.earned_microcredits for each in days),
    )


@routes.add("GET", "/v1/credits/holds", Access.ACCOUNT, query=PageQuery, answer=wire.HoldPage)
async def list_holds(call: Call) -> wire.HoldPage:
    """What is set aside for the caller's jobs that are not over, newest first."""
    limit = _page(call.query.limit)
    found = await service.list_holds(call.hub.pool, call.account, before=call.query.cursor, limit=limit)
    return wire.HoldPage(
        holds=[
            wire.Hold(
                job_id=each.id,
                name=each.name,
                state=each.state,
                held_microcredits=each.held_remaining,
                charged_microcredits=each.charged_microcredits,
                created_at=each.created_at,
            )
            for each in found
        ],
        cursor=str(found[-1].id) if len(found) == limit else None,
    )


@routes.add("GET", "/v1/market/depth", Access.PUBLIC, query=DepthQuery, answer=wire.Depth, public_per_minute=600)
async def get_depth(call: Call) -> wire.Depth:
    """What is asked for slots of a tier in a region, and what waiting slices would pay for them."""
    query: DepthQuery = call.query
    hub = call.hub
    found = await service.find_depth(
        hub.pool,
        hub.prices.card,
        tier=query.tier,
        region=query.region,
        silence_seconds=hub.settings.lease_seconds,
    )
    return wire.Depth(
        tier=query.tier,
        region=query.region,
        asks=[_to_step(each) for each in found.asks],
        bids=[_to_step(each) for each in found.bids],
    )


def _page(limit: int) -> int:
    return max(1, min(limit, service.PAGE_MAX))


def _to_step(step: Step) -> wire.DepthStep:
    return wire.DepthStep(count=step.count, price_microcredits_per_hour=step.price)


def _to_placed(call: Call, found: PlacedAttempt) -> wire.PlacedAttempt:
    """What a machine is called is its owner's business."""
    may_read = found.owner_id == call.account.account_id or Role.OPERATOR in call.account.roles
    return wire.PlacedAttempt(
        job_id=found.job_id,
        slice_index=found.attempt.slice_index,
        attempt=to_attempt(found.attempt),
        tier=found.tier,
        node_name=found.node_name if may_read else None,
    )
