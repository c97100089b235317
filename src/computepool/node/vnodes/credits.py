"""What may be sent to one peer and in which order, and what has come from it. Bookkeeping only: no stream, no clock.

Credits are counted per edge and kind, in tensors: a sender has at most a window of them on their way, and gets one
back when the receiver has taken it. So an activation that waits never holds up a gradient, and a receiver's memory is
bounded. What was not taken when a stream broke is sent again over the next one, and taken once.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from computepool.node.vnodes.frames import FrameHead, FrameKind
from computepool.node.vnodes.wire_frames import Fault, FaultCode, Lane, ParcelKey, encode_frame, key_of

# Tensors of one edge and kind that may be on their way.
WINDOW = 8
WINDOW_MAX = 64
# What the other side waits for before anything else can get on.
URGENT = frozenset({FrameKind.GRADIENT, FrameKind.NORMS, FrameKind.TOTAL, FrameKind.REDUCE, FrameKind.REDUCED})
# Kept for one peer, on either side.
BYTES_MAX = 2 << 30
# Edges and kinds that one peer may use in an epoch.
LANES_MAX = 20_000
# Taken tensors that are remembered per edge and kind, so that one sent again is not taken twice.
REMEMBERED = 2 * WINDOW_MAX


class OutboxFull(Exception):
    """More waits for this peer than any run should have under way."""


@dataclass(slots=True, eq=False)
class Parcel:
    """A tensor on its way to a peer."""

    key: ParcelKey
    head: FrameHead
    # The head as bytes: what every frame of this tensor begins with.
    prefix: bytes
    content: memoryview
    offset: int = 0
    # Whether the last frame of it has left.
    is_sent: bool = False
    refusals: int = 0

    @property
    def is_urgent(self) -> bool:
        return self.key.lane.kind in URGENT


@dataclass(slots=True)
class _LaneOut:
    waiting: deque[Parcel] = field(default_factory=deque)
    under_way: dict[ParcelKey, Parcel] = field(default_factory=dict)


@dataclass(slots=True)
class Outbox:
    """What waits for one peer, and what is on its way to it and not yet taken."""

    window: int = WINDOW
    bytes_max: int = BYTES_MAX
    # The peer has proven that it is in this epoch; later ones wait until it is there.
    epoch: int = 0
    _lanes: dict[Lane, _LaneOut] = field(default_factory=dict)
    # Parcels with credit, the urgent ones first; the first of each may be half sent.
    _ready: tuple[deque[Parcel], deque[Parcel]] = field(default_factory=lambda: (deque(), deque()))
    _bytes: int = 0

    def post(self, parcel: Parcel) -> None:
        """Raises OutboxFull. A tensor that is here already is not taken twice."""
        lane = self._lanes.setdefault(parcel.key.lane, _LaneOut())
        if parcel.key in lane.under_way or any(parcel.key == each.key for each in lane.waiting):
            return
        if self._bytes + len(parcel.content) > self.bytes_max:
            raise OutboxFull(f"{self._bytes:,} bytes wait for this peer already")
        self._bytes += len(parcel.content)
        lane.waiting.append(parcel)
        self._promote(lane)

    def count_waiting(self, lane: Lane) -> int:
        """Without credit yet."""
        found = self._lanes.get(lane)
        return len(found.waiting) if found else 0

    def next_frame(self) -> bytes | None:
        """The next frame to write: of a gradient if there is one, whatever is half sent besides."""
        for ready in self._ready:
            while ready and ready[0].is_sent:
                ready.popleft()
            if ready and ready[0].key.lane.epoch <= self.epoch:
                return self._cut_frame(ready[0])
        return None

    def _cut_frame(self, parcel: Parcel) -> bytes:
        raw, parcel.offset = encode_frame(parcel.prefix, parcel.content, parcel.offset)
        parcel.is_sent = parcel.offset >= len(parcel.content)
        return raw

    def take_back(self, key: ParcelKey) -> Parcel | None:
        """The peer has taken it, or wants no more of it: its credit is free. None: there was no such parcel."""
        lane = self._lanes.get(key.lane)
        parcel = lane.under_way.pop(key, None) if lane else None
        if lane is None or parcel is None:
            return None
        self._bytes -= len(parcel.content)
        self._forget([parcel])
        self._promote(lane)
        return parcel

    def find(self, key: ParcelKey) -> Parcel | None:
        lane = self._lanes.get(key.lane)
        return lane.under_way.get(key) if lane else None

    def send_again(self, parcel: Parcel) -> None:
        if self.find(parcel.key) is parcel:
            self._forget([parcel])
            self._make_ready(parcel)

    def begin_stream(self, *, window: int) -> None:
        """Over a new stream everything that was not taken is sent from its first byte, in the same order."""
        self.window = max(1, min(window, WINDOW_MAX))
        for ready in self._ready:
            ready.clear()
        for lane in self._lanes.values():
            for parcel in lane.under_way.values():
                self._make_ready(parcel)
            self._promote(lane)

    def drop_before(self, epoch: int) -> None:
        """Nobody wants what belongs to an earlier epoch."""
        old = [lane for lane in self._lanes if lane.epoch < epoch]
        for lane in old:
            found = self._lanes.pop(lane)
            parcels = [*found.under_way.values(), *found.waiting]
            self._bytes -= sum(len(parcel.content) for parcel in parcels)
            self._forget(parcels)

    def _promote(self, lane: _LaneOut) -> None:
        while lane.waiting and len(lane.under_way) < self.window:
            parcel = lane.waiting.popleft()
            lane.under_way[parcel.key] = parcel
            self._make_ready(parcel)

    def _make_ready(self, parcel: Parcel) -> None:
        parcel.offset, parcel.is_sent = 0, False
        self._ready[0 if parcel.is_urgent else 1].append(parcel)

    def _forget(self, parcels: list[Parcel]) -> None:
        gone = {id(parcel) for parcel in parcels}
        for ready in self._ready:
            if any(id(parcel) in gone for parcel in ready):
                kept = [parcel for parcel in ready if id(parcel) not in gone]
                ready.clear()
                ready.extend(kept)


@dataclass(slots=True)
class _Assembly:
    head: FrameHead
    content: bytearray
    filled: int = 0


@dataclass(slots=True)
class _LaneIn:
    # Being put together, and whole but not yet taken.
    arriving: dict[ParcelKey, _Assembly] = field(default_factory=dict)
    held: dict[ParcelKey, int] = field(default_factory=dict)
    taken: OrderedDict[ParcelKey, None] = field(default_factory=OrderedDict)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A whole tensor; `repeated` if it was taken before, and only its credit must be given back once more."""

    key: ParcelKey
    head: FrameHead
    content: bytearray
    repeated: bool = False


