"""The few pages of the hub itself: sign-in, and an overview. Where a dashboard was built, its pages come first."""

from __future__ import annotations

from pathlib import Path

from starlette.responses import Response

from computepool.core.errors import NotFound
from computepool.hub.http.routing import Access, Call, Routes

routes = Routes()

_STATIC = Path(__file__).parent / "static"
_TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


@routes.add("GET", "/", Access.PUBLIC)
async def home(call: Call) -> Response:
    """The dashboard; where none was built, an overview that says how to get it."""
    return _page("home.html")


@routes.add("GET", "/sign-in", Access.PUBLIC)
async def sign_in(call: Call) -> Response:
    """Where one-time links lead. The link is used by the page's script, so a preview does not use it up."""
    return _page("sign-in.html")


@routes.add("GET", "/static/{name}", Access.PUBLIC)
async def static(call: Call) -> Response:
    """Scripts and styles of the pages."""
    return _page(call.path["name"])


def _page(name: str) -> Response:
    known = {path.name: path for path in _STATIC.iterdir() if path.suffix in _TYPES}
    if name not in known:
        raise NotFound("There is no such page.")
    return Response(known[name].read_bytes(), media_type=_TYPES[known[name].suffix], headers=_HEADERS)
