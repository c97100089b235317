"""Slices that the record refuses to lease again and again, though it says that they wait.

Now and then that is a race with another hub, or a slot that is not as free as it seems, and the node is looked up.
What is refused every time can only be a record at odds with itself; it must not take the slots from all others round
after round, so it is left alone, for longer each time, and the log names it for the operator.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass

from computepool import clock
from computepool.core.ids import JobId

log = logging.getLogger("computepool.dispatch")

REFUSALS_MAX = 3
# 1, 2, 4 .. s. It begins short: a few refusals in a row may be bad luck while connections break.
ASIDE_SECONDS = 1.0
ASIDE_SECONDS_MAX = 60.0
# From this many on the log names it.
NAMED_AFTER = 6
REMEMBERED_MAX = 10_000

Slice = tuple[JobId, int]


@dataclass(slots=True)
class _Story:
    refusals: int = 0
    aside_until: float = 0.0


class Stubborn:
    def __init__(self) -> None:
        self._stories: OrderedDict[Slice, _Story] = OrderedDict()

    def note_refused(self, slice_: Slice) -> None:
        story = self._stories.setdefault(slice_, _Story())
        self._stories.move_to_end(slice_)
        story.refusals += 1
        beyond = story.refusals - REFUSALS_MAX
        if beyond >= 0:
            story.aside_until = clock.seconds() + min(ASIDE_SECONDS * 2.0 ** min(beyond, 16), ASIDE_SECONDS_MAX)
        if story.refusals >= NAMED_AFTER:
            log.error("slice_cannot_be_leased job_id=%s slice=%d refusals=%d", *slice_, story.refusals)
        while len(self._stories) > REMEMBERED_MAX:
            self._stories.popitem(last=False)

    def note_granted(self, slice_: Slice) -> None:
        if self._stories:
            self._stories.pop(slice_, None)

    def is_aside(self, slice_: Slice) -> bool:
        story = self._stories.get(slice_) if self._stories else None
        return story is not None and story.aside_until > clock.seconds()
