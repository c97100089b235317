"""Who watches, and the frames that wait for each. A viewer that does not keep up is cut, and told so."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from computepool.core.errors import LimitExceeded
from computepool.core.ids import AccountId, RunId
from computepool.wire.live import ByeCode, LiveBye

# Frames that wait for one viewer: four seconds' worth, and whoever is further behind is cut.
QUEUE_FRAMES_MAX = 16
VIEWERS_MAX = 10_000
VIEWERS_PER_ACCOUNT_MAX = 100
VIEWERS_PER_ADDRESS_MAX = 100
# Viewers that are woken at a time, and the time over which all of them are: woken at once, a thousand of them would
# take the processors from dispatch for as long as it takes to write to each, and to read it at their end.
WAKE_COUNT = 8
SPREAD_SECONDS = 0.15

_WORDS = {
    ByeCode.SLOW: ("You did not read as fast as things happened. Connect again.", 2.0),
    ByeCode.CLOSING: ("This hub ends. Connect again: another one will answer.", 1.0),
    ByeCode.OVER: ("The stream has lasted as long as it may. Connect again to go on.", 0.25),
    ByeCode.SIGNED_OUT: ("The key that this stream was opened with is not good any more. Sign in again.", 30.0),
}


@dataclass(frozen=True, slots=True)
class Topic:
    """What a viewer is shown. Viewers of one topic get the same bytes."""

    # None: a stranger, or an operator who sees everyone's.
    account_id: AccountId | None = None
    everyone: bool = False
    mesh: bool = False
    run_id: RunId | None = None

    @property
    def is_public(self) -> bool:
        return self.account_id is None and not self.everyone


# What is counted against a limit: an account, or a stranger's address.
Origin: TypeAlias = AccountId | str


@dataclass(eq=False, slots=True)
class Viewer:
    topic: Topic
    origin: Origin
    # What the stream was opened with; looked at again when the account has changed.
    credential: str = ""
    waiting: deque[bytes] = field(default_factory=deque)
    bye: ByeCode | None = None
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, frame: bytes) -> None:
        if self.bye is not None:
            return
        if len(self.waiting) >= QUEUE_FRAMES_MAX:
            self.waiting.clear()
            self.end(ByeCode.SLOW)
            return
        self.waiting.append(frame)
        self._wake.set()

    def end(self, code: ByeCode) -> None:
        """Whatever waits is sent before the last word."""
        if self.bye is None:
            self.bye = code
        self._wake.set()

    async def take(self) -> bytes:
        """All that waits, once there is something; empty when nothing more will come."""
        while not self.waiting and self.bye is None:
            self._wake.clear()
            await self._wake.wait()
        frames = b"".join(self.waiting)
        self.waiting.clear()
        return frames


class Viewers:
    def __init__(self) -> None:
        self._by_topic: dict[Topic, set[Viewer]] = {}
        self._counts: dict[Origin, int] = {}
        self.came = asyncio.Event()
        self._woken = 0

    def __len__(self) -> int:
        return sum(map(len, self._by_topic.values()))

    def __iter__(self) -> Iterator[Viewer]:
        return iter([viewer for viewers in self._by_topic.values() for viewer in viewers])

    @property
    def topics(self) -> list[Topic]:
        return list(self._by_topic)

    def add(self, viewer: Viewer) -> None:
        count = self._counts.get(viewer.origin, 0)
        most = VIEWERS_PER_ADDRESS_MAX if viewer.topic.is_public else VIEWERS_PER_ACCOUNT_MAX
        if len(self) >= VIEWERS_MAX or count >= most:
            raise LimitExceeded(
                f"{count} live streams of yours are open at this hub, and {len(self)} in all. Close some first.",
                retry_after_seconds=10,
            )
        self._counts[viewer.origin] = count + 1
        self._by_topic.setdefault(viewer.topic, set()).add(viewer)
        self.came.set()

    def remove(self, viewer: Viewer) -> None:
        viewers = self._by_topic.get(viewer.topic, set())
        if viewer not in viewers:
            return
        viewers.remove(viewer)
        if not viewers:
            del self._by_topic[viewer.topic]
        self._counts[viewer.origin] -= 1
        if not self._counts[viewer.origin]:
            del self._counts[viewer.origin]

    async def publish(self, topic: Topic, frame: bytes) -> None:
        """To all viewers of a topic, a few at a time: a thousand sockets must not hold up a node's call."""
        pause_seconds = SPREAD_SECONDS * WAKE_COUNT / max(WAKE_COUNT, len(self))
        for viewer in list(self._by_topic.get(topic, ())):
            viewer.put(frame)
            self._woken += 1
            if self._woken % WAKE_COUNT == 0:
                await asyncio.sleep(pause_seconds)

    def list_of_account(self, account_id: AccountId | None) -> list[Viewer]:
        """None: all who have signed in."""
        return [v for v in self if v.credential and (account_id is None or v.origin == account_id)]

    def end_all(self, code: ByeCode, viewers: Iterable[Viewer] | None = None) -> None:
        for viewer in list(self) if viewers is None else viewers:
            viewer.end(code)


def say_bye(code: ByeCode) -> bytes:
    message, retry_seconds = _WORDS[code]
    bye = LiveBye(code=code, message=message, retry_seconds=retry_seconds)
    return b"retry: %d\n" % round(retry_seconds * 1_000) + to_message("bye", bye)


def to_message(name: str, content: msgspec.Struct, *, cursor: str = "") -> bytes:
    """One message of a stream of server-sent events. JSON has no line breaks of its own."""
    head = f"id: {cursor}\n" if cursor else ""
    return f"{head}event: {name}\ndata: ".encode() + msgspec.json.encode(content) + b"\n\n"
