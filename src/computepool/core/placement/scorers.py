"""How good a slot is for a job that it could run: a sum of weighted logarithms, larger is better.

Knows a price, a speed and a chance of success per slot, and not where they come from. For all slots that pass the
gates of a shape, each value depends on the slot and on whether the shape needs a GPU, and on nothing else of the
shape: that is what lets the fleet index keep slots in order before anybody asks. (Shapes with a fixed price have an
order of their own.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from math import floor, log

from computepool.core.ids import AccountId
from computepool.core.placement.shape import Shape
from computepool.core.placement.slot import Slot, SlotKind, tightness
from computepool.core.placement.tier import CPU_TIER, MEASURED_STEPS, UNKNOWN_TIER, tier_by_speed
from computepool.core.placement.weights import Preference, Weights

# Single-precision TFLOPS by the makers' figures: what a slot counts as until its node declares its own.
TIER_TFLOPS = {
    "rtx-5090": 104.8,
    "rtx-4090": 82.6,
    "rtx-3090": 35.6,
    "rtx-4070": 29.1,
    "rtx-3080": 29.8,
    "rtx-3060": 12.7,
    "rtx-2070": 7.5,
    "gtx-1080ti": 11.3,
    "gtx-1080": 8.9,
    "gtx-1660": 5.0,
    **{tier_by_speed(step): float(step) for step in MEASURED_STEPS},
    UNKNOWN_TIER: 5.0,
}
CORE_TFLOPS = 0.05
# A faster card gets more work: what a node says of itself, or shows, lifts it above its tier by this much at most.
DECLARED_SPEED_RATIO_MAX = 1.25

# A logarithm needs something above zero: a slot that its owner lends for nothing, or that never succeeded.
PRICE_MICROCREDITS_MIN = 1
SPEED_TFLOPS_MIN = 1e-3
RELIABILITY_MIN = 1e-4
# Nodes are compared by whole percents of reliability. Every finished attempt moves the bound a little; told apart by
# that little, whoever has just worked would be better than its equals and work again.
RELIABILITY_STEPS = 100

# More than all other values together can make: with weights of at most 10 they stay within 10 x (44 + 14 + 10 + 2).
GPU_SPARED = 1_000.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """A slot and what it is chosen by."""

    slot: Slot
    speed_tflops: float
    price_microcredits_per_hour: int  # what the owner asks at least; a job's ceiling is compared with it
    reliability: float  # lower bound of the chance that an attempt does not fail by the node's fault, 0..1
    # The same price before tier and region: a job's fixed price per slice is compared with it.
    base_price_microcredits_per_hour: int = 0
    # Whose it is: nobody pays for what is their own.
    owner_id: AccountId | None = None
    # What it costs whoever pays spot, if that is more than it asks: see `round_spot`. 0: spot is no matter there.
    spot_microcredits_per_hour: int = 0
    # What whoever pays a fixed price per slice compares it by: that price is the same base everywhere, times tier and
    # region. 0: by what it asks.
    reference_microcredits_per_hour: int = 0
    # Since when its node's service is clean; None: it has not passed probation. Nothing is chosen by it; it makes the
    # terms of a lease.
    serving_since: datetime | None = None


def make_candidate(
    slot: Slot,
    *,
    price_microcredits_per_hour: int,
    reliability: float,
    declared_tflops: float | None = None,
    base_price_microcredits_per_hour: int = 0,
    owner_id: AccountId | None = None,
    spot_microcredits_per_hour: int = 0,
    reference_microcredits_per_hour: int = 0,
    serving_since: datetime | None = None,
) -> Candidate:
    return Candidate(
        slot,
        to_speed(slot, declared_tflops),
        price_microcredits_per_hour,
        round_reliability(reliability),
        base_price_microcredits_per_hour,
        owner_id,
        spot_microcredits_per_hour,
        reference_microcredits_per_hour,
        serving_since,
    )


def to_speed(slot: Slot, declared_tflops: float | None) -> float:
    """What a slot counts as."""
    return believe_tflops(slot.tier, slot.cores, declared_tflops)


def round_reliability(bound: float) -> float:
    """Downward; what is a hair below a whole percent for the sake of its last bits counts as that percent."""
    return floor(bound * RELIABILITY_STEPS + 1e-6) / RELIABILITY_STEPS


def believe_tflops(tier: str, cores: int, declared_tflops: float | None) -> float:
    """What is known of the tier, or a little more if the node says so."""
    known = cores * CORE_TFLOPS if tier == CPU_TIER else TIER_TFLOPS.get(tier, TIER_TFLOPS[UNKNOWN_TIER])
    return known if declared_tflops is None else min(declared_tflops, known * DECLARED_SPEED_RATIO_MAX)


def default_tflops(slot: Slot) -> float:
    return believe_tflops(slot.tier, slot.cores, None)


def score_price(candidate: Candidate, shape: Shape) -> float:
    """By what would be paid: floors below spot are all the same. A ceiling below spot does not change the order.

    A fixed price is paid whatever is asked there.
    """
    paid = max(candidate.price_microcredits_per_hour, candidate.spot_microcredits_per_hour)
    if shape.base_ceiling_microcredits_per_hour is not None and candidate.reference_microcredits_per_hour:
        paid = candidate.reference_microcredits_per_hour
    return -log(max(paid, PRICE_MICROCREDITS_MIN))


def score_speed(candidate: Candidate, shape: Shape) -> float:
    return log(max(candidate.speed_tflops, SPEED_TFLOPS_MIN))


def score_reliability(candidate: Candidate, shape: Shape) -> float:
    return log(max(candidate.reliability, RELIABILITY_MIN))


def score_vram_fit(candidate: Candidate, shape: Shape) -> float:
    return 1.0 if candidate.slot.vram_bytes >= shape.vram_bytes else 0.0


def score_cores_fit(candidate: Candidate, shape: Shape) -> float:
    return 1.0 if candidate.slot.cores >= shape.cores else 0.0


def score_gpu_spared(candidate: Candidate, shape: Shape) -> float:
    """Work that needs no GPU takes one only when no CPU slot can serve it, however cheap or fast the GPU's slot."""
    return -GPU_SPARED if candidate.slot.kind is SlotKind.GPU and not shape.gpu else 0.0


