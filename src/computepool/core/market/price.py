"""The price of a match, and whether a slice may start at it. Prices are whole microcredits per hour."""

from __future__ import annotations

from enum import Enum

from computepool.core.market.offers import Ask, Offer, is_own, is_private
from computepool.core.market.rate_card import UNIT, Bucket, RateCard

SECONDS_PER_HOUR = 3_600


class StartRefusal(str, Enum):
    FLOOR_ABOVE_CEILING = "floor_above_ceiling"
    # Others wait for the same slots and pay spot: whoever bids less waits until they are served.
    CEILING_BELOW_SPOT = "ceiling_below_spot"
    # In the fixed mode: the price of the slice is less than the floor for the time that it may take.
    SLICE_BELOW_FLOOR = "slice_below_floor"


PLAIN_WORDS = {
    StartRefusal.FLOOR_ABOVE_CEILING: "the owner asks for more than the ceiling",
    StartRefusal.CEILING_BELOW_SPOT: "others wait here and pay the spot price, which is above the ceiling",
    StartRefusal.SLICE_BELOW_FLOOR: "the price of the slice is less than the owner's floor for so long a run",
}


def price_match(*, floor: int, ceiling: int | None, spot: int) -> int:
    """max(floor, min(ceiling, spot)). Within the ceiling whenever the floor is: ask `find_start_refusal` first."""
    return max(floor, spot if ceiling is None else min(ceiling, spot))


def find_start_refusal(
    *, floor: int, ceiling: int | None, spot: int, has_backlog_at_spot: bool
) -> StartRefusal | None:
    """Why a slice with this ceiling may not start on a free slot with this floor; None if it may.

    Spot has force: while somebody waits for this bucket who would pay spot, nobody starts for less. Once nobody does,
    a lower ceiling is better than an idle slot.
    """
    if ceiling is None:
        return None
    if floor > ceiling:
        return StartRefusal.FLOOR_ABOVE_CEILING
    if ceiling < spot and has_backlog_at_spot:
        return StartRefusal.CEILING_BELOW_SPOT
    return None


def price_ask(offer: Offer, ask: Ask, *, spot: int, has_backlog_at_spot: bool) -> int | StartRefusal:
    """Per hour: nothing for oneself, the owner's price in a private pool, for all others by spot."""
    if is_own(offer, ask):
        return 0
    floor, ceiling = offer.floor_microcredits_per_hour, ask.ceiling_microcredits_per_hour
    if is_private(offer):
        return floor if ceiling is None or floor <= ceiling else StartRefusal.FLOOR_ABOVE_CEILING
    refusal = find_start_refusal(floor=floor, ceiling=ceiling, spot=spot, has_backlog_at_spot=has_backlog_at_spot)
    return refusal or price_match(floor=floor, ceiling=ceiling, spot=spot)


# The fixed mode. A price per slice meets prices per hour (floors, spot) over the slice's whole wall limit: so much is
# an owner sure of, however long it runs. docs/decisions/0012 says why.


def price_slice(card: RateCard, bucket: Bucket, *, base_microcredits: int, ceiling_microcredits: int) -> int:
    """Microcredits for the whole slice, whatever it takes, within the submitter's ceiling per slice.

    The base is the card's for this kind of job, or the submitter's own figure.
    """
    return min(card.slice_reference(base_microcredits, bucket), ceiling_microcredits)


def ceiling_in(card: RateCard, bucket: Bucket, *, ceiling: int | None, base_ceiling: int | None) -> int | None:
    """The most that an hour may cost there. `base_ceiling` is what a fixed price comes to before tier and region."""
    if base_ceiling is None:
        return ceiling
    there = card.multiply(base_ceiling, bucket)
    return there if ceiling is None else min(ceiling, there)


def to_base_price(card: RateCard, bucket: Bucket, microcredits_per_hour: int) -> int:
    """A price there before tier and region: a base ceiling pays for it if and only if `ceiling_in` does."""
    return -(-microcredits_per_hour * UNIT // card.multiplier(bucket))
