"""What an attempt costs: metered seconds, the rule by the cause of its end, and the price.

The submitter never pays more than rate times seconds: prices are rounded down. How a price is cut in two: fee.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from computepool.core.ids import AttemptId
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.state import AttemptState
from computepool.core.ledger.fee import split_price

SECONDS_PER_HOUR = 3_600


class PriceMode(str, Enum):
    PER_SECOND = "per_second"
    PER_SLICE = "per_slice"


class ChargeRule(str, Enum):
    METERED = "metered"
    # As far as it came; nothing if its node never said that it runs.
    METERED_IF_RUNNING = "metered_if_running"
    # To the last accepted checkpoint; without one, nothing.
    TO_CHECKPOINT = "to_checkpoint"
    NOTHING = "nothing"


# By the cause of an attempt's end; None: it delivered. Who is at fault pays: the submitter for code and limits of
# their own and for changing their mind, the node and we ourselves for the rest.
RULES: Mapping[Cause | None, ChargeRule] = {
    None: ChargeRule.METERED,
    Cause.EXIT_CODE: ChargeRule.METERED,
    Cause.OUT_OF_MEMORY: ChargeRule.METERED,
    Cause.TIMED_OUT: ChargeRule.METERED,
    Cause.CANCELLED: ChargeRule.METERED_IF_RUNNING,
    Cause.EXPIRED: ChargeRule.METERED_IF_RUNNING,
    Cause.POISONOUS: ChargeRule.METERED_IF_RUNNING,
    Cause.OWNER_RETURNED: ChargeRule.TO_CHECKPOINT,
    Cause.SUPERSEDED: ChargeRule.NOTHING,
    # What was saved of a lost machine's work is of use to the submitter, whoever is at fault; the rest is not.
    Cause.GPU_LOST: ChargeRule.TO_CHECKPOINT,
    Cause.NETWORK_LOST: ChargeRule.TO_CHECKPOINT,
    Cause.NODE_VANISHED: ChargeRule.TO_CHECKPOINT,
    Cause.SANDBOX_REFUSED: ChargeRule.NOTHING,
    Cause.INPUT_MISSING: ChargeRule.NOTHING,
    # Nothing ran.
    Cause.PACKAGES_FAILED: ChargeRule.NOTHING,
    Cause.PACKAGES_UNREACHABLE: ChargeRule.NOTHING,
    Cause.NOT_ALLOWED: ChargeRule.NOTHING,
    Cause.HUB_FAULT: ChargeRule.NOTHING,
    Cause.WRONG_RESULT: ChargeRule.NOTHING,
    Cause.DOUBTED: ChargeRule.TO_CHECKPOINT,
}


@dataclass(frozen=True, slots=True)
class FrozenPrice:
    """What was agreed when the lease was given: microcredits per hour, or for the whole slice."""

    mode: PriceMode
    microcredits: int


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """What is agreed with a lease beside its price."""

    # The platform's share.
    fee_ppm: int
    # How long the owner's part is held back.
    holdback_seconds: int


@dataclass(frozen=True, slots=True)
class End:
    """How an attempt ended, as far as its price depends on it."""

    cause: Cause | None
    # Before the end.
    state: AttemptState
    metered_seconds: int
    # Whole seconds of work that the last accepted checkpoint holds.
    checkpoint_seconds: int = 0
    # A seat of a run. What it did after the run's last complete checkpoint is done again by whoever comes next, so
    # that is where its pay ends, whatever has ended it. The end of the run counts as a checkpoint.
    is_seat: bool = False


@dataclass(frozen=True, slots=True)
class Charge:
    """An attempt's price, cut in two."""

    attempt_id: AttemptId
    owner_microcredits: int
    fee_microcredits: int

    @property
    def total_microcredits(self) -> int:
        return self.owner_microcredits + self.fee_microcredits


def meter_seconds(*, claimed_seconds: float | None, held_seconds: float, wall_seconds: int) -> int:
    """What the node claims, but no more than it can have had by the database's clock, nor than its limit allows.

    Whole seconds, rounded up, at least one. Without a claim (a cancelled attempt) the database's clock decides.
    """
    seconds = _at_least_zero(held_seconds)
    if claimed_seconds is not None:
        seconds = min(seconds, _at_least_zero(claimed_seconds))
    return max(1, math.ceil(min(seconds, float(wall_seconds))))


def price_attempt(price: FrozenPrice, end: End, *, wall_seconds: int, is_own: bool = False) -> int:
    """What the submitter pays for it. One's own jobs on one's own nodes are free."""
    seconds = count_paid_seconds(end)
    if is_own or seconds == 0:
        return 0
    if price.mode is PriceMode.PER_SECOND:
        return price_seconds(price.microcredits, seconds)
    if end.cause is None:
        return price.microcredits
    # A slice that was not delivered costs the part of its price that the run was of its limit. The whole price for
    # every failure would be an invitation to report failures.
    return price.microcredits * min(seconds, wall_seconds) // wall_seconds


def count_paid_seconds(end: End) -> int:
    """Zero when nothing is paid."""
    if end.is_seat:
        return min(end.metered_seconds, end.checkpoint_seconds)
    rule = RULES[end.cause]
    # A lost attempt that delivers after all is paid; one that fails after all is history.
    if end.cause is not None and end.state is AttemptState.LOST:
        return 0
    if rule is ChargeRule.METERED:
        return end.metered_seconds
    if rule is ChargeRule.METERED_IF_RUNNING:
        return end.metered_seconds if end.state is AttemptState.RUNNING else 0
    if rule is ChargeRule.TO_CHECKPOINT:
        return min(end.metered_seconds, end.checkpoint_seconds)
    return 0


def price_seconds(microcredits_per_hour: int, seconds: int) -> int:
    return microcredits_per_hour * seconds // SECONDS_PER_HOUR


def price_reserve(price: FrozenPrice, *, wall_seconds: int) -> int:
    """The most that one attempt can come to: what must be left of the hold before a lease is given."""
    if price.mode is PriceMode.PER_SLICE:
        return price.microcredits
    return price_seconds(price.microcredits, wall_seconds)


def charge_attempt(attempt_id: AttemptId, price: int, *, fee_ppm: int) -> Charge:
    return Charge(attempt_id, *split_price(price, fee_ppm=fee_ppm))


def _at_least_zero(seconds: float) -> float:
    """What a node says may be anything, also no number at all."""
    return seconds if seconds > 0 else 0.0
