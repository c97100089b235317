"""Quotes and forecasts on a real database: they say what a submit would do, and follow what the market wrote."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from computepool import clock
from computepool.core.accounts.roles import DEFAULT_ROLES
from computepool.core.errors import InvalidRequest, InvalidSpec, NotFound
from computepool.core.ids import KeyId
from computepool.core.ledger.accounts import AccountKind
from computepool.core.ledger.charging import PriceMode
from computepool.core.market.offers import Audience
from computepool.core.market.price import StartRefusal
from computepool.core.market.rate_card import Bucket
from computepool.hub.http.market import _to_bucket_earnings, _to_quote
from computepool.hub.services import offers as offer_service
from computepool.hub.services import quotes as service
from computepool.hub.services.callers import AccountCaller
from computepool.hub.services.prices import load_rate_card
from computepool.hub.services.quotes import JobQuote
from computepool.hub.store import nodes as node_store
from computepool.wire.jobs import JobPrice, Requirements
from computepool.wire.market import QuoteRequest
from computepool.wire.nodes import Gpu, SetOffer
from tests.support.builders import GB
from tests.support.market_rows import insert_point, insert_state
from tests.support.spine import EnrolledNode, Spine, open_spine

CARD = load_rate_card()
CPU = Bucket("cpu", "default")
REFERENCE = CARD.reference(CPU)
PPM = 1_000_000
RTX_4090 = Gpu(name="NVIDIA GeForce RTX 4090", vram_bytes=25_769_803_776)


@pytest.fixture
async def spine(dsn: str) -> AsyncIterator[Spine]:
    async with open_spine(dsn) as spine:
        yield spine


@pytest.fixture
async def person(spine: Spine) -> AccountCaller:
    return await spine.sign_up()


async def lend(spine: Spine, *, floor: int = 0, **hardware: Any) -> EnrolledNode:
    node = await spine.enrol(**hardware)
    async with spine.pool.acquire() as conn:
        await node_store.see_nodes(conn, [node.id])
        await conn.execute("UPDATE nodes SET floor_microcredits_per_hour = $1 WHERE id = $2", floor, node.id)
    return node


async def quote(spine: Spine, caller: AccountCaller, **request: Any) -> JobQuote:
    prices = spine.leases.prices
    found = await service.quote_job(spine.pool, spine.settings, prices, caller, QuoteRequest(**request))
    # The wire takes it as it is, whatever it says.
    _to_quote(found, prices)
    return found


def ceiling(credits: float) -> Requirements:
    return Requirements(ceiling_microcredits_per_hour=int(credits * PPM))


# What would be held

REQUESTS = [
    {},
    {"slice_count": 7, "wall_seconds": 1},
    {"slice_count": 3, "wall_seconds": 86_399, "requirements": ceiling(40.123456)},
    {"requirements": ceiling(0.000001), "wall_seconds": 3_601},
    {"requirements": Requirements(gpu=True), "slice_count": 100},
    {"requirements": Requirements(tiers=("rtx-3060",), regions=("IN",)), "wall_seconds": 61},
    {"price": JobPrice(mode=PriceMode.PER_SLICE), "kind": "ml", "slice_count": 4},
    {"price": JobPrice(mode=PriceMode.PER_SLICE, microcredits_per_slice=7), "wall_seconds": 3_600},
]


@pytest.mark.parametrize("request_", REQUESTS)
async def test_what_a_quote_says_is_held_is_what_a_submit_holds(spine, person, request_):
    quoted = await quote(spine, person, **request_)
    job = await spine.submit(by=person, **request_)
    assert quoted.submission.hold_microcredits == job.held_remaining
    held = await spine.fetch(
        "SELECT coalesce(sum(balance), 0) AS held FROM ledger_accounts WHERE kind = $1 AND account_id = $2",
        AccountKind.SUBMITTER_HELD.value,
        person.account_id,
    )
    assert held[0]["held"] == quoted.submission.hold_microcredits


async def test_a_quote_refuses_what_a_submit_refuses_and_holds_nothing(spine, person):
    for bad in ({"slice_count": 0}, {"wall_seconds": 0}, {"requirements": Requirements(cores=0)}):
        with pytest.raises(InvalidSpec):
            await quote(spine, person, **bad)
    with pytest.raises(InvalidRequest):
        await quote(spine, person, wall_seconds=60, expected_seconds=61)
    await quote(spine, person)
    assert await spine.fetch_value("SELECT count(*) FROM jobs") == 0
    assert await spine.fetch_value("SELECT count(*) FROM ledger_transfers WHERE kind = 'hold'") == 0


# What it would cost, and where


async def test_without_a_slot_that_fits_there_is_no_cost_and_the_quote_says_so(spine, person):
    await lend(spine)
    found = (await quote(spine, person, requirements=Requirements(gpu=True))).quote
    assert (found.cost, found.places, found.starts_in_seconds) == (None, (), None)
    assert found.why == "No slot that is lent now could run this."


async def test_free_slots_are_quoted_at_spot_with_counts_and_start_at_once(spine, person):
    for _ in range(3):
        await lend(spine, cpu_slots=2)
    await lend(spine, gpus=(RTX_4090,), cpu_slots=0)
    busy = await lend(spine)
    await spine.submit(by=person)
    assert await spine.grant(busy)
    found = await quote(spine, person, slice_count=2, wall_seconds=7_200, expected_seconds=3_600)
    places = {place.bucket.tier: place for place in found.quote.places}
    assert (places["cpu"].slot_count, places["cpu"].free_count) == (7, 6)
    assert places["cpu"].price_microcredits == REFERENCE
    limit = found.submission.shape.ceiling_microcredits_per_hour
    assert REFERENCE < limit == places["rtx-4090"].price_microcredits, "nobody waits there"
    assert found.quote.starts_in_seconds == 0
    cost = found.quote.cost
    assert cost.low_microcredits == REFERENCE
    assert cost.likely_microcredits == 2 * REFERENCE
    assert cost.likely_microcredits < cost.high_microcredits <= found.submission.hold_microcredits
    assert found.quote.owners_earn.likely_microcredits == 2 * REFERENCE * 8 // 10


async def test_a_floor_above_the_ceiling_is_named_and_cheaper_slots_beside_it_count_alone(spine, person):
    await lend(spine, floor=50 * PPM)
    found = (await quote(spine, person, requirements=ceiling(20))).quote
    assert [place.refusal for place in found.places] == [StartRefusal.FLOOR_ABOVE_CEILING]
    assert (found.cost, found.starts_in_seconds) == (None, None)
    await lend(spine, floor=15 * PPM)
    found = (await quote(spine, person, requirements=ceiling(20))).quote
    [place] = found.places
    assert (place.slot_count, place.free_count, place.refusal) == (1, 1, None)
    assert place.price_microcredits == 15 * PPM


async def offer(spine: Spine, node: EnrolledNode, **terms: Any) -> None:
    caller = AccountCaller(node.caller.account_id, KeyId(UUID(int=1)), DEFAULT_ROLES, 1)
    await offer_service.set_offer(spine.pool, spine.leases.prices, caller, node.id, SetOffer(**terms))


async def test_slots_that_are_closed_private_or_for_other_work_are_not_quoted(spine, person):
    in_three_days = clock.now() + timedelta(days=3)
    closed = {"hours": f"{in_three_days:%A}", "zone": "UTC"}
    for terms in ({"kinds": ("ml",)}, {"seconds_min": 3_600}, {"audience": Audience.OWN}, closed):
        await offer(spine, await lend(spine), **terms)
    found = await quote(spine, person, wall_seconds=60)
    assert (found.quote.cost, found.quote.places, found.own_slot_count, found.pool_slot_count) == (None, (), 0, 0)
    assert [place.slot_count for place in (await quote(spine, person, wall_seconds=3_600)).quote.places] == [1]
    assert [place.slot_count for place in (await quote(spine, person, wall_seconds=60, kind="ml")).quote.places] == [
        1
    ]
    with pytest.raises(InvalidSpec, match="kind 'mining' is unknown"):
        await quote(spine, person, kind="mining")


async def test_pools_are_quoted_beside_the_market_to_those_who_are_welcome(spine, person):
    for floor in (3 * PPM, 5 * PPM, 10**14):
        terms = {"audience": Audience.NAMED, "accounts": (str(person.account_id),)}
        await offer(spine, await lend(spine), floor_microcredits_per_hour=floor, **terms)
    own = await lend(spine, owner=person)
    await offer(spine, own, audience=Audience.OWN)
    found = await quote(spine, person)
    assert (found.pool_slot_count, found.pool_price_microcredits_per_hour) == (2, 3 * PPM)
    assert (found.own_slot_count, found.quote.places) == (1, ())
    stranger = await quote(spine, await spine.sign_up())
    assert (stranger.pool_slot_count, stranger.own_slot_count) == (0, 0)


# Fixed prices

TEN = JobPrice(mode=PriceMode.PER_SLICE, microcredits_per_slice=12_500_000)


async def test_a_fixed_price_is_quoted_as_it_is_whatever_spot_and_however_long(spine, person):
    await lend(spine)
    await lend(spine, gpus=(RTX_4090,), cpu_slots=0)
    await spine.fetch(insert_state(tier="'cpu'", region="'default'", surge_ppm=3 * PPM))
    found = await quote(spine, person, slice_count=3, wall_seconds=100, expected_seconds=1, price=TEN)
    cost = found.quote.cost
    assert (cost.low_microcredits, cost.likely_microcredits, cost.high_microcredits) == (30 * PPM,) * 3
    assert found.submission.hold_microcredits == 30 * PPM
    assert found.quote.owners_earn.likely_microcredits == 24 * PPM
    shown = _to_quote(found, spine.leases.prices)
    assert (shown.price.microcredits_per_slice, shown.price.ceiling_microcredits_per_slice) == (12_500_000, 10 * PPM)
    # Work that asks for no card pays for none.
    assert {place.tier: place.slice_price_microcredits for place in shown.places} == dict.fromkeys(
        ("cpu", "rtx-4090"), 10 * PPM
    )
    assert {place.price_microcredits_per_hour for place in shown.places} == {360 * PPM}


async def test_a_floor_above_what_a_fixed_price_comes_to_is_named_with_the_price(spine, person):
    await lend(spine, floor=360 * PPM + 1)
    found = (await quote(spine, person, wall_seconds=100, price=TEN)).quote
    [place] = found.places
    assert (place.refusal, place.price_microcredits) == (StartRefusal.SLICE_BELOW_FLOOR, 10 * PPM)
    assert (
        found.why == "Every slot that could run this asks for more than what the price of a slice comes to an hour."
    )
    await lend(spine, floor=360 * PPM)
    found = (await quote(spine, person, wall_seconds=100, price=TEN)).quote
    assert (found.starts_in_seconds, found.cost.likely_microcredits) == (0, 10 * PPM)


async def test_a_fixed_price_below_what_others_pay_is_told_to_wait(spine, person):
    await lend(spine)
    row = {"tier": "'cpu'", "region": "'default'", "surge_ppm": 2 * PPM, "waiting_count": 9, "contested": "true"}
    await spine.fetch(insert_state(**row, busy_count=2))
    for wall_seconds, refusal in ((1_800, None), (1_900, StartRefusal.CEILING_BELOW_SPOT)):
        [place] = (await quote(spine, person, wall_seconds=wall_seconds, price=TEN)).quote.places
        # 19.2 credits an hour; ten credits last for 1,875 seconds.
        assert place.refusal is refusal


async def test_ones_own_slot_starts_at_once_whatever_it_asks_of_others(spine, person):
    node = await spine.enrol(owner=person)
    async with spine.pool.acquire() as conn:
        await node_store.see_nodes(conn, [node.id])
        await conn.execute("UPDATE nodes SET floor_microcredits_per_hour = $1 WHERE id = $2", 10**12, node.id)
    found = await quote(spine, person, requirements=ceiling(1))
    assert (found.own_slot_count, found.quote.starts_in_seconds) == (1, 0)
    assert (await quote(spine, await spine.sign_up(), requirements=ceiling(1))).quote.starts_in_seconds is None


async def test_others_who_pay_spot_come_first(spine, person):
    await lend(spine)
    row = {"tier": "'cpu'", "region": "'default'", "surge_ppm": 2 * PPM, "waiting_count": 9, "contested": "true"}
    await spine.fetch(insert_state(**row, busy_count=2))
    poor = (await quote(spine, person, requirements=ceiling(10))).quote
    assert [place.refusal for place in poor.places] == [StartRefusal.CEILING_BELOW_SPOT]
    assert "they come first" in poor.why
    rich = (await quote(spine, person, requirements=ceiling(100))).quote
    assert [place.refusal for place in rich.places] == [None]
    assert rich.places[0].price_microcredits == 2 * REFERENCE


async def test_a_full_bucket_says_how_long_its_queue_takes(spine, person):
    node = await lend(spine)
    await spine.submit(by=person)
    await spine.grant_one(node)
    await spine.fetch(insert_state(region="'default'", slot_count=1, waiting_count=3, seconds_mean=100))
    assert (await quote(spine, person)).quote.starts_in_seconds == 400


async def test_dearer_than_yesterday_and_why(spine, person):
    await lend(spine)
    assert "no price of yesterday" in (await quote(spine, person)).quote.why
    state = {"region": "'default'", "surge_ppm": 2 * PPM, "slot_count": 10, "busy_count": 10, "waiting_count": 20}
    await spine.fetch(insert_state(**state))
    version = f"'{CARD.version}'"
    price = {"spot_microcredits_per_hour": REFERENCE, "reference_microcredits_per_hour": REFERENCE}
    await spine.fetch(
        insert_point(
            region="'default'",
            at="now() - interval '24 hours 1 minute'",
            slot_count=20,
            busy_count=10,
            rate_card_version=version,
            **price,
        )
    )
    # Neither what is too old nor what is too young is yesterday.
    for hours in (30, 23):
        await spine.fetch(insert_point(region="'default'", at=f"now() - interval '{hours} hours'"))
    why = (await quote(spine, person, requirements=ceiling(100))).quote.why
    assert why.startswith("100 % dearer than yesterday: fewer slots are lent (10, yesterday 20)")


async def test_ones_own_slots_are_counted_because_they_cost_nothing(spine, person):
    await lend(spine)
    node = await spine.enrol(owner=person, cpu_slots=2)
    async with spine.pool.acquire() as conn:
        await node_store.see_nodes(conn, [node.id])
    assert (await quote(spine, person)).own_slot_count == 2
    assert (await quote(spine, await spine.sign_up())).own_slot_count == 0


async def test_a_gate_of_the_shape_is_a_gate_of_the_quote(spine, person):
    await lend(spine, cores=8, ram_bytes=64 * GB)
    gates = [
        Requirements(cores=9),
        Requirements(ram_bytes=65 * GB),
        Requirements(disk_bytes=501 * GB),
        Requirements(regions=("IN",)),
        Requirements(isolation="gvisor"),
        Requirements(tiers=("rtx-4090",)),
        Requirements(vram_bytes=GB),
    ]
    for need in gates:
        assert (await quote(spine, person, requirements=need)).quote.places == ()
    assert len((await quote(spine, person, requirements=Requirements(cores=8))).quote.places) == 1


# What a machine would earn


async def earn(spine: Spine, caller: AccountCaller, **query: Any) -> Any:
    found = await service.forecast_earnings(
        spine.pool, spine.leases.prices, caller, **{"tier": None, "country": None, **query}
    )
    for each in found.buckets:
        _to_bucket_earnings(each)
    return found


async def test_a_machine_that_one_thinks_of_lending_is_forecast_from_the_last_day(spine, person):
    for hours, busy in ((30, 2), (20, 1), (1, 1)):
        point = insert_point(tier="'rtx-4090'", at=f"now() - interval '{hours} hours'", slot_count=2, busy_count=busy)
        await spine.fetch(point)
    await spine.fetch(
        insert_state(tier="'rtx-4090'", surge_ppm=1_500_000, seconds_mean=1_800)
        .replace("seconds_mean, at", "seconds_mean, bids, at")
        .replace("1800, now()", "1800, '[[100000000, 60], [null, 20], [1, 20]]', now()")
    )
    found = await earn(spine, person, tier="rtx-4090", country="IN")
    [bucket] = found.buckets
    spot = CARD.reference(Bucket("rtx-4090", "in")) * 3 // 2
    assert (found.region, bucket.spot_microcredits_per_hour, bucket.busy_ppm) == ("in", spot, 500_000)
    at_spot = next(row for row in bucket.floors if row.floor_microcredits_per_hour == spot)
    assert at_spot.owner_microcredits_per_hour == spot // 2 * 8 // 10
    assert at_spot.owner_microcredits_per_job == spot // 2 * 8 // 10
    above = bucket.floors[-1]
    assert above.busy_ppm == 400_000, "four of five seconds are paid by those who would pay twice spot"
    tiers = {row.tier: row for row in found.tiers}
    assert {*CARD.tiers_ppm} < {*tiers}
    assert tiers["rtx-4090"].price_microcredits_per_hour == spot
    assert tiers["cpu"].price_microcredits_per_hour == CARD.reference(Bucket("cpu", "in"))


async def test_ones_own_machines_are_taken_by_their_slots(spine, person):
    with pytest.raises(NotFound):
        await earn(spine, person)
    await spine.enrol(owner=person, gpus=(RTX_4090,), cpu_slots=3)
    found = await earn(spine, person)
    assert {each.bucket.tier: each.own_slot_count for each in found.buckets} == {"cpu": 3, "rtx-4090": 1}
    assert all(each.best.busy_ppm == 0 for each in found.buckets), "nothing is known, and nothing promised"


async def test_a_tier_that_is_not_on_the_card_is_refused(spine, person):
    with pytest.raises(InvalidRequest):
        await earn(spine, person, tier="gold")
