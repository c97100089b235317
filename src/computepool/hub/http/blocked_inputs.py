"""Inputs that the operator has blocked: no job may name them."""

from __future__ import annotations

import msgspec

from computepool.core.errors import InvalidRequest
from computepool.core.jobs.spec import is_sha256
from computepool.hub.http.routing import Access, Call, Routes
from computepool.hub.services import blocked_inputs as service
from computepool.hub.store.blocked_inputs import BlockedInput
from computepool.wire import blocked_inputs as wire

routes = Routes()

PAGE_MAX = 500


class BlockedQuery(msgspec.Struct, frozen=True, kw_only=True):
    cursor: str = ""
    limit: int = 100


@routes.add(
    "POST",
    "/v1/operator/blocked-inputs",
    Access.OPERATOR,
    body=wire.BlockInput,
    answer=wire.BlockedInput,
    status=201,
)
async def block_input(call: Call) -> wire.BlockedInput:
    """Refuse every job that names this file or script, at every hub within seconds, and stop those that are open."""
    hub, body = call.hub, call.body
    blocked = await service.block_input(hub.pool, call.account, body.sha256, why=body.why)
    await hub.blocked_inputs.refresh(hub.pool)
    await service.stop_jobs_using(hub.pool, blocked.sha256, on_end=hub.on_end)
    hub.rounds.hear("controls")
    return _to_blocked(blocked)


@routes.add("DELETE", "/v1/operator/blocked-inputs/{sha256}", Access.OPERATOR, status=204)
async def unblock_input(call: Call) -> None:
    """Let jobs name it again. What was stopped stays stopped."""
    hub = call.hub
    await service.unblock_input(hub.pool, call.account, call.path["sha256"])
    await hub.blocked_inputs.refresh(hub.pool)


@routes.add("GET", "/v1/operator/blocked-inputs", Access.OPERATOR, query=BlockedQuery, answer=wire.BlockedInputPage)
async def list_blocked_inputs(call: Call) -> wire.BlockedInputPage:
    """What is blocked, and why."""
    query: BlockedQuery = call.query
    if query.cursor and not is_sha256(query.cursor):
        raise InvalidRequest("cursor is what the page before has given.")
    limit = max(1, min(query.limit, PAGE_MAX))
    found = await service.list_blocked(call.hub.pool, after=query.cursor, limit=limit)
    cursor = found[-1].sha256.hex() if len(found) == limit else None
    return wire.BlockedInputPage(inputs=[_to_blocked(each) for each in found], cursor=cursor)


def _to_blocked(blocked: BlockedInput) -> wire.BlockedInput:
    return wire.BlockedInput(sha256=blocked.sha256.hex(), why=blocked.why, blocked_at=blocked.blocked_at)
