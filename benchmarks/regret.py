"""What hubs lose because each sees only the nodes that are parked at it: their grants replayed beside a global view.

For every grant, in the order of the grants: the score of the slot that was chosen against the best score among all
slots of all hubs that were free at that moment and pass the gates. A score is a sum of weighted logarithms, so its
exponential is a product (speed x reliability / price), and

    lost = 1 - exp(chosen - best)

is the share of that product that was given away: 0.02 means a slot that is 2 % worse than the best one. A slice that
needs no GPU and gets one while a CPU slot is free somewhere has lost everything: 1. The regret is the mean over all
grants. Reliability moves with every end of an attempt, by the same rule as in a hub. Pure: rows in, figures out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import exp
from statistics import mean

from computepool.core.placement.checks import find_refusal
from computepool.core.placement.scorers import Candidate, make_candidate, score
from computepool.core.placement.shape import Shape
from computepool.core.placement.slot import Slot, SlotKind
from computepool.core.placement.weights import Preference, Weights
from computepool.core.trust.reputation import Reliability, record_finished, reliability_bound

# A node needs a moment to park again: what became free less than this before a grant was not there to be chosen.
PARKING = timedelta(milliseconds=50)
# Grants of one transaction; their order in it is taken as the one that speaks best for the hub.
BURST = timedelta(milliseconds=2)

Key = tuple[str, str]  # node, slot


@dataclass(frozen=True, slots=True)
class Lent:
    """A slot as its owner lends it."""

    slot: Slot
    price_microcredits_per_hour: int
    declared_tflops: float | None = None


@dataclass(frozen=True, slots=True)
class Grant:
    at: datetime
    # None: it was still running when the record ends.
    ended_at: datetime | None
    key: Key
    shape: Shape
    preference: Preference


@dataclass(frozen=True, slots=True)
class Regret:
    grants: int
    lost: float
    # How often the best one was chosen, and how often something wholly unfit for a global view (lost > 0.9).
    best_share: float
    blunder_share: float
    # Free slots that a global view could choose from, on average.
    choices: float


def replay(
    lent: Mapping[Key, Lent],
    known: Mapping[tuple[str, bool], Reliability],
    grants: Iterable[Grant],
    weights: Weights,
) -> Regret:
    """`known` is the evidence at the beginning, by node and by whether its slot is a GPU's."""
    fleet = _Fleet(lent, known, weights)
    losses: list[float] = []
    choices: list[int] = []
    for burst in _list_bursts(grants):
        fleet.release(until=burst[0].at - PARKING)
        for grant in sorted(burst, key=fleet.score_of, reverse=True):
            best, count = fleet.find_best(grant)
            losses.append(1.0 - exp(min(0.0, fleet.score_of(grant) - best)))
            choices.append(count)
            fleet.take(grant)
    if not losses:
        return Regret(0, 0.0, 0.0, 0.0, 0.0)
    return Regret(
        grants=len(losses),
        lost=mean(losses),
        best_share=mean(loss < 1e-9 for loss in losses),
        blunder_share=mean(loss > 0.9 for loss in losses),
        choices=mean(choices),
    )


class _Fleet:
    """Which slots are free, and what each is worth, at the moment that the replay has reached."""

    def __init__(
        self, lent: Mapping[Key, Lent], known: Mapping[tuple[str, bool], Reliability], weights: Weights
    ) -> None:
        self._lent = lent
        self._known = dict(known)
        self._weights = weights
        self._free = set(lent)
        self._out: dict[Key, Grant] = {}

    def release(self, *, until: datetime) -> None:
        ended = [grant for grant in self._out.values() if grant.ended_at is not None and grant.ended_at <= until]
        for grant in sorted(ended, key=lambda g: g.ended_at or until):
            self._end(grant)
            self._free.add(grant.key)

    def take(self, grant: Grant) -> None:
        # It may have been given out again within the moment that it is given to park.
        if grant.key in self._out:
            self._end(self._out[grant.key])
        self._free.discard(grant.key)
        self._out[grant.key] = grant

    def _end(self, grant: Grant) -> None:
        del self._out[grant.key]
        if grant.ended_at is not None:
            who = self._who(grant.key)
            self._known[who] = record_finished(self._known.get(who, Reliability()), now=grant.ended_at)

    def _who(self, key: Key) -> tuple[str, bool]:
        return key[0], self._lent[key].slot.kind is SlotKind.GPU

    def score_of(self, grant: Grant) -> float:
        return self._score(grant.key, grant)

    def find_best(self, grant: Grant) -> tuple[float, int]:
        """Among what is free; the chosen one is, whatever we believe."""
        scores = [self._score(key, grant) for key in self._free | {grant.key} if self._fits(key, grant)]
        return max(scores, default=self.score_of(grant)), len(scores)

    def _fits(self, key: Key, grant: Grant) -> bool:
        lent = self._lent[key]
        price = lent.price_microcredits_per_hour
        return find_refusal(grant.shape, lent.slot, price_microcredits_per_hour=price) is None

    def _score(self, key: Key, grant: Grant) -> float:
        return score(self._to_candidate(key, grant), grant.shape, self._weights, grant.preference)

    def _to_candidate(self, key: Key, grant: Grant) -> Candidate:
        lent = self._lent[key]
        evidence = self._known.get(self._who(key), Reliability())
        return make_candidate(
            lent.slot,
            price_microcredits_per_hour=lent.price_microcredits_per_hour,
            reliability=reliability_bound(evidence, now=grant.at),
            declared_tflops=lent.declared_tflops,
        )


def _list_bursts(grants: Iterable[Grant]) -> list[Sequence[Grant]]:
    bursts: list[list[Grant]] = []
    for grant in sorted(grants, key=lambda g: g.at):
        if bursts and grant.at - bursts[-1][-1].at <= BURST:
            bursts[-1].append(grant)
        else:
            bursts.append([grant])
    return [tuple(burst) for burst in bursts]
