"""Files by their hash, and uploads that are cut on the way."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from computepool.core.errors import HubUnavailable, InvalidRequest, PayloadTooLarge
from computepool.hub.blobs.local import PART_KEEP_SECONDS, LocalBlobs

CONTENT = bytes(range(256)) * 40
SHA256 = hashlib.sha256(CONTENT).hexdigest()
PART = "attempt"


class LineBroke(Exception):
    pass


async def send(content: bytes, *, breaks: bool = False) -> AsyncIterator[bytes]:
    for start in range(0, len(content), 1_000):
        yield content[start : start + 1_000]
    if breaks:
        raise LineBroke


@pytest.fixture
def blobs(tmp_path: Path) -> LocalBlobs:
    made = LocalBlobs(tmp_path)
    made.open_store()
    return made


async def cut_after(blobs: LocalBlobs, size: int, *, offset: int = 0) -> None:
    with pytest.raises(LineBroke):
        await go_on(blobs, send(CONTENT[offset:size], breaks=True), offset=offset)


async def go_on(blobs: LocalBlobs, chunks: AsyncIterator[bytes], *, offset: int = 0, size_max: int = 10**6) -> int:
    return await blobs.write_rest(PART, SHA256, chunks, offset=offset, size_bytes_max=size_max)


def count_files(tmp_path: Path) -> int:
    return len(list((tmp_path / "incoming").iterdir()))


async def test_an_upload_that_is_cut_again_and_again_goes_on_where_it_was(blobs, tmp_path):
    await cut_after(blobs, 3_000)
    assert blobs.count_arrived(PART, SHA256) == 3_000
    await cut_after(blobs, 7_500, offset=3_000)
    assert blobs.count_arrived(PART, SHA256) == 7_500
    assert count_files(tmp_path) == 1, "what the next one has copied is gone"
    assert not blobs.has(SHA256)
    assert await go_on(blobs, send(CONTENT[7_500:]), offset=7_500) == len(CONTENT)
    assert b"".join([piece async for piece in blobs.read(SHA256)]) == CONTENT
    assert (blobs.count_arrived(PART, SHA256), count_files(tmp_path)) == (0, 0)


async def test_whoever_begins_again_may_and_less_than_has_arrived_may_be_gone_on_from(blobs, tmp_path):
    await cut_after(blobs, 5_000)
    assert await go_on(blobs, send(CONTENT[2_000:]), offset=2_000) == len(CONTENT)
    await cut_after(blobs, 5_000)
    assert await go_on(blobs, send(CONTENT)) == len(CONTENT)
    assert count_files(tmp_path) == 0


async def test_a_call_whose_line_is_dead_hangs_on_and_disturbs_nobody(blobs, tmp_path):
    reached, release = asyncio.Event(), asyncio.Event()

    async def hang() -> AsyncIterator[bytes]:
        async for chunk in send(CONTENT[:9_000]):
            yield chunk
        reached.set()
        await release.wait()
        yield b"late" * 5_000

    hanging = asyncio.ensure_future(go_on(blobs, hang()))
    await reached.wait()
    arrived = blobs.count_arrived(PART, SHA256)
    assert arrived > 0
    assert await go_on(blobs, send(CONTENT[arrived:]), offset=arrived) == len(CONTENT)
    release.set()
    with pytest.raises(InvalidRequest):
        await hanging
    assert b"".join([piece async for piece in blobs.read(SHA256)]) == CONTENT
    assert count_files(tmp_path) == 0


async def test_more_than_has_arrived_is_not_believed_and_what_is_there_stays(blobs):
    await cut_after(blobs, 3_000)
    with pytest.raises(HubUnavailable, match="Less of the file has arrived"):
        await go_on(blobs, send(CONTENT[4_000:]), offset=4_000)
    assert blobs.count_arrived(PART, SHA256) == 3_000
    assert blobs.count_arrived("another", SHA256) == 0


async def test_wrong_bytes_are_refused_and_of_a_damaged_part_nothing_is_left(blobs, tmp_path):
    with pytest.raises(InvalidRequest, match="hash to"):
        await go_on(blobs, send(b"x" * 100))
    await cut_after(blobs, 3_000)
    [part] = (tmp_path / "incoming").iterdir()
    part.write_bytes(bytes(3_000))
    with pytest.raises(HubUnavailable, match="damaged"):
        await go_on(blobs, send(CONTENT[3_000:]), offset=3_000)
    assert (blobs.count_arrived(PART, SHA256), count_files(tmp_path), blobs.has(SHA256)) == (0, 0, False)


async def test_the_limit_is_that_of_the_whole_file(blobs, tmp_path):
    await cut_after(blobs, 3_000)
    with pytest.raises(PayloadTooLarge):
        await go_on(blobs, send(CONTENT[3_000:]), offset=3_000, size_max=5_000)


async def test_what_nobody_goes_on_with_is_swept_after_a_day(tmp_path):
    for age in (PART_KEEP_SECONDS + 60, PART_KEEP_SECONDS - 600):
        blobs = LocalBlobs(tmp_path)
        blobs.open_store()
        await cut_after(blobs, 3_000)
        [part] = (tmp_path / "incoming").iterdir()
        then = part.stat().st_mtime - age
        os.utime(part, (then, then))
        await LocalBlobs(tmp_path).write_rest("other", SHA256, send(CONTENT), offset=0, size_bytes_max=10**6)
        assert blobs.count_arrived(PART, SHA256) == (0 if age > PART_KEEP_SECONDS else 3_000)
        blobs._remove_parts(PART, SHA256)
