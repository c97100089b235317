"""The market over random input: prices within bounds, the index of offers exact, nothing minted, nobody moves it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from importlib.resources import files
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from computepool.core.jobs.spec import Requirements
from computepool.core.ledger.charging import price_seconds
from computepool.core.ledger.fee import split_price
from computepool.core.market import cheapest
from computepool.core.market.cheapest import OfferIndex
from computepool.core.market.earnings import list_tier_earnings
from computepool.core.market.index import DealGroup, find_level, link_accounts
from computepool.core.market.offers import (
    SECONDS_MIN_STEPS,
    Ask,
    Audience,
    Offer,
    Schedule,
    find_offer_refusal,
)
from computepool.core.market.ppm import PPM
from computepool.core.market.price import (
    StartRefusal,
    find_start_refusal,
    price_ask,
    price_match,
    price_slice,
    to_base_price,
)
from computepool.core.market.quote import BucketDay, BucketView, QuoteAsk, make_quote
from computepool.core.market.rate_card import Bucket, parse_rate_card
from computepool.core.market.spot import (
    PRESSURE_PPM_MAX,
    RULE,
    SpotRule,
    SpotState,
    Supply,
    Waiting,
    advance,
    measure_pressures,
)
from computepool.core.placement.checks import check_price
from computepool.core.placement.price import SlicePrice
from computepool.core.placement.shape import to_shape
from tests.support.builders import NOW, account_number

QUICK = settings(max_examples=150, deadline=None, derandomize=True, database=None, report_multiple_bugs=False)

SHIPPED = files("computepool.core.market").joinpath("rate_card.toml").read_text(encoding="utf-8")
CARD = parse_rate_card(SHIPPED)
BUCKETS = [Bucket(tier, region) for tier in ("rtx-4090", "cpu") for region in ("us", "in")]
ACCOUNTS = [account_number(number) for number in range(5)]
PRICES = st.integers(0, 12)
MONEY = st.integers(0, 10**15)
PRESSURES = st.integers(0, 2 * PRESSURE_PPM_MAX)


@QUICK
@given(floor=MONEY, ceiling=st.none() | MONEY, spot=MONEY, backlog=st.booleans())
def test_whoever_starts_pays_within_floor_and_ceiling(floor, ceiling, spot, backlog):
    if find_start_refusal(floor=floor, ceiling=ceiling, spot=spot, has_backlog_at_spot=backlog) is None:
        price = price_match(floor=floor, ceiling=ceiling, spot=spot)
        assert price >= floor
        assert ceiling is None or price <= ceiling
        # Nobody pays more than spot but for an owner who asks for more.
        assert price <= max(floor, spot)


@QUICK
@given(floor=MONEY, ceiling=MONEY, spot=MONEY)
def test_spot_with_force_lets_nobody_in_below_it(floor, ceiling, spot):
    if find_start_refusal(floor=floor, ceiling=ceiling, spot=spot, has_backlog_at_spot=True) is None:
        assert price_match(floor=floor, ceiling=ceiling, spot=spot) >= spot


FIXED = st.builds(
    SlicePrice, st.integers(1, 10**9), ceiling_microcredits=st.integers(1, 10**10), seconds=st.integers(1, 10**6)
)


def the_gate_keeps_floors_and_lets_others_in(fixed: SlicePrice, bucket: Bucket, near: int, price: int) -> None:
    """`near` is how far a floor lies from what the price comes to an hour."""
    shape = to_shape(Requirements(slice_price=fixed))
    floor = max(0, price * 3_600 // fixed.seconds + near)
    assert price <= fixed.ceiling_microcredits
    if check_price(shape, floor, to_base_price(CARD, bucket, floor)) is None:
        assert price * 3_600 >= floor * fixed.seconds, "the floor holds for the whole wall limit"
    # Shapes are brought down to steps of 5 %; of figures of few microcredits, rounding takes more.
    low = max(0, floor * 94 // 100 - 3)
    if near <= 0 and fixed.base_microcredits >= 1_000:
        assert check_price(shape, low, to_base_price(CARD, bucket, low)) is None, "whoever asks for less gets it"


@QUICK
@given(fixed=FIXED, bucket=st.sampled_from(BUCKETS), near=st.integers(-2, 2))
def test_a_fixed_price_that_passes_the_gate_covers_the_floor_however_long_the_slice_runs(fixed, bucket, near):
    price = price_slice(
        CARD,
        bucket,
        base_microcredits=fixed.base_microcredits,
        ceiling_microcredits=fixed.ceiling_microcredits,
    )
    the_gate_keeps_floors_and_lets_others_in(fixed, bucket, near, price)


def test_control_a_price_that_is_rounded_down_falls_below_a_floor():
    @settings(QUICK, phases=[Phase.generate])
    @given(fixed=FIXED, bucket=st.sampled_from(BUCKETS), near=st.integers(-2, 2))
    def run(fixed: SlicePrice, bucket: Bucket, near: int) -> None:
        price = min(CARD.multiply(fixed.base_microcredits, bucket), fixed.ceiling_microcredits)
        the_gate_keeps_floors_and_lets_others_in(fixed, bucket, near, price)

    with pytest.raises(AssertionError, match="the floor holds"):
        run()


@QUICK
@given(price=st.integers(0, 10**12), seconds=st.integers(1, 10**6), fee_ppm=st.integers(0, 200_000))
def test_what_the_submitter_pays_is_what_owner_and_fee_get(price, seconds, fee_ppm):
    paid = price_seconds(price, seconds)
    owner, fee = split_price(paid, fee_ppm=fee_ppm)
    assert owner + fee == paid
    assert fee * PPM >= paid * fee_ppm
    assert paid * 3_600 <= price * seconds


# Spot


@QUICK
@given(readings=st.lists(st.none() | PRESSURES, max_size=60))
def test_the_surge_stays_in_bounds_and_so_does_each_of_its_moves(readings):
    state = SpotState()
    for reading in readings:
        after = advance(state, reading)
        assert RULE.surge_ppm_min <= after.surge_ppm <= RULE.surge_ppm_max
        assert RULE.step_ppm_min <= after.step_ppm <= RULE.step_ppm_max
        assert abs(after.surge_ppm - state.surge_ppm) <= state.surge_ppm * RULE.step_ppm_max // PPM
        state = after


@QUICK
@given(first=st.lists(PRESSURES, max_size=20), last=PRESSURES)
def test_a_steady_pressure_ends_at_its_own_price_whatever_was_before(first, last):
    state = SpotState()
    for reading in first + [last] * 80:
        state = advance(state, reading)
    fresh = SpotState()
    for _ in range(80):
        fresh = advance(fresh, last)
    assert state.surge_ppm == pytest.approx(fresh.surge_ppm, rel=0.01)


def break_bound(state: SpotState, reading: int | None) -> SpotState:
    """A planted bug: the surge goes straight to its target."""
    return advance(
        state, reading, SpotRule(smoothing_ppm=PPM, reach_ppm=9 * PPM, step_ppm_min=9 * PPM, step_ppm_max=9 * PPM)
    )


def test_control_a_surge_without_bound_is_noticed():
    after = break_bound(SpotState(), PRESSURE_PPM_MAX)
    assert abs(after.surge_ppm - PPM) > PPM * RULE.step_ppm_max // PPM


WAITING = st.builds(
    Waiting,
    account_id=st.sampled_from(ACCOUNTS),
    slice_count=st.integers(0, 1_000),
    ceiling_microcredits_per_hour=st.none() | PRICES,
    buckets=st.lists(st.sampled_from(BUCKETS), unique=True, max_size=4).map(tuple),
)
SUPPLIES = st.dictionaries(
    st.sampled_from(BUCKETS),
    st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda pair: Supply(max(pair), min(pair))),
)
SPOTS = st.fixed_dictionaries(dict.fromkeys(BUCKETS, PRICES))


@QUICK
@given(supplies=SUPPLIES, waiting=st.lists(WAITING, max_size=8), spots=SPOTS)
def test_pressure_is_never_below_the_busy_share_and_grows_with_the_queue(supplies, waiting, spots):
    without = measure_pressures(supplies, [], spots)
    pressures = measure_pressures(supplies, waiting, spots)
    assert set(pressures) == {bucket for bucket, supply in supplies.items() if supply.slot_count}
    for bucket, pressure in pressures.items():
        assert without[bucket] <= pressure <= PRESSURE_PPM_MAX
        assert measure_pressures(supplies, [*waiting, *waiting], spots)[bucket] >= pressure


@QUICK
@given(supplies=SUPPLIES, waiting=st.lists(WAITING, max_size=8), spots=SPOTS, owner=st.sampled_from(ACCOUNTS))
def test_owners_and_whoever_is_linked_with_them_cannot_press_on_their_own_price(supplies, waiting, spots, owner):
    partner = ACCOUNTS[0]
    links = link_accounts([(owner, partner)])
    owned = {bucket: Supply(s.slot_count, s.busy_count, frozenset({owner})) for bucket, s in supplies.items()}
    others = [each for each in waiting if each.account_id not in (owner, partner)]
    assert measure_pressures(owned, waiting, spots, links) == measure_pressures(owned, others, spots, links)


# The cheapest offer


OFFERS = st.builds(
    Offer,
    owner_id=st.sampled_from(ACCOUNTS),
    floor_microcredits_per_hour=PRICES,
    seconds_min=st.sampled_from(SECONDS_MIN_STEPS[:3]),
    kinds=st.sampled_from([frozenset[str](), frozenset({"ml"}), frozenset({"ml", "gaming"})]),
    audience=st.sampled_from(list(Audience)),
    named=st.frozensets(st.sampled_from(ACCOUNTS), max_size=2),
)
ASKS = st.builds(
    Ask,
    account_id=st.sampled_from(ACCOUNTS),
    kind=st.sampled_from(["ml", "gaming", "compute"]),
    seconds=st.sampled_from([1, 10, 60]),
    ceiling_microcredits_per_hour=st.none() | PRICES,
)


def make_steps(keys: int, buckets: list[Bucket], offers: Any) -> Any:
    verbs = st.sampled_from(["put", "put", "put", "remove"])
    step = st.tuples(verbs, st.integers(0, keys), st.sampled_from(buckets), offers, st.integers(0, 3))
    return st.lists(step, max_size=40)


# Offers of all kinds; and plain ones, which crowd on few shelves.
PLAIN_OFFERS = st.builds(Offer, st.just(ACCOUNTS[0]), PRICES)
STEPS = make_steps(20, BUCKETS, OFFERS) | make_steps(8, BUCKETS[:1], PLAIN_OFFERS)


def search_all(
    known: dict[int, tuple[Bucket, Offer, int, int]],
    ask: Ask,
    buckets: list[Bucket],
    spots: dict[Bucket, int],
    backlog: set[Bucket],
) -> tuple[int, int] | None:
    """Looks at every offer: (price, key) of the cheapest, of equals the longest free, of those the first put in."""
    found = []
    for key, (bucket, offer, free_since, number) in known.items():
        if bucket not in buckets or find_offer_refusal(offer, ask, now=NOW) is not None:
            continue
        price = price_ask(offer, ask, spot=spots[bucket], has_backlog_at_spot=bucket in backlog)
        if not isinstance(price, StartRefusal):
            found.append((price, free_since, number, key))
    return (min(found)[0], min(found)[3]) if found else None


def compare_with_all(steps: Any, asks: list[Ask], spots: dict[Bucket, int], backlog: set[Bucket]) -> None:
    index: OfferIndex[int] = OfferIndex()
    known: dict[int, tuple[Bucket, Offer, int, int]] = {}
    for number, (verb, key, bucket, offer, free_since) in enumerate(steps):
        if verb == "put":
            index.put(key, bucket, offer, free_since=float(free_since))
            known[key] = (bucket, offer, free_since, number)
        elif key in known:
            index.remove(key)
            del known[key]
    assert len(index) == len(known)
    for ask in asks:
        for buckets in (BUCKETS, BUCKETS[:1]):
            found = index.find_cheapest(ask, buckets, spots=spots, backlog_at_spot=backlog)
            expected = search_all(known, ask, buckets, spots, backlog)
            assert (found and (found.price_microcredits_per_hour, found.key)) == expected


@pytest.mark.parametrize("chunk_size", [2, 64])
def test_the_index_finds_what_a_look_at_every_offer_finds(monkeypatch, chunk_size):
    monkeypatch.setattr(cheapest, "CHUNK_SIZE_MAX", chunk_size)

    @settings(QUICK, max_examples=300)
    @given(STEPS, st.lists(ASKS, min_size=1, max_size=4), SPOTS, st.sets(st.sampled_from(BUCKETS)))
    def check(steps, asks, spots, backlog):
        compare_with_all(steps, asks, spots, backlog)

    check()


PLANTED = {
    "forgets whose turn it is when an offer is taken": ("remove", lambda self, item: _remove_carelessly(self, item)),
    "takes the floor's neighbour for the floor": ("find_lowest", lambda self, floor: _find_lowest_above(self, floor)),
}


def _remove_carelessly(shelf: Any, item: Any) -> None:
    oldest = list(shelf._oldest)
    ORIGINAL_REMOVE(shelf, item)
    if len(oldest) == len(shelf._oldest):
        shelf._oldest[:] = oldest


def _find_lowest_above(shelf: Any, floor: int) -> Any:
    return ORIGINAL_FIND_LOWEST(shelf, floor + 1)


ORIGINAL_REMOVE = cheapest._Shelf.remove
ORIGINAL_FIND_LOWEST = cheapest._Shelf.find_lowest


@pytest.mark.parametrize("bug", PLANTED)
def test_control_a_planted_bug_in_the_index_is_noticed(monkeypatch, bug):
    monkeypatch.setattr(cheapest._Shelf, *PLANTED[bug])

    @settings(QUICK, max_examples=600, phases=[Phase.generate])
    @given(STEPS, st.lists(ASKS, min_size=1, max_size=4), SPOTS, st.sets(st.sampled_from(BUCKETS)))
    def check(steps, asks, spots, backlog):
        compare_with_all(steps, asks, spots, backlog)

    with pytest.raises((AssertionError, KeyError)):
        check()


# The price index


DEALS = st.builds(
    DealGroup,
    bucket=st.just(BUCKETS[0]),
    price_microcredits_per_hour=st.integers(0, 1_000),
    deal_count=st.integers(1, 5),
    seconds=st.integers(0, 1_000),
    is_linked=st.booleans(),
    is_private=st.booleans(),
)


@QUICK
@given(
    deals=st.lists(DEALS, max_size=12),
    wash=st.lists(st.tuples(st.integers(0, 10**12), st.integers(1, 10**9)), max_size=6),
    private=st.booleans(),
)
def test_deals_within_a_group_never_move_the_index(deals, wash, private):
    washed = [
        DealGroup(BUCKETS[0], price, 1, seconds, is_linked=not private, is_private=private) for price, seconds in wash
    ]
    assert find_level([*deals, *washed], reference=100) == find_level(deals, reference=100)


@QUICK
@given(deals=st.lists(DEALS, max_size=12))
def test_the_index_lies_within_what_was_paid(deals):
    level = find_level(deals, reference=100)
    prices = [deal.price_microcredits_per_hour for deal in deals]
    assert level is None or min(prices) <= level.price_microcredits_per_hour <= max(prices)


# Quotes, earnings, hours


VIEWS = st.builds(
    lambda bucket, spot, slots, free, floor, waiting, speed: BucketView(
        bucket,
        CARD.reference(bucket),
        BucketDay(spot, slots, slots - min(free, slots), waiting),
        None,
        slots,
        min(free, slots),
        floor,
        600,
        speed,
    ),
    st.sampled_from(BUCKETS),
    st.integers(1, 10**8),
    st.integers(0, 50),
    st.integers(0, 50),
    st.integers(0, 10**8),
    st.integers(0, 500),
    st.sampled_from([PPM // 2, PPM, 3 * PPM]),
)


@QUICK
@given(
    views=st.lists(VIEWS, max_size=4),
    slices=st.integers(1, 100_000),
    seconds=st.lists(st.integers(1, 14 * 86_400), min_size=3, max_size=3).map(sorted),
    ceiling=st.none() | st.integers(1, 10**8),
    surcharge_ppm=st.integers(0, 500_000),
)
def test_a_quote_is_in_order_and_within_the_ceiling(views, slices, seconds, ceiling, surcharge_ppm):
    ask = QuoteAsk(slices, *seconds, ceiling_microcredits_per_hour=ceiling, surcharge_ppm=surcharge_ppm)
    quote = make_quote(ask, views, fee_ppm=CARD.fee_ppm)
    assert quote.why
    if quote.cost is None:
        assert quote.starts_in_seconds is None
        return
    cost, earned = quote.cost, quote.owners_earn
    assert earned is not None
    assert 0 <= cost.low_microcredits <= cost.likely_microcredits <= cost.high_microcredits
    assert earned.high_microcredits <= cost.high_microcredits
    if ceiling is not None:
        slowest = min(view.speed_ppm for view in views)
        longest = -(-seconds[2] * PPM // slowest)
        most = slices * -(-ceiling * longest // 3_600)
        assert cost.high_microcredits <= most * (PPM + surcharge_ppm) // PPM


@QUICK
@given(
    multipliers=st.lists(st.integers(10_000, 10**8), min_size=1, max_size=6, unique=True),
    base=st.integers(1_000_000, 10**9),
)
def test_earnings_rise_with_the_tier_on_any_card(multipliers, base):
    tiers = "\n".join(f"t{number} = {each / PPM:.6f}" for number, each in enumerate(multipliers))
    text = SHIPPED.replace("base_credits_per_hour = 12", f"base_credits_per_hour = {base / PPM:.6f}")
    card = parse_rate_card(text.replace("[tiers]", f"[tiers]\n{tiers}"))
    rows = list_tier_earnings(card, "us")
    earned = [row.owner_microcredits_per_hour for row in rows]
    assert earned == sorted(earned)
    assert [row.multiplier_ppm for row in rows] == sorted(row.multiplier_ppm for row in rows)


@QUICK
@given(
    hours=st.integers(1, (1 << 168) - 1),
    zone=st.sampled_from(
        ["Europe/Berlin", "Asia/Kolkata", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe"]
    ),
    minutes=st.integers(0, 366 * 24 * 60),
)
def test_a_schedule_opens_when_it_says(hours, zone, minutes):
    schedule = Schedule(hours, ZoneInfo(zone))
    now = datetime(2030, 1, 1, tzinfo=UTC) + timedelta(minutes=minutes)
    opens = schedule.next_open_at(now)
    assert opens is not None
    assert opens >= now
    assert schedule.is_open(opens)
    if opens > now:
        assert not schedule.is_open(now)
        assert not schedule.is_open(opens - timedelta(seconds=1))
