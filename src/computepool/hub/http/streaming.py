"""Sends stored bytes, whole or from where a broken download left off."""

from __future__ import annotations

import re

from starlette.responses import Response, StreamingResponse

from computepool.core.errors import NotFound
from computepool.hub.http.routing import Call

_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{0,18})\Z")


def stream_blob(call: Call, sha256: str, size_bytes: int) -> Response:
    if not call.hub.blobs.has(sha256):
        raise NotFound("The file's bytes are gone from this hub's store.")
    headers = {
        "Accept-Ranges": "bytes",
        "ETag": f'"{sha256}"',
        # Strangers' bytes: never shown or run in the hub's own origin.
        "Content-Disposition": "attachment",
        "X-Content-Type-Options": "nosniff",
    }
    start, end, status = 0, size_bytes, 200
    wanted = _RANGE.match(call.find_header(b"range") or "")
    if wanted and int(wanted[1]) < size_bytes:
        start = int(wanted[1])
        end = min(size_bytes, int(wanted[2]) + 1) if wanted[2] else size_bytes
        status = 206
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{size_bytes}"
    headers["Content-Length"] = str(max(0, end - start))
    if call.method == "HEAD":
        return Response(status_code=200, headers=headers, media_type="application/octet-stream")
    chunks = call.hub.blobs.read(sha256, start=start, end=end)
    return StreamingResponse(chunks, status_code=status, headers=headers, media_type="application/octet-stream")
