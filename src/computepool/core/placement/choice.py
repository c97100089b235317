"""Why a slice was given this slot and no other: the score table of the best slots that fit it.

Scores are reckoned when somebody asks, with what is known of the fleet then. When the slice was placed, prices and
reliabilities may have been others and better slots busy; nothing here claims to know how it was.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import exp

from computepool.core.ids import NodeId, SlotName
from computepool.core.placement.scorers import Candidate, ScoreLine, break_tie, list_score_lines, score
from computepool.core.placement.shape import Shape
from computepool.core.placement.weights import Preference, Weights
from computepool.core.words import say_count

RANKED_MAX = 4
# Scores nearer than this are taken for equal when they are put into words.
NEAR = 1e-9

SlotKey = tuple[NodeId, SlotName]


@dataclass(frozen=True, slots=True)
class Ranked:
    # Among those that were scored, from 1.
    rank: int
    candidate: Candidate
    lines: tuple[ScoreLine, ...]
    total: float
    chosen: bool
    busy: bool


def rank_candidates(
    candidates: Iterable[Candidate],
    shape: Shape,
    weights: Weights,
    preference: Preference,
    *,
    chosen: SlotKey,
    busy: Collection[SlotKey],
    limit: int = RANKED_MAX,
) -> tuple[Ranked, ...]:
    """The best, best first, in the order that placement takes them; the chosen one is always among them."""
    ordered = sorted(
        ((-score(each, shape, weights, preference), break_tie(each, gpu=shape.gpu), each) for each in candidates),
        key=lambda item: item[:2],
    )
    ranked = [
        Ranked(
            rank=rank,
            candidate=each,
            lines=list_score_lines(each, shape, weights, preference),
            total=-negated,
            chosen=_key(each) == chosen,
            busy=_key(each) in busy,
        )
        for rank, (negated, _, each) in enumerate(ordered, 1)
        if rank <= limit or _key(each) == chosen
    ]
    # The chosen one takes the last place of a full table.
    return tuple(ranked if len(ranked) <= limit else [*ranked[: limit - 1], ranked[-1]])


def say_choice(ranked: Sequence[Ranked], *, scored_count: int, fit_count: int, is_cut: bool) -> str:
    """In words, what the table shows of the slot that the slice got.

    Of all that fit only some may have been scored, the best among them; a rank behind all of them is a guess.
    """
    chosen = next((each for each in ranked if each.chosen), None)
    fitting = f"{'more than ' if is_cut else ''}{say_count(fit_count, 'slot')}"
    if chosen is None:
        return f"The slot it got is gone or is lent otherwise now; {fitting} would fit today."
    if len(ranked) == 1:
        return "No other slot of the nodes that are online fits it."
    best = ranked[0]
    if best.chosen:
        return f"Of {fitting} that fit, it has the highest score today: {_say_lead(best, ranked[1])}."
    if best.total - chosen.total <= NEAR:
        return f"Of {fitting} that fit, none scores higher today; {_TIES}."
    reason = "The best of them is busy now, as it may have been then"
    if not best.busy:
        reason = "The best of them is free now; then it may have been busy, dearer or away"
    more = " or more" if chosen.rank >= scored_count < fit_count else ""
    higher = f"{say_count(chosen.rank - 1, 'slot')}{more}"
    return f"Of {fitting} that fit, {higher} would score higher today. {reason}."


def _say_lead(best: Ranked, following: Ranked) -> str:
    gaps = [
        (ours.points - theirs.points, ours.scorer)
        for ours, theirs in zip(best.lines, following.lines, strict=True)
        if abs(ours.points - theirs.points) > NEAR
    ]
    if not gaps:
        return _TIES
    gap, scorer = max(gaps)
    return f"mostly for its {_MERITS[scorer]}, {_say_ratio(gap)} the next one's"


# Below, it would be said as "1 times as good".
RATIO_SAID_MIN = 1.05

_TIES = "equal ones are told apart by what spares the fleet, then by who has been without work for longest"

_MERITS = {
    "price": "price",
    "speed": "speed",
    "reliability": "reliability",
    "vram_fit": "memory",
    "cores_fit": "cores",
    "gpu_spared": "having no GPU to spare",
}


def _say_ratio(points: float) -> str:
    """Points are logarithms: their difference is how many times as good."""
    ratio = exp(min(points, 20.0))
    return f"{ratio:.2g} times as good as" if ratio >= RATIO_SAID_MIN else "a little better than"


def _key(candidate: Candidate) -> SlotKey:
    return candidate.slot.node_id, candidate.slot.name
