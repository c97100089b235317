"""All routes as one ASGI application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute

from computepool.core.errors import NotFound
from computepool.hub.context import Hub
from computepool.hub.http import accounts, artifacts, attempts, hub, jobs, nodes, pages
from computepool.hub.http.errors import to_response
from computepool.hub.http.openapi import build_openapi
from computepool.hub.http.routing import Access, Call, Route, Routes, answer

meta = Routes()


@meta.add("GET", "/openapi.json", Access.PUBLIC)
async def openapi(call: Call) -> Response:
    """This document."""
    return Response(msgspec.json.encode(build_openapi(all_routes())), media_type="application/json")


def all_routes() -> list[Route]:
    """Fixed paths before those with parameters, so that /v1/jobs/next is never taken for a job."""
    rooms = (hub, accounts, jobs, nodes, attempts, artifacts, pages)
    found = [route for room in rooms for route in room.routes.routes] + meta.routes
    return sorted(found, key=lambda route: route.path.count("{"))


def build_app(context: Hub) -> Starlette:
    def bind(route: Route) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            return await answer(context, route, request)

        return endpoint

    async def not_found(request: Request, _: Exception) -> Response:
        return to_response(NotFound(f"There is nothing at {request.method} {request.url.path}. See /openapi.json."))

    return Starlette(
        routes=[StarletteRoute(r.path, bind(r), methods=[r.method], name=r.name) for r in all_routes()],
        exception_handlers={404: not_found, 405: not_found},
    )
