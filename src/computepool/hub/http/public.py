"""What strangers see: the mesh, the newest jobs, the leaderboard."""

from __future__ import annotations

import msgspec

from computepool.core.live.leaderboard import Measure, Period
from computepool.core.live.pseudonyms import to_pseudonym
from computepool.core.market.offers import DEFAULT_KIND
from computepool.hub.http.replies import Reply
from computepool.hub.http.routing import Access, Call, Routes
from computepool.hub.services import leaderboard, mesh
from computepool.wire import leaderboard as leaderboard_wire
from computepool.wire import live as wire

routes = Routes()

JOBS_MAX = 100
ROWS_MAX = 200


class JobsQuery(msgspec.Struct, frozen=True, kw_only=True):
    limit: int = 20


class LeaderboardQuery(msgspec.Struct, frozen=True, kw_only=True):
    by: Measure = Measure.EARNED
    period: Period = Period.MONTH
    limit: int = 50


@routes.add("GET", "/v1/public/mesh", Access.PUBLIC, answer=wire.Mesh, public_per_minute=600)
async def get_mesh(call: Call) -> Reply:
    """The nodes, what runs on them, and the networks that train, without names."""
    country = call.hub.settings.country
    hub_point = None
    if country:
        point = mesh.find_hub_point(call.hub.pseudonym_key, call.hub.keyring.hub_id, country)
        hub_point = wire.HubPoint(country=country, point=point)
    return Reply(await call.hub.live.get_mesh_json(hub_point))


@routes.add(
    "GET", "/v1/public/jobs", Access.PUBLIC, query=JobsQuery, answer=wire.PublicJobPage, public_per_minute=600
)
async def list_recent_jobs(call: Call) -> wire.PublicJobPage:
    """The newest jobs of everybody; their names only where the submitter lets strangers read them."""
    jobs = await mesh.list_recent_jobs(call.hub.pool, limit=max(1, min(call.query.limit, JOBS_MAX)))
    return wire.PublicJobPage(
        jobs=[
            wire.PublicJob(
                id=to_pseudonym(call.hub.pseudonym_key, "job", job.id),
                title=job.title,
                kind=job.kind or DEFAULT_KIND,
                state=job.state,
                slice_count=job.slice_count,
                succeeded=job.succeeded_count,
                created_at=job.created_at,
                finished_at=job.finished_at,
            )
            for job in jobs
        ]
    )


@routes.add(
    "GET",
    "/v1/leaderboard",
    Access.PUBLIC,
    query=LeaderboardQuery,
    answer=leaderboard_wire.Leaderboard,
    public_per_minute=600,
)
async def get_leaderboard(call: Call) -> leaderboard_wire.Leaderboard:
    """Who lends the most to others, under pseudonyms. Work for oneself and for linked accounts does not count."""
    query: LeaderboardQuery = call.query
    found = await leaderboard.list_leaders(
        call.hub.pool,
        call.hub.pseudonym_key,
        by=query.by,
        period=query.period,
        limit=max(1, min(query.limit, ROWS_MAX)),
    )
    return leaderboard_wire.Leaderboard(
        by=query.by,
        period=query.period,
        counted_at=found.counted_at,
        rows=[
            leaderboard_wire.Leader(rank=rank, pseudonym=each.pseudonym, value=each.value)
            for rank, each in enumerate(found.leaders, 1)
        ],
    )
