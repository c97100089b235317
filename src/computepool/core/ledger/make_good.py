"""What the time of a superseded attempt is worth: paid out of the fee of its own slice, and never more than that fee.

The submitter pays for one result. Whoever worked on the same slice in good faith, when another came back and
delivered first, is paid by the platform. The limit keeps that from being a business: however submitter and owners
play together, a slice never takes more out of the fee than it has brought (docs/decisions/0023).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from computepool.core.ids import AccountId, AttemptId, JobId
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.state import AttemptState
from computepool.core.ledger.charging import End, FrozenPrice, PriceMode, meter_seconds, price_attempt
from computepool.core.ledger.fee import split_price


@dataclass(frozen=True, slots=True)
class Superseded:
    """An attempt that was stopped because another delivered, and what became of that one's price."""

    attempt_id: AttemptId
    job_id: JobId
    slice_index: int
    owner_id: AccountId
    submitter_id: AccountId
    leased_at: datetime
    # None: its node never said that it runs.
    started_at: datetime | None
    finished_at: datetime
    wall_seconds: int
    # As it was agreed with the lease; one of the two.
    rate_microcredits_per_hour: int | None
    slice_price_microcredits: int | None
    fee_ppm: int
    # Its owner has had so much of the submitter already, for checkpoints.
    earned_microcredits: int
    # Whose node delivered, and what is left of the fee for that: nothing where it was free or was taken back.
    delivered_by: AccountId
    fee_microcredits: int


def price_make_good(superseded: Superseded, *, is_linked: bool) -> int:
    """The owner's part for the time it ran, as far as the fee of its slice reaches.

    `is_linked`: its owner is, or is linked with, the submitter or whoever delivered. Nobody is paid for being faster
    than oneself.
    """
    parties = (superseded.submitter_id, superseded.delivered_by)
    if is_linked or superseded.owner_id in parties:
        return 0
    part = split_price(_price_time(superseded), fee_ppm=superseded.fee_ppm)[0]
    return max(0, min(part - superseded.earned_microcredits, superseded.fee_microcredits))


def _price_time(superseded: Superseded) -> int:
    """What it would have cost if the submitter had stopped it at that moment."""
    seconds = meter_seconds(
        claimed_seconds=None,
        held_seconds=(superseded.finished_at - superseded.leased_at).total_seconds(),
        wall_seconds=superseded.wall_seconds,
    )
    state = AttemptState.LEASED if superseded.started_at is None else AttemptState.RUNNING
    fixed = superseded.slice_price_microcredits
    frozen = (
        FrozenPrice(PriceMode.PER_SECOND, superseded.rate_microcredits_per_hour or 0)
        if fixed is None
        else FrozenPrice(PriceMode.PER_SLICE, fixed)
    )
    return price_attempt(frozen, End(Cause.CANCELLED, state, seconds), wall_seconds=superseded.wall_seconds)
