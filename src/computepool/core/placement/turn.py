"""Whose turn it is: what stands between a waiting slice and the next slot that fits it.

In this order: higher classes, the fair share between accounts, the account's own slices of higher priority or age.
It says how many, never whose they are. The fair share counts from the moment when accounts begin to wait side by
side, so what they have had lately is told as a fact, and not as a promise of who is next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from computepool.core.jobs.order import PriorityClass
from computepool.core.words import say_count


@dataclass(frozen=True, slots=True)
class Counted:
    """A count that may have been cut off at a limit."""

    count: int
    is_more: bool = False

    def say(self, noun: str) -> str:
        return ("more than " if self.is_more else "") + say_count(self.count, noun)


@dataclass(frozen=True, slots=True)
class Use:
    """What an account has had of the fleet lately."""

    # Slot-seconds, faded to this moment.
    slot_seconds: float
    fair_weight: float

    @property
    def weighed(self) -> float:
        return self.slot_seconds / self.fair_weight


@dataclass(frozen=True, slots=True)
class Turn:
    priority_class: PriorityClass
    priority: int
    # Slices with the same needs of a higher class, whoever's.
    class_ahead: Counted
    # The account's own of the same class and needs.
    own_ahead: Counted
    use: Use
    # Other accounts with slices of the same class and needs; how many of them have had less, by weight.
    others: Counted
    others_less_count: int
    deadline_at: datetime | None
    # When it was moved to the front of the account's slices for its deadline.
    raised_at: datetime | None


def count_less(use: Use, others: Sequence[Use]) -> int:
    return sum(other.weighed < use.weighed for other in others)


def say_turn(turn: Turn) -> str:
    parts = [
        *([_say_class(turn)] if turn.class_ahead.count else []),
        *([_say_share(turn)] if turn.others.count else []),
        _say_own(turn),
    ]
    return " ".join(parts)


def _say_class(turn: Turn) -> str:
    return f"{_upper(turn.class_ahead.say('slice'))} of a higher class than {turn.priority_class.value} go first."


def _say_share(turn: Turn) -> str:
    waits = "waits" if turn.others.count == 1 and not turn.others.is_more else "wait"
    others = f"{_upper(turn.others.say('other account'))} {waits} for such slots, which are shared by time and weight"
    had = f"lately this one has had {say_slot_time(turn.use.slot_seconds)}"
    weight = f" at weight {turn.use.fair_weight:g}" if turn.use.fair_weight != 1 else ""
    less = f"{turn.others_less_count:,} of them less" if turn.others_less_count else "none of them less"
    return f"{others}; {had}{weight}, {less}."


def _say_own(turn: Turn) -> str:
    ahead = (
        f"{turn.own_ahead.say('slice')} of this account {'goes' if turn.own_ahead.count == 1 else 'go'} before it"
        if turn.own_ahead.count
        else "no slice of this account goes before it"
    )
    priority = f" (own priority {turn.priority})" if turn.priority and turn.raised_at is None else ""
    raised = "; it was moved to the front for its deadline" if turn.raised_at is not None else ""
    return f"{_upper(ahead)}{priority}{raised}."


def say_slot_time(slot_seconds: float) -> str:
    """3.2 slot-hours, 40 slot-seconds."""
    if slot_seconds < 1:
        return "next to nothing"
    unit, length = next(((u, n) for u, n in (("hour", 3_600), ("minute", 60)) if slot_seconds >= n), ("second", 1))
    amount = slot_seconds / length
    return f"{amount:,.0f} slot-{unit}s" if amount >= 10 else f"{amount:.2g} slot-{unit}s"


def _upper(text: str) -> str:
    return text[0].upper() + text[1:]