Scorer = Callable[[Candidate, Shape], float]

SCORERS: tuple[Scorer, ...] = (
    score_price,
    score_speed,
    score_reliability,
    score_vram_fit,
    score_cores_fit,
    score_gpu_spared,
)


@dataclass(frozen=True, slots=True)
class ScoreLine:
    """One line of the table that explains a choice."""

    scorer: str
    value: float
    weight: float

    @property
    def points(self) -> float:
        return self.value * self.weight


def list_score_lines(
    candidate: Candidate, shape: Shape, weights: Weights, preference: Preference
) -> tuple[ScoreLine, ...]:
    """What each scorer says of this pair, in the order of SCORERS; the points add up to the score."""
    factors = to_factors(weights, preference)
    return tuple(
        ScoreLine(scorer.__name__.removeprefix("score_"), scorer(candidate, shape), factor)
        for scorer, factor in zip(SCORERS, factors, strict=True)
    )


def score(candidate: Candidate, shape: Shape, weights: Weights, preference: Preference) -> float:
    return add_up(to_factors(weights, preference), list_values(candidate, shape))


def list_values(candidate: Candidate, shape: Shape) -> list[float]:
    return [scorer(candidate, shape) for scorer in SCORERS]


def to_factors(weights: Weights, preference: Preference) -> tuple[float, ...]:
    """One factor per scorer. The last one is no weight: it is a rule, and no table of weights may switch it off."""
    w = weights.under(preference)
    return (w.price, w.speed, w.reliability, w.vram_fit, w.cores_fit, 1.0)


def add_up(factors: tuple[float, ...], values: list[float]) -> float:
    """One way of adding for everybody, so that equal pairs have equal scores to the last bit."""
    total = 0.0
    for factor, value in zip(factors, values, strict=True):
        total += factor * value
    return total


def break_tie(candidate: Candidate, *, gpu: bool, turn: int = 0) -> tuple[object, ...]:
    """Among equal scores the smallest of these wins: GPU work takes the faster card, other work the tightest fit.

    Of slots that are alike in that too, the one that came back from work first is next: its turn is the lowest. Ids
    end it, so that the choice is the same whatever order the nodes called in.
    """
    slot = candidate.slot
    fit = (-candidate.speed_tflops,) if gpu else tightness(slot)
    return (*fit, turn, str(slot.node_id), slot.name)
