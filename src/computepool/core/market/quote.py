"""A quote: what a job would cost, where it could run, when it could start, what the owners would earn, and why.

A forecast from what the market looks like now. What a slice really costs is frozen when it is leased.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from computepool.core.ledger.amount import Microcredits
from computepool.core.ledger.fee import split_price
from computepool.core.market.ppm import PPM, say_percent, times_ppm, to_ppm
from computepool.core.market.price import SECONDS_PER_HOUR, StartRefusal, find_start_refusal, price_match
from computepool.core.market.rate_card import Bucket
from computepool.core.market.spot import RULE, TICK_SECONDS

# Below it a difference from yesterday is not worth a word.
CHANGE_PPM_MIN = 10_000
# How much supply or use has to change to be named as a reason.
REASON_PPM_MIN = 100_000


@dataclass(frozen=True, slots=True)
class BucketDay:
    """What one bucket looks like, today or yesterday at this hour."""

    spot_microcredits_per_hour: int
    slot_count: int
    busy_count: int
    # Slices that wait and would pay spot.
    waiting_count: int
    card_version: str = ""


@dataclass(frozen=True, slots=True)
class BucketView:
    """A bucket as one shape sees it: only slots that could run it, whatever they cost."""

    bucket: Bucket
    reference_microcredits_per_hour: int
    today: BucketDay
    yesterday: BucketDay | None
    # Of the slots that could run it: how many there are, how many of them are free, and the lowest floor.
    slot_count: int
    free_count: int
    floor_microcredits_per_hour: int
    # How long slices hold a slot here; tells how soon one is freed.
    seconds_mean: int
    # How fast these slots are beside what the ask's seconds are meant for.
    speed_ppm: int = PPM
    # For an ask with a fixed price: what `price_slice` says of it here, and whether every floor is above that.
    slice_price_microcredits: int = 0
    is_below_floor: bool = False


@dataclass(frozen=True, slots=True)
class QuoteAsk:
    slice_count: int
    # Of one slice; the last is its wall-time limit.
    seconds_low: int
    seconds_likely: int
    seconds_high: int
    # None: any price.
    ceiling_microcredits_per_hour: int | None = None
    # What verification adds to what is paid.
    surcharge_ppm: int = 0
    # A price per slice instead of per second: the views bring it.
    is_fixed: bool = False


@dataclass(frozen=True, slots=True)
class Range:
    low_microcredits: Microcredits
    likely_microcredits: Microcredits
    high_microcredits: Microcredits


@dataclass(frozen=True, slots=True)
class Place:
    """A bucket where the job could run, or why it could not as things are."""

    bucket: Bucket
    # Per hour, or per slice if the ask is for a fixed price.
    price_microcredits: int
    slot_count: int
    free_count: int
    # None while it is refused.
    starts_in_seconds: int | None
    refusal: StartRefusal | None


@dataclass(frozen=True, slots=True)
class Quote:
    # None: nowhere, whatever one waits for.
    cost: Range | None
    owners_earn: Range | None
    # The cheapest first.
    places: tuple[Place, ...]
    # None: not while the market is as it is; the places say why.
    starts_in_seconds: int | None
    why: str


def make_quote(ask: QuoteAsk, views: Sequence[BucketView], *, fee_ppm: int) -> Quote:
    """Views are the buckets whose slots pass the shape's gates."""
    priced = sorted(
        ((_cost_of(ask, view, ask.seconds_likely), view) for view in views if view.slot_count > 0),
        key=lambda pair: (pair[0], pair[1].bucket),
    )
    usable = [view for _, view in priced if _can_ever_run(ask, view)]
    places = tuple(_to_place(ask, view) for _, view in priced)
    starts = [place.starts_in_seconds for place in places if place.starts_in_seconds is not None]
    cost = _cost_range(ask, usable) if usable else None
    return Quote(
        cost=cost,
        owners_earn=_after_fee(cost, ask, fee_ppm) if cost else None,
        places=places,
        starts_in_seconds=min(starts, default=None),
        why=_say_why(ask, usable, places),
    )


