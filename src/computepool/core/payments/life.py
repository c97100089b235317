"""How a top-up or a payout moves on a word that may come twice, late or in the wrong order.

A later word implies the earlier ones: who says "returned" has said "confirmed". So words need no order, and a word
that was implied before is old news when it arrives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

State = TypeVar("State", bound=Enum)
Word = TypeVar("Word", bound=Enum)


@dataclass(frozen=True, slots=True)
class Step(Generic[State, Word]):
    word: Word
    state: State


@dataclass(frozen=True, slots=True)
class Life(Generic[State, Word]):
    transitions: Mapping[tuple[State, Word], State]
    # What must have been true before.
    implied: Mapping[Word, Word]
    # By state: words that tell nothing new there.
    old_news: Mapping[State, frozenset[Word]]

    def plan(self, state: State, word: Word) -> tuple[Step[State, Word], ...] | None:
        """The steps that the word leads through. Empty: old news. None: it contradicts the state."""
        if word in self.old_news.get(state, ()):
            return ()
        end = self.transitions.get((state, word))
        if end is not None:
            return (Step(word, end),)
        earlier = self.implied.get(word)
        before = self.plan(state, earlier) if earlier is not None else None
        if not before:
            return None
        end = self.transitions.get((before[-1].state, word))
        return (*before, Step(word, end)) if end is not None else None
