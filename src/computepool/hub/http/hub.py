"""The hub itself: health, metrics, who it is."""

from __future__ import annotations

from starlette.responses import PlainTextResponse, Response

from computepool import __version__
from computepool.core.errors import HubUnavailable
from computepool.hub.http.routing import Access, Call, Routes
from computepool.hub.services import keyring
from computepool.hub.services.readiness import check_database
from computepool.wire.accounts import HubView, RotatedKeys

routes = Routes()


@routes.add("GET", "/healthz", Access.PUBLIC)
async def healthz(call: Call) -> Response:
    """The process is alive."""
    return PlainTextResponse("ok\n")


@routes.add("GET", "/readyz", Access.PUBLIC)
async def readyz(call: Call) -> Response:
    """The process can serve: the database answers and it is not shutting down."""
    if call.hub.closing:
        raise HubUnavailable("This hub is shutting down.")
    await check_database(call.hub.pool)
    return PlainTextResponse("ready\n")


@routes.add("GET", "/metrics", Access.PUBLIC)
async def metrics(call: Call) -> Response:
    """Counters for Prometheus."""
    call.hub.metrics.parked_calls.set(len(call.hub.parked))
    call.hub.metrics.viewers.set(len(call.hub.live.viewers))
    return Response(call.hub.metrics.render(), media_type="text/plain; version=0.0.4")


@routes.add("GET", "/v1/hub", Access.PUBLIC, answer=HubView)
async def get_hub(call: Call) -> HubView:
    """Who this hub is and how often nodes should call."""
    settings = call.hub.settings
    return HubView(
        hub_id=call.hub.keyring.hub_id,
        version=__version__,
        demo=settings.demo,
        sign_up=settings.sign_up_mode,
        beat_seconds=call.hub.beat_seconds,
        lease_seconds=settings.lease_seconds,
        hub_keys=call.hub.keyring.public_keys(),
        rpc_address=settings.rpc_address,
        rpc_tls=bool(settings.rpc_tls_certificate_file),
        site=call.hub.has_site,
        country=settings.country or None,
    )


@routes.add("POST", "/v1/hub/keys/rotate", Access.OPERATOR, answer=RotatedKeys)
async def rotate_keys(call: Call) -> RotatedKeys:
    """Announce a new signing key. It signs after the announcement time; the old one is accepted for as long again."""
    announce_seconds = call.hub.settings.key_announce_seconds
    await keyring.rotate_keys(call.hub.pool, announce_seconds=announce_seconds)
    await call.hub.keyring.refresh(call.hub.pool)
    return RotatedKeys(hub_keys=call.hub.keyring.public_keys(), signs_from=call.hub.keyring.newest_signs_from())


@routes.add("POST", "/v1/hub/keys/{kid}/revoke", Access.OPERATOR, answer=RotatedKeys)
async def revoke_hub_key(call: Call) -> RotatedKeys:
    """Revoke a signing key that may be in wrong hands. The newest of the others signs at once; rotate before."""
    await keyring.revoke_key(call.hub.pool, kid=call.path["kid"])
    await call.hub.keyring.refresh(call.hub.pool)
    return RotatedKeys(hub_keys=call.hub.keyring.public_keys(), signs_from=call.hub.keyring.newest_signs_from())
