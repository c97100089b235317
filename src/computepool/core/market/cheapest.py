"""The cheapest-offer question: who would run this ask for least, answered without looking at every offer.

Holds offers that are free and open now; schedules, leases and pauses are the caller's: it puts in and takes out.
Offers stand on shelves, one per bucket, audience, kind and least seconds: whatever stands on a shelf takes the ask if
the price does. Up to spot all of them cost the same: then the one that has been free for longest is next, and not the
one with the lowest floor, so that work spreads over the fleet and nobody gains by undercutting.
Not safe for threads.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Generic, TypeVar

from computepool.core.market.offers import Ask, Audience, Offer
from computepool.core.market.price import find_start_refusal, price_match
from computepool.core.market.rate_card import Bucket

# Short, because a question looks through one chunk of every shelf; 100,000 offers on one shelf are still few chunks.
CHUNK_SIZE_MAX = 64

Key = TypeVar("Key", bound=Hashable)

# (floor, or price; free since; number of the entry)
_Item = tuple[int, float, int]
# (free since, number of the entry)
_Turn = tuple[float, int]
# Who may look at a shelf, and for what kind of job; the empty kind stands for all. Plain texts, which hash faster.
_Sight = tuple[str, Hashable, str]
_OWN, _ANYONE, _NAMED = (each.value for each in (Audience.OWN, Audience.ANYONE, Audience.NAMED))

_turn_of = itemgetter(1, 2)
_NO_STEPS: Mapping[int, _Shelf] = {}


@dataclass(frozen=True, slots=True)
class Found(Generic[Key]):
    price_microcredits_per_hour: int
    key: Key
    bucket: Bucket


@dataclass(frozen=True, slots=True)
class _Entry(Generic[Key]):
    key: Key
    bucket: Bucket
    item: _Item
    sights: tuple[_Sight, ...]
    seconds_min: int


class OfferIndex(Generic[Key]):
    def __init__(self) -> None:
        self._shelves: dict[Bucket, dict[_Sight, dict[int, _Shelf]]] = {}
        self._entries: dict[int, _Entry[Key]] = {}
        self._numbers: dict[Key, int] = {}
        self._last_number = 0

    def __len__(self) -> int:
        return len(self._numbers)

    def __contains__(self, key: Key) -> bool:
        return key in self._numbers

    def put(self, key: Key, bucket: Bucket, offer: Offer, *, free_since: float) -> None:
        """In place of what was known of it."""
        if key in self._numbers:
            self.remove(key)
        self._last_number += 1
        number = self._last_number
        item = (offer.floor_microcredits_per_hour, free_since, number)
        entry = _Entry(key, bucket, item, tuple(_list_sights(offer)), offer.seconds_min)
        self._entries[number] = entry
        self._numbers[key] = number
        shelves = self._shelves.setdefault(bucket, {})
        for sight in entry.sights:
            steps = shelves.setdefault(sight, {})
            if entry.seconds_min not in steps:
                steps[entry.seconds_min] = _Shelf()
            steps[entry.seconds_min].add(item)

    def remove(self, key: Key) -> None:
        """KeyError if it is not here."""
        entry = self._entries.pop(self._numbers.pop(key))
        shelves = self._shelves[entry.bucket]
        for sight in entry.sights:
            steps = shelves[sight]
            shelf = steps[entry.seconds_min]
            shelf.remove(entry.item)
            if not shelf:
                del steps[entry.seconds_min]
            if not steps:
                del shelves[sight]
        if not shelves:
            del self._shelves[entry.bucket]

    def find_cheapest(
        self,
        ask: Ask,
        buckets: Iterable[Bucket],
        *,
        spots: Mapping[Bucket, int],
        backlog_at_spot: Collection[Bucket] = (),
    ) -> Found[Key] | None:
        """Among these buckets; equal prices go to the offer that has been free for longest. None if nobody takes it.

        `spots` has the price of every bucket asked for, `backlog_at_spot` those where somebody waits who pays it.
        """
        sights = _list_sights_of(ask)
        best: _Item | None = None
        for bucket in buckets:
            shelves = self._shelves.get(bucket)
            if shelves is None:
                continue
            level = _find_level(ask.ceiling_microcredits_per_hour, spots[bucket], bucket in backlog_at_spot)
            for sight in sights:
                for seconds_min, shelf in shelves.get(sight, _NO_STEPS).items():
                    found = _find_best(shelf, sight, ask, level) if seconds_min <= ask.seconds else None
                    if found is not None and (best is None or found < best):
                        best = found
        if best is None:
            return None
        entry = self._entries[best[2]]
        return Found(best[0], entry.key, entry.bucket)


def _list_sights(offer: Offer) -> Iterator[_Sight]:
    """An offer always stands where its owner looks, and once more for each group that it is meant for."""
    groups: list[tuple[str, Hashable]] = [(_OWN, offer.owner_id)]
    if offer.audience is Audience.ANYONE:
        groups.append((_ANYONE, None))
    elif offer.audience is Audience.NAMED:
        groups += [(_NAMED, account_id) for account_id in offer.named]
    for audience, whom in groups:
        for kind in offer.kinds or ("",):
            yield audience, whom, kind


def _list_sights_of(ask: Ask) -> list[_Sight]:
    groups: list[tuple[str, Hashable]] = [(_OWN, ask.account_id), (_ANYONE, None), (_NAMED, ask.account_id)]
    return [(audience, whom, kind) for audience, whom in groups for kind in {"", ask.kind}]


def _find_level(ceiling: int | None, spot: int, has_backlog_at_spot: bool) -> int | None:
    """What offers up to this floor cost; None where the ask may not start at all."""
    if find_start_refusal(floor=0, ceiling=ceiling, spot=spot, has_backlog_at_spot=has_backlog_at_spot):
        return None
    return price_match(floor=0, ceiling=ceiling, spot=spot)


def _find_best(shelf: _Shelf, sight: _Sight, ask: Ask, level: int | None) -> _Item | None:
    """The best of a shelf, as (price, free since, number)."""
    audience, ceiling = sight[0], ask.ceiling_microcredits_per_hour
    if audience == _OWN:
        return (0, *shelf.get_oldest())
    lowest_floor = 0
    if audience == _ANYONE:
        if level is None:
            return None
        oldest = shelf.find_oldest(level)
        if oldest is not None:
            return (level, *oldest)
        lowest_floor = level + 1
    # Above spot, and in a private pool, the price is the floor.
    lowest = shelf.find_lowest(lowest_floor)
    return lowest if lowest is not None and (ceiling is None or lowest[0] <= ceiling) else None


class _Shelf:
    """Items in order of floor, cut into chunks; each chunk knows which of its items has been free for longest."""

    __slots__ = ("_chunks", "_lasts", "_oldest")

    def __init__(self) -> None:
        self._chunks: list[list[_Item]] = []
        self._lasts: list[_Item] = []
        self._oldest: list[_Turn] = []

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def add(self, item: _Item) -> None:
        if not self._chunks:
            self._chunks.append([])
            self._lasts.append(item)
            self._oldest.append(_turn_of(item))
        place = min(bisect_left(self._lasts, item), len(self._chunks) - 1)
        chunk = self._chunks[place]
        insort(chunk, item)
        self._lasts[place] = chunk[-1]
        self._oldest[place] = min(self._oldest[place], _turn_of(item))
        if len(chunk) > CHUNK_SIZE_MAX:
            half = len(chunk) // 2
            self._chunks[place : place + 1] = [chunk[:half], chunk[half:]]
            self._lasts[place : place + 1] = [chunk[half - 1], chunk[-1]]
            self._oldest[place : place + 1] = [min(map(_turn_of, chunk[:half])), min(map(_turn_of, chunk[half:]))]

    def remove(self, item: _Item) -> None:
        place = bisect_left(self._lasts, item)
        chunk = self._chunks[place]
        del chunk[bisect_left(chunk, item)]
        if not chunk:
            del self._chunks[place], self._lasts[place], self._oldest[place]
            return
        self._lasts[place] = chunk[-1]
        if self._oldest[place] == _turn_of(item):
            self._oldest[place] = min(map(_turn_of, chunk))

    def get_oldest(self) -> _Turn:
        return min(self._oldest)

    def find_oldest(self, floor_max: int) -> _Turn | None:
        """Free for longest, among those whose floor is not above this one."""
        end: _Item = (floor_max + 1, float("-inf"), 0)
        whole = bisect_left(self._lasts, end)
        found = min(self._oldest[:whole], default=None)
        if whole < len(self._chunks):
            chunk = self._chunks[whole]
            part = min(map(_turn_of, chunk[: bisect_left(chunk, end)]), default=None)
            if part is not None and (found is None or part < found):
                found = part
        return found

    def find_lowest(self, floor_min: int) -> _Item | None:
        """The lowest floor that is not below this one; of equal floors the one that has been free for longest."""
        start: _Item = (floor_min, float("-inf"), 0)
        place = bisect_left(self._lasts, start)
        if place == len(self._chunks):
            return None
        chunk = self._chunks[place]
        return chunk[bisect_left(chunk, start)]
