"""Contents of runs, by hash: hosts store checkpoints and read checkpoints and data."""

from __future__ import annotations

from collections.abc import AsyncIterator

from computepool import clock
from computepool.core.errors import InvalidRequest
from computepool.core.jobs.spec import is_sha256
from computepool.hub.blobs.local import LocalBlobs
from computepool.hub.rpc.auth import Access
from computepool.hub.rpc.routing import Call, Rpcs
from computepool.hub.services.pnodes import note_rate
from computepool.hub.services.run_blobs import get_blob_size, note_read, put_blob
from computepool.hub.services.seats import get_seat
from computepool.wire.pb.computepool.v1 import networks_pb2 as pb
from computepool.wire.rpc import FRAME_BYTES_MAX

rpcs = Rpcs("BlobService")


@rpcs.add("Put", Access.LEASE)
async def put(call: Call, pieces: AsyncIterator[pb.BlobPiece]) -> pb.BlobEntry:
    """The first piece names the hash; the others follow each other without a gap."""
    seat = await get_seat(call.rpc.pool, call.lease.attempt_id)
    first = await anext(aiter(pieces), None)
    if first is None or not is_sha256(first.sha256):
        raise InvalidRequest("The first piece names the content's sha256 as 64 lower-case hex digits.")
    began = clock.seconds()
    size_bytes = await put_blob(
        call.rpc.pool,
        call.rpc.blobs,
        seat,
        first.sha256,
        _join(first, pieces),
        size_bytes_max=call.rpc.settings.upload_bytes_max,
    )
    await note_rate(call.rpc.pool, seat.node_id, size_bytes=size_bytes, seconds=clock.seconds() - began)
    return pb.BlobEntry(sha256=first.sha256, size_bytes=size_bytes)


@rpcs.add("Get", Access.LEASE)
async def get(call: Call, request: pb.GetBlobRequest) -> AsyncIterator[pb.BlobPiece]:
    if not is_sha256(request.sha256):
        raise InvalidRequest("A content is named by its sha256 as 64 lower-case hex digits.")
    seat = await get_seat(call.rpc.pool, call.lease.attempt_id)
    size_bytes = await get_blob_size(call.rpc.pool, seat, request.sha256)
    if request.offset > size_bytes:
        raise InvalidRequest(f"The content has {size_bytes} bytes; there is nothing from {request.offset} on.")
    end = min(size_bytes, request.offset + request.length) if request.length else size_bytes
    async for piece in read_pieces(call.rpc.blobs, request.sha256, start=request.offset, end=end):
        yield piece
    if end == size_bytes:
        await note_read(call.rpc.pool, seat, request.sha256)


async def _join(first: pb.BlobPiece, pieces: AsyncIterator[pb.BlobPiece]) -> AsyncIterator[bytes]:
    at = 0
    yield _check(first, at)
    at += len(first.content)
    async for piece in pieces:
        yield _check(piece, at)
        at += len(piece.content)


def _check(piece: pb.BlobPiece, at: int) -> bytes:
    if piece.offset != at:
        raise InvalidRequest(f"A piece begins at {piece.offset}; {at} bytes have come. Send them in order.")
    return bytes(piece.content)


async def read_pieces(
    blobs: LocalBlobs, sha256: str, *, start: int = 0, end: int | None = None
) -> AsyncIterator[pb.BlobPiece]:
    at = start
    async for chunk in blobs.read(sha256, start=start, end=end):
        for first in range(0, len(chunk), FRAME_BYTES_MAX):
            content = chunk[first : first + FRAME_BYTES_MAX]
            yield pb.BlobPiece(sha256=sha256, offset=at, content=content)
            at += len(content)