def _can_ever_run(ask: QuoteAsk, view: BucketView) -> bool:
    if ask.is_fixed:
        return not view.is_below_floor
    ceiling = ask.ceiling_microcredits_per_hour
    return ceiling is None or view.floor_microcredits_per_hour <= ceiling


def _to_place(ask: QuoteAsk, view: BucketView) -> Place:
    refusal = _find_refusal(ask, view)
    starts = None if refusal else _starts_in_seconds(view)
    price = view.slice_price_microcredits if ask.is_fixed else _price_now(ask, view)
    return Place(view.bucket, price, view.slot_count, view.free_count, starts, refusal)


def _find_refusal(ask: QuoteAsk, view: BucketView) -> StartRefusal | None:
    if ask.is_fixed:
        return _find_fixed_refusal(ask, view)
    return find_start_refusal(
        floor=view.floor_microcredits_per_hour,
        ceiling=ask.ceiling_microcredits_per_hour,
        spot=view.today.spot_microcredits_per_hour,
        has_backlog_at_spot=view.today.waiting_count > 0,
    )


def _find_fixed_refusal(ask: QuoteAsk, view: BucketView) -> StartRefusal | None:
    if view.is_below_floor:
        return StartRefusal.SLICE_BELOW_FLOOR
    paid = view.slice_price_microcredits * SECONDS_PER_HOUR
    is_below_spot = paid < view.today.spot_microcredits_per_hour * ask.seconds_high
    return StartRefusal.CEILING_BELOW_SPOT if is_below_spot and view.today.waiting_count > 0 else None


def _starts_in_seconds(view: BucketView) -> int:
    """At once on a free slot; else when so many have been freed as there are slices in front."""
    if view.free_count > 0:
        return 0
    return (view.today.waiting_count + 1) * view.seconds_mean // view.slot_count


def _price_now(ask: QuoteAsk, view: BucketView) -> int:
    return price_match(
        floor=view.floor_microcredits_per_hour,
        ceiling=ask.ceiling_microcredits_per_hour,
        spot=view.today.spot_microcredits_per_hour,
    )


def _cost_of(ask: QuoteAsk, view: BucketView, seconds: int) -> int:
    """Of one slice at today's price, rounded up: a range that is a grain too wide is still true."""
    if ask.is_fixed:
        return view.slice_price_microcredits
    return _pay(_price_now(ask, view), _seconds_on(view, seconds))


