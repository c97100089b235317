"""What other hub processes have free, told as it changes, so that a slice is not given a worse slot here while a
better one waits there. A hint, never a promise: a slice waits for it a moment only.

Each hub process keeps the slots that others tell of in a fleet of its own. The table `hub_summaries` has the best
ones of every hub once a second; in between notices (NOTIFY) say which are gone and which have come, and which runs of
the queue have got slices, with the hub process that has the best slot for them. Who hears no notices, behind a
pooler, reads the table many times a second instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any
from uuid import UUID

from computepool import clock
from computepool.core.ids import AccountId, NodeId, SlotName
from computepool.core.placement.pools import Fleet, Key
from computepool.core.placement.rounds import Run
from computepool.core.placement.scorers import Candidate, score
from computepool.core.placement.shape import Shape
from computepool.core.placement.slot import SlotKind
from computepool.core.placement.weights import Preference, Weights
from computepool.hub.dispatch.summaries import (
    ASKS_MAX,
    FREE_MAX,
    GONE_MAX,
    NOBODY,
    NOTICE_MARK,
    Ask,
    Notice,
    from_notice_text,
    from_summary,
    list_summary,
    read_head,
    to_notice_text,
)
from computepool.hub.store import hub as hub_store
from computepool.hub.store.connect import Pool

log = logging.getLogger("computepool.dispatch")

# How often summaries are exchanged: by those who hear notices, or are alone; and by those who do not, as often as a
# part of their time allows.
SUMMARY_SECONDS = 1.0
DEAF_SECONDS_MIN = 0.05
DEAF_SECONDS_MAX = 0.25
TOLD_SHARE = 0.2
# Slots that come and go are collected for a moment; and what nobody has a slot for is told without haste.
SLOTS_SECONDS = 0.01
CALM_SECONDS = 0.1
# A hub process that was not heard for this long is gone, or as good as gone.
SILENT_SECONDS = 4.0
# A score must be better by this much to be worth waiting for: one part in a hundred of price or speed.
MARGIN = 0.01
# Plain work waits so long for a slot that nobody has told of before it takes a card; and longer yet where another hub
# has a better card, so that the better one is spent first.
SCARCE_GAP = 0.8
SCARCER_GAP = 1.0
# No other slice is left to the same slot for this long, if nothing is heard of it.
AWAITED_SECONDS = 0.2
# Notices that are kept to be read after a summary that is older than they are.
NOTICES_KEPT = 256
# Slots that notices may add to those of one hub process until its next summary.
SLOTS_MAX = 4_096
# Answers to "whose slot was it left to" that nobody has asked for yet.
LEFT_MAX = 10_000


@dataclass(slots=True)
class _Other:
    """Another hub process, as far as it has told."""

    keys: set[Key] = field(default_factory=set)
    # Of the last notice that was heard, and the last ones themselves.
    number: int = 0
    notices: deque[Notice] = field(default_factory=lambda: deque(maxlen=NOTICES_KEPT))
    hears: bool = False


@dataclass(frozen=True, slots=True)
class Heard:
    """What of a notice is for the rounds."""

    asks: Iterable[Ask]
    # Something that was told before has not arrived.
    missed: bool


class Elsewhere:
    def __init__(self, pool: Pool, fleet: Fleet, weights: Weights, hub_process_id: UUID) -> None:
        self._pool = pool
        self._fleet = fleet
        self._weights = weights
        self.hub_process_id = hub_process_id
        # What others have free, and at which of them it is. Taken there: a slice of ours waits for it.
        self._there = fleet.make_empty()
        self._home: dict[Key, UUID] = {}
        self._others: dict[UUID, _Other] = {}
        # Slots that slices were left to, with the time until which no other slice is; oldest first.
        self._awaited: dict[Key, tuple[Hashable, float]] = {}
        self._awaits: dict[Hashable, Key] = {}
        self._left: dict[Hashable, UUID] = {}
        # What is to be told.
        self._asks: dict[Run, UUID | None] = {}
        self._gone: dict[Key, None] = {}
        self._freed: dict[Key, None] = {}
        # What others may believe to be free here: of the last summary and notices since, and of the one before.
        self._told: set[Key] = set()
        self._told_before: set[Key] = set()
        # Notices: the number of the last one sent, of that at the last exchange, and of the last that came back here.
        self._number = self._number_exchanged = self._number_echoed = 0
        self._telling: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._tell_seconds = 0.0
        self._hurry = asyncio.Event()

    @property
    def alone(self) -> bool:
        return not self._others

    # Summaries

    async def run(self) -> None:
        while True:
            started = clock.seconds()
            try:
                await self.exchange()
            except Exception as error:
                log.warning("summaries_not_exchanged error=%r", error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._plan_pause(clock.seconds() - started)):
                    await self._hurry.wait()
                    # But never without a pause.
                    await asyncio.sleep(DEAF_SECONDS_MIN)
            self._hurry.clear()

    def _plan_pause(self, took_seconds: float) -> float:
        if self.alone or (self.hears and all(other.hears for other in self._others.values())):
            return SUMMARY_SECONDS
        return min(max(took_seconds / TOLD_SHARE, DEAF_SECONDS_MIN), DEAF_SECONDS_MAX)

    @property
    def hears(self) -> bool:
        """Whether notices arrive: what this hub process told before the last exchange has come back to it."""
        return 0 < self._number_exchanged <= self._number_echoed

    async def exchange(self) -> None:
        """One statement that tells and hears."""
        hears, quiet = self.hears, self._number == self._number_exchanged
        self._number_exchanged = self._number
        summary, keys = list_summary(self._fleet, number=self._number, hears=hears)
        self._told, self._told_before = keys, self._told
        async with self._pool.acquire() as conn:
            heard = await hub_store.exchange_summaries(
                conn,
                hub_process_id=self.hub_process_id,
                free=summary,
                seconds=SILENT_SECONDS,
            )
        for hub_process_id in [id for id in self._others if id not in heard]:
            self._forget_hub(hub_process_id)
        for hub_process_id, free in heard.items():
            self._read_summary(hub_process_id, free)
        if quiet and not self.alone:
            # Something must come back, or we would not know that nothing does.
            self._tell_after(0.0)

    def _read_summary(self, hub_process_id: UUID, free: dict[str, Any]) -> None:
        other = self._others.setdefault(hub_process_id, _Other())
        other.hears = free.get("hears", False)
        number = free.get("number", 0)
        named = {}
        for place, candidate in enumerate(from_summary(free)):
            if candidate.slot.node_id == NOBODY:
                # A hub of before does not say which slots they are.
                node_id = NodeId(UUID(int=(hub_process_id.int + place) % 2**128))
                candidate = replace(candidate, slot=replace(candidate.slot, node_id=node_id))
            named[candidate.slot.node_id, candidate.slot.name] = candidate
        for key in other.keys - named.keys():
            self._remove(other, key)
        for key, candidate in named.items():
            self._add(hub_process_id, other, key, candidate)
        for notice in other.notices:
            if notice.number > number:
                self._read_slots(other, notice)
        other.number = max(other.number, number)

    async def leave(self) -> None:
        """On shutdown: nobody should wait for slots that are here no more."""
        if self._timer is not None:
            self._timer.cancel()
        async with self._pool.acquire() as conn:
            await hub_store.delete_summary(conn, self.hub_process_id)
            if not self.alone:
                self._number += 1
                notice = Notice(self.hub_process_id, self._number, leaves=True)
                await hub_store.notify(conn, to_notice_text(notice))

    # What others have

    def _add(self, hub_process_id: UUID, other: _Other, key: Key, candidate: Candidate) -> None:
        """Free there, by its own word: whatever waited for it before, it is for everybody again."""
        before = self._home.get(key)
        if before is not None and before != hub_process_id:
            self._others[before].keys.discard(key)
        self._unawait(key)
        if before is None or self._there.get(*key) != candidate:
            self._there.add(candidate)
        self._home[key] = hub_process_id
        other.keys.add(key)

    def _remove(self, other: _Other, key: Key) -> None:
        if key in other.keys:
            self._unawait(key)
            other.keys.discard(key)
            del self._home[key]
            self._there.remove(*key)

    def _forget_hub(self, hub_process_id: UUID) -> None:
        other = self._others.pop(hub_process_id)
        for key in list(other.keys):
            self._remove(other, key)

    def _await(self, key: Key, slice_: Hashable) -> None:
        self._there.take(*key)
        self._awaited[key] = (slice_, clock.seconds() + AWAITED_SECONDS)
        self._awaits[slice_] = key

    def _unawait(self, key: Key) -> None:
        found = self._awaited.pop(key, None)
        if found is not None:
            if self._awaits.get(found[0]) == key:
                del self._awaits[found[0]]
            self._there.give(*key)

    def _end_awaits(self) -> None:
        now = clock.seconds()
        while self._awaited and (oldest := next(iter(self._awaited))) and self._awaited[oldest][1] < now:
            self._unawait(oldest)

    def find_gap(
        self,
        shape: Shape,
        prefer: Preference,
        candidate: Candidate | None,
        slice_: Hashable = None,
        account_id: AccountId | None = None,
    ) -> float:
        """How much better a slot another hub has for this slice, in points of score; 0: none worth waiting for.

        No other slice is left to the same slot there. What is the account's own costs it nothing there too. Without a
        `slice_` it is one that has no number yet: the next that asks for the same is taken to be it.
        """
        if not self._others:
            return 0.0
        self._end_awaits()
        unnamed = (shape, account_id, prefer)
        key = None
        if slice_ is not None:
            key = self._awaits.get(slice_) or self._awaits.get(unnamed)
        if key is not None:
            self._unawait(key)
        best = None
        if self._home:
            best = self._there.best(
                shape,
                prefer,
                account_id=account_id,
                weights=self._there.first_weights,
                ceiling=shape.ceiling_microcredits_per_hour,
            )
        here = float("-inf") if candidate is None else score(candidate, shape, self._weights, prefer)
        is_spared = candidate is not None and candidate.slot.kind is SlotKind.GPU and not shape.gpu
        if best is None or (there := score(best, shape, self._weights, prefer)) <= here + MARGIN:
            # A card is not spent on plain work while another hub may have a slot for it that it has not told of yet.
            return SCARCE_GAP if is_spared else 0.0
        best_key = (best.slot.node_id, best.slot.name)
        self._await(best_key, unnamed if slice_ is None else slice_)
        if best_key != key:
            self._note_left((shape, account_id) if slice_ is None else slice_, self._home[best_key])
        return max(there - here, SCARCER_GAP) if is_spared else there - here

    def keep(self, shape: Shape, account_id: AccountId) -> None:
        """The best slot for a slice that is about to be queued is here."""
        if not self.alone:
            self._note_left((shape, account_id), self.hub_process_id)

    def pop_left(self, whose: Hashable) -> UUID | None:
        """The hub process that a slice was left to since this was last asked. Of one without a number it is asked by
        shape and account."""
        return self._left.pop(whose, None)

    def _note_left(self, whose: Hashable, hub_process_id: UUID) -> None:
        if len(self._left) >= LEFT_MAX:
            self._left.clear()
        self._left[whose] = hub_process_id

    # Notices

    def note_free(self, node_id: NodeId, names: Iterable[str]) -> None:
        """Slots of a parked call: others should know of those that are still free in a moment."""
        if self.alone:
            return
        for name in names:
            key = (node_id, SlotName(name))
            self._gone.pop(key, None)
            self._freed[key] = None
        self._tell_after(SLOTS_SECONDS)

    def note_gone(self, node_id: NodeId, names: Iterable[str]) -> None:
        """They are given out, or their call has ended."""
        if self.alone:
            return
        for name in names:
            key = (node_id, SlotName(name))
            self._freed.pop(key, None)
            if key in self._told or key in self._told_before:
                self._gone[key] = None
                self._tell_after(SLOTS_SECONDS)

    def ask(self, run: Run, hub_process_id: UUID | None) -> None:
        """A slice was queued, and this hub process has the best slot for it; None: nobody that we know of.

        While nobody has any slot at all there is no haste: the first that comes is heard of.
        """
        if self.alone:
            return
        self._asks[run] = hub_process_id
        self._tell_after(CALM_SECONDS if self.hears and not self._home else 0.0)

    def _tell_after(self, seconds: float) -> None:
        """Or before, if somebody has more haste. One notice at a time, which has all that there is to tell."""
        if self._telling is not None:
            return
        loop = asyncio.get_running_loop()
        if seconds:
            seconds = max(seconds, min(self._tell_seconds / TOLD_SHARE, DEAF_SECONDS_MAX))
        due_at = loop.time() + seconds
        if self._timer is not None:
            if self._timer_at <= due_at:
                return
            self._timer.cancel()
        self._timer, self._timer_at = loop.call_later(seconds, self._start_telling), due_at

    def _start_telling(self) -> None:
        self._timer = None
        self._telling = asyncio.create_task(self._tell())

    async def _tell(self) -> None:
        started = clock.seconds()
        texts = self._list_texts()
        try:
            async with self._pool.acquire() as conn:
                for text in texts:
                    await hub_store.notify(conn, text)
        except Exception as error:
            # They are missed by their numbers, and found by the others' timers.
            log.info("others_not_told error=%r", error)
        finally:
            self._tell_seconds = clock.seconds() - started
            self._telling = None
        if self._asks:
            self._tell_after(0.0)
        elif self._gone or self._freed:
            self._tell_after(SLOTS_SECONDS)

    def _list_texts(self) -> list[str]:
        """One notice, and a word that there is more in the queue than it names."""
        many = len(self._asks) > ASKS_MAX
        asks = [] if many else [Ask(*each) for each in self._asks.items()]
        self._asks.clear()
        gone = list(islice(self._gone, GONE_MAX))
        for key in gone:
            del self._gone[key]
            self._told.discard(key)
        free, more = self._list_freed()
        self._number += 1
        notice = Notice(self.hub_process_id, self._number, asks, gone, free, more)
        return [to_notice_text(notice), *(["queue"] if many else [])]

    def _list_freed(self) -> tuple[list[Candidate], bool]:
        """What came and is still there. Of pools' slots, and of too many, it is told only that there are some."""
        free: list[Candidate] = []
        more = False
        for key in self._freed:
            if key not in self._fleet or not self._fleet.is_free(*key):
                continue
            candidate = self._fleet.get(*key)
            if candidate.slot.welcome is None and len(free) < FREE_MAX:
                free.append(candidate)
                self._told.add(key)
            else:
                more = True
        self._freed.clear()
        return free, more

    def hear(self, text: str) -> Heard | None:
        """A notice of some hub process; None: it is something else."""
        if not text.startswith(NOTICE_MARK):
            return None
        try:
            sender, number = read_head(text)
            if sender == self.hub_process_id:
                self._number_echoed = max(self._number_echoed, number)
                return Heard((), missed=False)
            notice = from_notice_text(text)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            log.warning("notice_not_understood error=%r", error)
            return None
        if notice.leaves:
            if notice.hub_process_id in self._others:
                self._forget_hub(notice.hub_process_id)
            return Heard((), missed=False)
        other = self._others.get(notice.hub_process_id)
        if other is None:
            # One that has come since the last exchange.
            self._hurry.set()
            return Heard(notice.asks, missed=False)
        missed = notice.number > other.number + 1
        other.number = notice.number
        other.notices.append(notice)
        if missed:
            self._hurry.set()
        self._read_slots(other, notice)
        if (notice.free or notice.more) and self._asks:
            self._tell_after(0.0)
        return Heard(notice.asks, missed)

    def _read_slots(self, other: _Other, notice: Notice) -> None:
        for key in notice.gone:
            self._remove(other, key)
        for candidate in notice.free:
            if len(other.keys) < SLOTS_MAX:
                key = (candidate.slot.node_id, candidate.slot.name)
                self._add(notice.hub_process_id, other, key, candidate)
