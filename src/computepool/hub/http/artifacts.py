"""Files of accounts, by content hash."""

from __future__ import annotations

from starlette.responses import Response

from computepool.core.errors import InvalidRequest, PayloadTooLarge
from computepool.hub.http.routing import Access, Call, Routes
from computepool.hub.http.streaming import stream_blob
from computepool.hub.services import artifacts as service
from computepool.wire.artifacts import Artifact

routes = Routes()


@routes.add("PUT", "/v1/artifacts/{sha256}", Access.SUBMITTER, answer=Artifact)
async def upload(call: Call) -> Artifact:
    """Upload a file under its hash. Repeating it is harmless."""
    declared = call.find_header(b"content-length") or ""
    if not declared.isdigit():
        raise InvalidRequest("Send the file with a Content-Length.")
    size_bytes_max = call.hub.settings.upload_bytes_max
    if int(declared) > size_bytes_max:
        raise PayloadTooLarge(f"A file may have {size_bytes_max:,} bytes here. Split it.")
    await service.check_room(call.hub.pool, call.account, size_bytes=int(declared))
    sha256 = call.path["sha256"]
    size_bytes = await call.hub.blobs.write(sha256, call.stream(), size_bytes_max=int(declared))
    await service.record_upload(call.hub.pool, call.account, sha256=sha256, size_bytes=size_bytes)
    return Artifact(sha256=sha256, size_bytes=size_bytes)


@routes.add("GET", "/v1/artifacts/{sha256}", Access.ACCOUNT)
async def download(call: Call) -> Response:
    """The bytes of one of the caller's files; Range is understood."""
    sha256 = call.path["sha256"]
    return stream_blob(call, sha256, await service.get_size(call.hub.pool, call.account, sha256))


@routes.add("HEAD", "/v1/artifacts/{sha256}", Access.ACCOUNT)
async def look(call: Call) -> Response:
    """Whether the caller has such a file."""
    sha256 = call.path["sha256"]
    return stream_blob(call, sha256, await service.get_size(call.hub.pool, call.account, sha256))