def _pay(price: int, seconds: int) -> int:
    return -(-price * seconds // SECONDS_PER_HOUR)


def _seconds_on(view: BucketView, seconds: int) -> int:
    return max(1, -(-seconds * PPM // view.speed_ppm))


def _cost_range(ask: QuoteAsk, usable: Sequence[BucketView]) -> Range:
    low = min(_cost_of(ask, view, ask.seconds_low) for view in usable) * ask.slice_count
    likely = max(low, _likely_cost(ask, usable))
    high = max(likely, max(_high_cost(ask, view, usable) for view in usable) * ask.slice_count)
    return Range(*(Microcredits(times_ppm(each, PPM + ask.surcharge_ppm)) for each in (low, likely, high)))


def _likely_cost(ask: QuoteAsk, usable: Sequence[BucketView]) -> int:
    """Free slots are taken from the cheapest up; the slices that are left come to where slots are freed."""
    left, total = ask.slice_count, 0
    for view in usable:
        taken = min(left, view.free_count)
        total += taken * _cost_of(ask, view, ask.seconds_likely)
        left -= taken
    slots = sum(view.slot_count for view in usable)
    weighted = sum(view.slot_count * _cost_of(ask, view, ask.seconds_likely) for view in usable)
    return total + left * weighted // slots


def _high_cost(ask: QuoteAsk, view: BucketView, usable: Sequence[BucketView]) -> int:
    """As if the price rose from now until the last slice starts, by as much as one tick allows at each tick."""
    if ask.is_fixed:
        return view.slice_price_microcredits
    slots = sum(each.slot_count for each in usable)
    last_start = max(_starts_in_seconds(view), ask.slice_count * _seconds_on(view, ask.seconds_high) // slots)
    spot, spot_max = (
        view.today.spot_microcredits_per_hour,
        times_ppm(view.reference_microcredits_per_hour, RULE.surge_ppm_max),
    )
    for _ in range(last_start // TICK_SECONDS + 1):
        if spot >= spot_max:
            break
        spot = min(spot_max, times_ppm(spot, PPM + RULE.step_ppm_max) + 1)
    price = price_match(floor=view.floor_microcredits_per_hour, ceiling=ask.ceiling_microcredits_per_hour, spot=spot)
    return _pay(price, _seconds_on(view, ask.seconds_high))


def _after_fee(cost: Range, ask: QuoteAsk, fee_ppm: int) -> Range:
    """The surcharge pays for verification, not for the owner's run, and is left out."""
    return Range(
        *(
            split_price(each * PPM // (PPM + ask.surcharge_ppm), fee_ppm=fee_ppm)[0]
            for each in (cost.low_microcredits, cost.likely_microcredits, cost.high_microcredits)
        )
    )


# Words


def _say_why(ask: QuoteAsk, usable: Sequence[BucketView], places: Sequence[Place]) -> str:
    if not places:
        return "No slot that is lent now could run this."
    if not usable:
        return f"Every slot that could run this asks for more than {_say_most(ask)}."
    first = usable[0]
    if first.yesterday is None:
        change = "There is no price of yesterday to compare with."
    else:
        change = say_change(first.today, first.yesterday)
    if all(place.refusal for place in places):
        return f"{change} Others wait and pay the spot price, which is above {_say_most(ask)}: they come first."
    return change


def _say_most(ask: QuoteAsk) -> str:
    return "what the price of a slice comes to an hour" if ask.is_fixed else "the ceiling"


def say_change(today: BucketDay, yesterday: BucketDay) -> str:
    """Dearer or cheaper than yesterday, by how much and why, in a sentence or two."""
    before = max(yesterday.spot_microcredits_per_hour, 1)
    change = to_ppm(today.spot_microcredits_per_hour - before, before)
    if abs(change) < CHANGE_PPM_MIN:
        return "About as dear as yesterday."
    is_dearer = change > 0
    verdict = f"{say_percent(abs(change))} {'dearer' if is_dearer else 'cheaper'} than yesterday"
    reasons = _list_reasons(today, yesterday, is_dearer=is_dearer)
    return f"{verdict}: {'; '.join(reasons)}." if reasons else f"{verdict}."


def _list_reasons(today: BucketDay, yesterday: BucketDay, *, is_dearer: bool) -> list[str]:
    """Only what pulled the price the way it went."""
    reasons = []
    if today.card_version != yesterday.card_version:
        reasons.append("the rate card was changed")
    fewer = today.slot_count < yesterday.slot_count
    if fewer is is_dearer and _differs(today.slot_count, yesterday.slot_count):
        word = "fewer" if fewer else "more"
        reasons.append(f"{word} slots are lent ({today.slot_count:,}, yesterday {yesterday.slot_count:,})")
    longer = today.waiting_count > yesterday.waiting_count
    if longer is is_dearer and _differs(today.waiting_count, yesterday.waiting_count):
        word = "more" if longer else "fewer"
        reasons.append(f"{word} slices wait ({today.waiting_count:,}, yesterday {yesterday.waiting_count:,})")
    used, used_before = _busy_ppm(today), _busy_ppm(yesterday)
    if (used > used_before) is is_dearer and abs(used - used_before) >= REASON_PPM_MIN:
        reasons.append(f"{say_percent(used)} of the slots are in use, yesterday {say_percent(used_before)}")
    return reasons


def _differs(count: int, before: int) -> bool:
    return abs(count - before) * PPM >= max(before, 1) * REASON_PPM_MIN


def _busy_ppm(day: BucketDay) -> int:
    return to_ppm(day.busy_count, day.slot_count) if day.slot_count else 0
