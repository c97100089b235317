"""When a segment may do what: 1F1B by local rules, without a barrier and without anybody who conducts.

Forwards and backwards go in the order of the micro-batches, a backward comes before a forward, and no more forwards
are open than there are hosts from here to the loss. A segment begins a step after its own update of the one before.
Each rule looks at this segment alone; that the lowest micro-batch can always move makes the whole get on.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Work(IntEnum):
    """What can be done next, most urgent first: a backward frees memory and a neighbour; an update opens a step."""

    BACKWARD = 0
    UPDATE = 1
    FORWARD = 2


@dataclass(slots=True)
class Gate:
    """Where one segment stands. `micro_batches` are those of its replica."""

    micro_batches: range
    in_flight_max: int
    step: int
    until_step: int
    # Counts within the step.
    forwarded: int = 0
    returned: int = 0

    @property
    def next_forward(self) -> int | None:
        """The micro-batch that may go forward now, once its inputs are there."""
        if self.step >= self.until_step or self.forwarded == len(self.micro_batches):
            return None
        if self.forwarded - self.returned >= self.in_flight_max:
            return None
        return self.micro_batches[self.forwarded]

    @property
    def next_backward(self) -> int | None:
        """The micro-batch whose forward is done and that goes back next, once its gradients are there."""
        return self.micro_batches[self.returned] if self.returned < self.forwarded else None

    @property
    def is_step_over(self) -> bool:
        """All that the step's update needs of this segment has been computed."""
        return self.returned == len(self.micro_batches)

    @property
    def is_between_steps(self) -> bool:
        return self.forwarded == 0

    def begin_next_step(self) -> None:
        self.step += 1
        self.forwarded = self.returned = 0

    def has_forwarded(self, step: int, micro_batch: int) -> bool:
        return step < self.step or (step == self.step and self._index(micro_batch) < self.forwarded)

    def has_returned(self, step: int, micro_batch: int) -> bool:
        return step < self.step or (step == self.step and self._index(micro_batch) < self.returned)

    def _index(self, micro_batch: int) -> int:
        return (micro_batch - self.micro_batches.start) // self.micro_batches.step


# How far a neighbour can be ahead of this segment: it cannot end a step of which this one has not given its part.
STEPS_AHEAD_MAX = 1