@dataclass(slots=True)
class Inbox:
    """What is coming from one peer."""

    window: int = WINDOW
    bytes_max: int = BYTES_MAX
    _lanes: dict[Lane, _LaneIn] = field(default_factory=dict)
    _bytes: int = 0

    def add(self, head: FrameHead, *, offset: int, total_bytes: int, content: bytes) -> Arrival | Fault | None:
        """None: more frames of this tensor are to come, or it is here already."""
        key = key_of(head)
        if key.lane not in self._lanes and len(self._lanes) >= LANES_MAX:
            return Fault(FaultCode.NO_CREDIT, f"{LANES_MAX:,} edges of this peer are under way already")
        lane = self._lanes.setdefault(key.lane, _LaneIn())
        if key in lane.taken:
            last = offset + len(content) == total_bytes
            return Arrival(key, head, bytearray(), repeated=True) if last else None
        if key in lane.held:
            return None
        assembly = lane.arriving.get(key)
        if assembly is None:
            fault = self._find_fault(lane, offset, total_bytes)
            if fault is not None:
                return fault
            assembly = lane.arriving[key] = _Assembly(head, bytearray(total_bytes))
            self._bytes += total_bytes
        if offset != assembly.filled or head != assembly.head:
            self._drop(lane, key)
            return Fault(FaultCode.OUT_OF_ORDER, f"a frame from byte {offset:,}; {assembly.filled:,} are here")
        assembly.content[offset : offset + len(content)] = content
        assembly.filled += len(content)
        if assembly.filled < total_bytes:
            return None
        del lane.arriving[key]
        lane.held[key] = total_bytes
        return Arrival(key, head, assembly.content)

    def release(self, key: ParcelKey) -> bool:
        """It was taken: its credit may go back. False if it was not held."""
        lane = self._lanes.get(key.lane)
        size = lane.held.pop(key, None) if lane else None
        if lane is None or size is None:
            return False
        self._bytes -= size
        lane.taken[key] = None
        if len(lane.taken) > REMEMBERED:
            lane.taken.popitem(last=False)
        return True

    def give_up(self, key: ParcelKey) -> None:
        """It was refused: if it comes again, it is looked at again."""
        lane = self._lanes.get(key.lane)
        if lane is None:
            return
        self._drop(lane, key)
        self._bytes -= lane.held.pop(key, 0)

    def begin_stream(self) -> None:
        """What came in half over the old stream comes whole over the new one."""
        for lane in self._lanes.values():
            for key in list(lane.arriving):
                self._drop(lane, key)

    def drop_before(self, epoch: int) -> None:
        for each in [lane for lane in self._lanes if lane.epoch < epoch]:
            self._bytes -= sum(self._sizes(self._lanes.pop(each)))

    def _find_fault(self, lane: _LaneIn, offset: int, total_bytes: int) -> Fault | None:
        if offset:
            return Fault(FaultCode.OUT_OF_ORDER, f"the first frame begins at byte {offset:,}, not at 0")
        if len(lane.arriving) + len(lane.held) >= self.window:
            return Fault(FaultCode.NO_CREDIT, f"{self.window} tensors of this edge and kind are under way already")
        if self._bytes + total_bytes > self.bytes_max:
            return Fault(FaultCode.NO_CREDIT, f"{self._bytes:,} bytes of this peer are held already")
        return None

    def _drop(self, lane: _LaneIn, key: ParcelKey) -> None:
        assembly = lane.arriving.pop(key, None)
        if assembly is not None:
            self._bytes -= len(assembly.content)

    @staticmethod
    def _sizes(lane: _LaneIn) -> Iterator[int]:
        yield from (len(assembly.content) for assembly in lane.arriving.values())
        yield from lane.held.values()
