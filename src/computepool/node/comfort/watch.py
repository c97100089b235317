"""Looks at the seat several times a second, decides, and makes the agent give way or take work again.

If the look itself breaks, the machine counts as wanted by its owner: a deaf watch must never mean a lent machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from computepool import clock
from computepool.node import journal
from computepool.node.comfort.port import Reader, Rest, Seat
from computepool.node.comfort.rules import ALWAYS, InvalidRules, Rules, parse_rules
from computepool.node.comfort.verdict import LEND, Ground, Readings, Reason, Verdict, decide
from computepool.node.wishes import NO_WISH, find_wish

# While jobs run: the owner gets the machine back within two seconds, of which looking is the first part.
LOOK_SECONDS = 0.25
# While nothing runs there is nothing to free; but a job may begin right after a look.
IDLE_LOOK_SECONDS = 0.5
REST_SECONDS = 2.0


class Lender(Protocol):
    """What the watch may tell the agent."""

    @property
    def is_empty(self) -> bool: ...

    def make_way(self, words: str, *, grace_seconds: float) -> None: ...

    def take_up(self) -> None: ...

    def pause(self, is_paused: bool) -> None: ...


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the watch looks."""

    reader: Reader
    rules_path: Path
    wish_path: Path
    # On the clock on the wall: rules speak of hours.
    now: Callable[[], datetime] = lambda: clock.now().astimezone()


class Watch:
    def __init__(self, sources: Sources, lender: Lender, *, drain: Callable[[], object]) -> None:
        self._sources = sources
        self._lender = lender
        self._drain = drain
        self._rules_seen: tuple[int, int] | None = None
        self._rest = Rest()
        self._seat = Seat(None, "not looked at yet")
        self._wish = NO_WISH
        self.rules = ALWAYS
        self.verdict = LEND

    @property
    def is_paused(self) -> bool:
        return self._wish.pause

    async def run(self) -> None:
        """For ever."""
        resting = asyncio.ensure_future(self._run_rests())
        try:
            while True:
                await asyncio.sleep(IDLE_LOOK_SECONDS if self._lender.is_empty else LOOK_SECONDS)
                await self.look()
        finally:
            resting.cancel()
            await asyncio.gather(resting, return_exceptions=True)

    async def begin(self) -> None:
        """The first look at everything, before any work is asked for."""
        await asyncio.to_thread(self._read_rules)
        await self._look_at_rest()
        await self.look()

    async def look(self) -> None:
        try:
            verdict = await asyncio.to_thread(self._decide)
        except Exception as error:
            # The top of this loop; see above for why this makes way.
            journal.error("watch_broke", trace=error)
            verdict = Verdict((Reason(Ground.WATCH_BROKE, f"Whether you are here cannot be seen: {error!r}."),))
        self._act(verdict)

    async def _run_rests(self) -> None:
        while True:
            await asyncio.sleep(REST_SECONDS)
            await self._look_at_rest()

    async def _look_at_rest(self) -> None:
        look = self._sources.reader.look_at_rest
        programs, gpus = bool(self.rules.never_while), bool(self.rules.gpu_celsius_max)
        if self.rules == ALWAYS:
            return
        try:
            self._rest = await asyncio.to_thread(look, programs=programs, gpus=gpus)
        except Exception as error:
            journal.error("comfort_reading_broke", trace=error)

    def _decide(self) -> Verdict:
        self._read_rules()
        self._wish = find_wish(self._sources.wish_path)
        if self.rules.idle_minutes:
            self._seat = self._sources.reader.look_at_seat()
        verdict = decide(self._combine(), self.rules, now=self._sources.now(), before=self.verdict)
        if self._wish.pause and self._wish.now:
            paused = Reason(Ground.PAUSED, "You paused this machine: computepool node resume.")
            verdict = Verdict((paused, *verdict.reasons))
        return verdict

    def _combine(self) -> Readings:
        rest = self._rest
        return Readings(
            idle_seconds=self._seat.idle_seconds,
            seat=self._seat.words,
            on_battery=rest.on_battery,
            is_metered=rest.is_metered,
            programs=rest.programs,
            gpu_celsius=rest.gpu_celsius,
            cpu_percent=rest.cpu_percent,
            has_jobs=not self._lender.is_empty,
        )

    def _read_rules(self) -> None:
        """Anew when the file has changed. A file that cannot be used changes nothing, and the log says so."""
        try:
            seen = self._sources.rules_path.stat()
        except OSError:
            self.rules, self._rules_seen = ALWAYS, None
            return
        mark = (seen.st_mtime_ns, seen.st_size)
        if mark == self._rules_seen:
            return
        self._rules_seen = mark
        try:
            self.rules = read_rules(self._sources.rules_path)
            journal.info("comfort_rules_read", path=self._sources.rules_path)
        except InvalidRules as error:
            journal.error("comfort_rules_refused", path=self._sources.rules_path, reason=error)

    def _act(self, verdict: Verdict) -> None:
        before, self.verdict = self.verdict, verdict
        self._lender.pause(self._wish.pause)
        if self._wish.drain:
            self._sources.wish_path.unlink(missing_ok=True)
            self._wish = NO_WISH
            self._drain()
        if verdict.lends and not before.lends:
            journal.info("owner_left")
            self._lender.take_up()
        elif not verdict.lends:
            if before.lends:
                grounds = ",".join(reason.ground.value for reason in verdict.reasons)
                journal.info("owner_returned", grounds=grounds, reason=verdict.words)
            # Every time: what came in meanwhile has to go, too.
            self._lender.make_way(verdict.words, grace_seconds=self.rules.grace_seconds)


def read_rules(path: Path) -> Rules:
    """Without a file: always. Raises InvalidRules."""
    try:
        return parse_rules(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return ALWAYS
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRules(f"{path} cannot be read: {error}") from None
