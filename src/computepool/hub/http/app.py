"""All routes as one ASGI application."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from computepool import clock
from computepool.core.errors import NotFound
from computepool.hub.context import Hub
from computepool.hub.http import (
    accounts,
    artifacts,
    attempts,
    audit,
    blocked_inputs,
    books,
    challenges,
    credits,
    demo,
    disputes,
    hub,
    jobs,
    live,
    market,
    networks,
    nodes,
    operator,
    operator_credits,
    pages,
    pay,
    placement,
    public,
    receipts,
    statements,
    trust,
    views,
    why,
)
from computepool.hub.http.errors import to_response
from computepool.hub.http.openapi import build_openapi
from computepool.hub.http.routing import Access, Call, Route, Routes, answer
from computepool.hub.http.site import Site

meta = Routes()


@meta.add("GET", "/openapi.json", Access.PUBLIC)
async def openapi(call: Call) -> Response:
    """This document."""
    return Response(msgspec.json.encode(build_openapi(all_routes())), media_type="application/json")


def all_routes() -> list[Route]:
    """Fixed paths before those with parameters, so that /v1/jobs/next is never taken for a job."""
    work = (hub, accounts, jobs, nodes, challenges, attempts, artifacts, receipts, networks, placement, why, trust)
    seen = (live, public, views, pages)
    money = (credits, operator_credits, disputes, statements, pay, audit, books, market)
    desk = (operator, blocked_inputs, demo)
    found = [route for room in (*work, *seen, *money, *desk) for route in room.routes.routes] + meta.routes
    return sorted(found, key=lambda route: route.path.count("{"))


# Where the dashboard's pages come before the hub's own.
_SITE_FIRST = ("/", "/sign-in")


def build_app(context: Hub, site: Site | None = None) -> ASGIApp:
    """Fixed paths (the calls that nodes and submitters make all day) go straight to their route; the rest is matched
    by Starlette. The steps of a call are the same on both ways: they are `answer`'s."""
    routes = all_routes()
    people = _build_router(context, [route for route in routes if "{" in route.path])
    fixed = {(route.method, route.path): route for route in routes if "{" not in route.path}

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        route = fixed.get((scope.get("method", ""), scope["path"])) if scope["type"] == "http" else None
        if site is not None and (route is None or scope["path"] in _SITE_FIRST):
            page = await _find_page(context, site, scope)
            if page is not None:
                await page(scope, receive, send)
                return
        if route is None:
            await people(scope, receive, send)
        else:
            await answer(context, route, scope, receive, send)

    # Few routes ask from which address a call comes; behind a proxy on this machine, that is in a header.
    trusted = os.environ.get("FORWARDED_ALLOW_IPS", "127.0.0.1")
    # Uvicorn and Starlette each have types of their own for the same three things.
    addressed: ASGIApp = ProxyHeadersMiddleware(serve, trusted_hosts=trusted)  # type: ignore[arg-type, assignment]
    named = {
        key: route for key, route in fixed.items() if route.access is not Access.PUBLIC and not route.needs_address
    }

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        route = named.get((scope.get("method", ""), scope["path"]))
        if route is None:
            await addressed(scope, receive, send)
        else:
            await answer(context, route, scope, receive, send)

    return app


async def _find_page(context: Hub, site: Site, scope: Scope) -> Response | None:
    if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
        return None
    started = clock.seconds()
    page = await site.answer(context, scope)
    if page is not None:
        context.metrics.count_call("GET the site", page.status_code, clock.seconds() - started)
    return page


class _Bound:
    """A route as an application of its own; Starlette calls functions with a Request, and anything else like this."""

    def __init__(self, context: Hub, route: Route) -> None:
        self._context = context
        self._route = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await answer(self._context, self._route, scope, receive, send)


def _build_router(context: Hub, routes: Sequence[Route]) -> Starlette:
    async def not_found(request: Request, _: Exception) -> Response:
        return to_response(NotFound(f"There is nothing at {request.method} {request.url.path}. See /openapi.json."))

    return Starlette(
        routes=[StarletteRoute(r.path, _Bound(context, r), methods=[r.method], name=r.name) for r in routes],
        exception_handlers={404: not_found, 405: not_found},
    )
