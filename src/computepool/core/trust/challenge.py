"""Whether a slot is as fast as it is said to be: how much work shows it, and what the rounds come to.

The hub times each round itself, from handing out the seed to the commitment. The best round counts: nothing makes a
card faster than it is, and many things make an honest one slower for a moment. Says nothing of where an answer was
computed: somebody who passes the work on to a faster machine in time is not found out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from math import isfinite

from computepool.core.placement.scorers import CORE_TFLOPS, TIER_TFLOPS
from computepool.core.placement.tier import CPU_TIER, UNKNOWN_TIER, tier_by_speed
from computepool.core.trust.products import PRODUCTS_MAX, Work

ROUNDS = 3
# Segments that are opened in each round. Whoever leaves out a quarter of the work gets through a round in 1 of 100.
SAMPLES = 16
# Libraries reach 60 to 80 % of the maker's figure in our work. Below this the card is another one, or throttled.
KEEP_RATIO = 0.55
# The same for a speed that the node has measured itself, by the same work.
KEEP_DECLARED_RATIO = 0.7
# For the way to the node and back, for making the operands and for hashing; never more than half of a round.
ALLOWANCE_SECONDS = 0.4
# Rounds that differ by more were disturbed by something.
BUSY_SPREAD_RATIO = 0.3
# How long an answer may take, in times of what it should take; and at least.
ANSWER_TIMES = 20.0
ANSWER_SECONDS_MIN = 30.0
# Rounds handed out within the window, answered or not: asking again and again is not a way to luck.
ISSUED_MAX = 2 * ROUNDS
ISSUED_WINDOW = timedelta(minutes=10)

# (from this many TFLOPS on, size): large products for fast devices, so that little else is measured.
_SIZES = ((2.0, 4096), (0.005, 1024), (0.0005, 256), (0.0, 128))


class ProofState(str, Enum):
    """What a node has shown of a slot's speed."""

    UNPROVEN = "unproven"  # nothing yet, or not again when it was asked to
    PROVEN = "proven"
    SLOWER = "slower"  # every round was slower than what is claimed
    UNSURE = "unsure"  # slower, and rounds differ: the machine was busy, and is asked again soon
    FORGED = "forged"  # what was shown is not what the work comes to


# After a verdict: when the node may try again by itself. When the hub asks for it (sittings.py), it may at any time.
RETRY_AFTER = {
    ProofState.UNSURE: timedelta(minutes=10),
    ProofState.SLOWER: timedelta(hours=6),
    ProofState.FORGED: timedelta(hours=24),
}


@dataclass(frozen=True, slots=True)
class Claim:
    """What a node says of a slot: its tier by its card's name, and the speed that it has measured itself."""

    tier: str
    tflops: float | None
    cores: int

    @property
    def expected_tflops(self) -> float:
        if self.tier == CPU_TIER:
            return self.tflops or self.cores * CORE_TFLOPS
        if self.is_by_name:
            return TIER_TFLOPS[self.tier]
        return self.tflops or TIER_TFLOPS[UNKNOWN_TIER]

    @property
    def is_by_name(self) -> bool:
        """Whether the card's name has a row of its own, which must be earned."""
        return self.tier != CPU_TIER and not self.tier.startswith(UNKNOWN_TIER) and self.tier in TIER_TFLOPS


@dataclass(frozen=True, slots=True)
class Round:
    flops: float
    # From handing out the seed to the commitment, by the hub's database.
    seconds: float
    # Whether all that was opened is what the work comes to.
    right: bool

    @property
    def tflops(self) -> float:
        seconds = max(self.seconds - ALLOWANCE_SECONDS, self.seconds / 2, 1e-6)
        return self.flops / seconds / 1e12


@dataclass(frozen=True, slots=True)
class Verdict:
    state: ProofState
    tier: str
    # None: nothing that could be relied on.
    tflops: float | None
    spread_ratio: float
    # For the owner.
    reason: str


def plan_work(claim: Claim, *, seed: bytes, seconds: float) -> Work:
    """As many products as keep the claimed device busy for so long."""
    size = next(size for least, size in _SIZES if claim.expected_tflops >= least)
    products = round(seconds * claim.expected_tflops * 1e12 / (2.0 * size**3))
    return Work(seed, size, max(1, min(PRODUCTS_MAX, products)))


def answer_seconds(seconds: float) -> float:
    """How long after handing out the seed a commitment is still taken."""
    return max(ANSWER_SECONDS_MIN, ANSWER_TIMES * seconds)


def needs_more(claim: Claim, rounds: Sequence[Round]) -> bool:
    """A wrong answer ends it, and so does a round that is fast enough: no more can be asked."""
    return not any(not each.right or each.tflops >= _least_tflops(claim) for each in rounds) and len(rounds) < ROUNDS


def judge(claim: Claim, rounds: Sequence[Round]) -> Verdict:
    if not all(each.right for each in rounds):
        return Verdict(ProofState.FORGED, _tier_without_proof(claim), None, 0.0, _FORGED)
    speeds = [each.tflops for each in rounds if isfinite(each.tflops)]
    shown = max(speeds)
    spread = (shown - min(speeds)) / shown
    least = _least_tflops(claim)
    if shown >= least:
        speed = shown if claim.tflops is None or claim.is_by_name else min(shown, claim.tflops)
        tier = claim.tier if claim.is_by_name or claim.tier == CPU_TIER else tier_by_speed(speed)
        return Verdict(ProofState.PROVEN, tier, speed, spread, f"It showed {shown:.3g} TFLOPS.")
    tier = CPU_TIER if claim.tier == CPU_TIER else tier_by_speed(shown)
    state = ProofState.UNSURE if spread > BUSY_SPREAD_RATIO else ProofState.SLOWER
    return Verdict(state, tier, shown, spread, _say_slower(claim, shown, least, spread, state))


def lapse(claim: Claim, *, asked_count: int) -> Verdict:
    """Of a slot that was proven and did not show its speed again."""
    reason = (
        f"It was asked {asked_count} times to show its speed again, and did not. It is asked again, and counts as "
        "before once it has; or start the agent again."
    )
    return Verdict(ProofState.UNPROVEN, _tier_without_proof(claim), None, 0.0, reason)


def may_try(state: ProofState, *, decided_at: datetime | None, now: datetime) -> bool:
    if state is ProofState.PROVEN:
        return False
    wait = RETRY_AFTER.get(state)
    return wait is None or decided_at is None or now >= decided_at + wait


def _tier_without_proof(claim: Claim) -> str:
    return claim.tier if claim.tier == CPU_TIER else UNKNOWN_TIER


def _least_tflops(claim: Claim) -> float:
    if claim.is_by_name:
        return KEEP_RATIO * claim.expected_tflops
    return 0.0 if claim.tflops is None else KEEP_DECLARED_RATIO * claim.tflops


_FORGED = "What the node showed is not what the work comes to: the card is faulty, or the answer was made up."


def _say_slower(claim: Claim, shown: float, least: float, spread: float, state: ProofState) -> str:
    what = f"a {claim.tier}" if claim.is_by_name else "what it declared"
    words = f"It showed {shown:.3g} TFLOPS; {what} shows {least:.3g} at least."
    if state is ProofState.UNSURE:
        return f"{words} Its rounds differ by {spread:.0%}, so it was busy: it is asked again soon."
    return (
        f"{words} Close what else uses it, install torch for a GPU, look at its cooling; then start the agent again."
    )
