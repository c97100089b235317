"""Input files come from the cache only with the right bytes, and the cache stays within its size."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from computepool.core.errors import NotFound
from computepool.node.input_cache import Download, InputCache, WrongBytes


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Source:
    """Counts downloads and serves whatever it was given, in small pieces."""

    def __init__(self, *contents: bytes) -> None:
        self.contents = list(contents)
        self.count = 0

    def __call__(self) -> Download:
        @asynccontextmanager
        async def download() -> AsyncIterator[AsyncIterator[bytes]]:
            content = self.contents[min(self.count, len(self.contents) - 1)]
            self.count += 1
            yield self._pieces(content)

        return download

    async def _pieces(self, content: bytes) -> AsyncIterator[bytes]:
        for start in range(0, len(content), 7):
            await asyncio.sleep(0)
            yield content[start : start + 7]


async def fetch(cache: InputCache, content: bytes, source: Source) -> Path:
    return await cache.fetch(sha256(content), len(content), source())


async def test_a_file_is_downloaded_once_and_then_found(tmp_path: Path) -> None:
    cache, source = InputCache(tmp_path, bytes_max=1_000), Source(b"hello world")
    first = await fetch(cache, b"hello world", source)
    again = await fetch(cache, b"hello world", source)
    assert first == again
    assert first.read_bytes() == b"hello world"
    assert source.count == 1
    assert first.stat().st_mode & 0o777 == 0o600


async def test_two_attempts_that_want_the_same_file_download_it_once(tmp_path: Path) -> None:
    cache, source = InputCache(tmp_path, bytes_max=1_000), Source(b"x" * 500)
    await asyncio.gather(*(fetch(cache, b"x" * 500, source) for _ in range(5)))
    assert source.count == 1


async def test_a_file_that_was_changed_on_disk_is_fetched_again(tmp_path: Path) -> None:
    cache, source = InputCache(tmp_path, bytes_max=1_000), Source(b"hello world")
    path = await fetch(cache, b"hello world", source)
    path.write_bytes(b"hello w0rld")
    assert (await fetch(cache, b"hello world", source)).read_bytes() == b"hello world"
    assert source.count == 2


async def test_wrong_bytes_are_tried_again_and_never_handed_out(tmp_path: Path) -> None:
    cache = InputCache(tmp_path, bytes_max=1_000)
    mended = Source(b"wrong bytes", b"hello world")
    assert (await fetch(cache, b"hello world", mended)).read_bytes() == b"hello world"
    hopeless = Source(b"wrong")
    with pytest.raises(WrongBytes):
        await cache.fetch(sha256(b"other"), 5, hopeless())
    assert hopeless.count == 3
    assert {path.name for path in tmp_path.iterdir()} == {sha256(b"hello world")}


async def test_a_download_longer_than_announced_is_cut_off(tmp_path: Path) -> None:
    cache = InputCache(tmp_path, bytes_max=1_000)
    with pytest.raises(WrongBytes, match="more than"):
        await cache.fetch(sha256(b"short"), 5, Source(b"short" * 1_000)())
    assert list(tmp_path.iterdir()) == []


async def test_the_longest_unused_file_makes_room(tmp_path: Path) -> None:
    cache = InputCache(tmp_path, bytes_max=250)
    paths = [await fetch(cache, name * 100, Source(name * 100)) for name in (b"a", b"b")]
    os.utime(paths[0], ns=(2_000, 2_000))
    os.utime(paths[1], ns=(1_000, 1_000))
    await fetch(cache, b"c" * 100, Source(b"c" * 100))
    assert paths[0].exists()
    assert not paths[1].exists()


async def test_a_pinned_file_stays_until_it_is_let_go(tmp_path: Path) -> None:
    cache = InputCache(tmp_path, bytes_max=100)
    held = await fetch(cache, b"a" * 80, Source(b"a" * 80))
    cache.pin([held.name])
    cache.pin([held.name])
    await fetch(cache, b"b" * 80, Source(b"b" * 80))
    cache.unpin([held.name])
    await fetch(cache, b"c" * 80, Source(b"c" * 80))
    assert held.exists()
    cache.unpin([held.name])
    await fetch(cache, b"d" * 80, Source(b"d" * 80))
    assert not held.exists()


async def test_a_missing_file_is_not_asked_for_again(tmp_path: Path) -> None:
    tries = []

    @asynccontextmanager
    async def download() -> AsyncIterator[AsyncIterator[bytes]]:
        tries.append(1)
        raise NotFound("The job has no such input.")
        yield  # type: ignore[unreachable]

    with pytest.raises(NotFound):
        await InputCache(tmp_path, bytes_max=100).fetch("0" * 64, 5, download)
    assert len(tries) == 1


def test_half_downloads_of_an_earlier_agent_are_swept(tmp_path: Path) -> None:
    (tmp_path / "abc.x.part").write_bytes(b"half")
    InputCache(tmp_path, bytes_max=100)
    assert list(tmp_path.iterdir()) == []
