"""Which offer takes which ask, at what hour, and from whom."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from computepool.core.market.offers import (
    PLAIN_WORDS,
    SECONDS_MIN_STEPS,
    Ask,
    Audience,
    Offer,
    OfferRefusal,
    Schedule,
    find_offer_refusal,
    list_offer_faults,
    round_down_seconds,
    to_hours,
)
from tests.support.builders import NOW, account_number

OWNER, FRIEND, STRANGER = account_number(1), account_number(2), account_number(3)
BERLIN, KOLKATA = ZoneInfo("Europe/Berlin"), ZoneInfo("Asia/Kolkata")
KINDS = ("ml", "gaming", "compute")


def make_ask(**overrides) -> Ask:
    return Ask(**{"account_id": STRANGER, "kind": "ml", "seconds": 600, **overrides})


def find(offer: Offer, ask: Ask) -> OfferRefusal | None:
    return find_offer_refusal(offer, ask, now=NOW)


def test_a_plain_offer_takes_everything():
    assert find(Offer(OWNER), make_ask()) is None


def test_a_floor_above_the_ceiling_is_refused_and_one_at_the_ceiling_is_not():
    ask = make_ask(ceiling_microcredits_per_hour=100)
    assert find(Offer(OWNER, 101), ask) is OfferRefusal.FLOOR_ABOVE_CEILING
    assert find(Offer(OWNER, 100), ask) is None
    assert find(Offer(OWNER, 10**15), make_ask()) is None


def test_kinds_and_lengths_are_the_owners_choice():
    offer = Offer(OWNER, seconds_min=60, kinds=frozenset({"ml"}))
    assert find(offer, make_ask(kind="gaming")) is OfferRefusal.KIND_NOT_ACCEPTED
    assert find(offer, make_ask(seconds=59)) is OfferRefusal.TOO_SHORT
    assert find(offer, make_ask(seconds=60)) is None


@pytest.mark.parametrize(
    ("audience", "welcome"),
    [
        (Audience.ANYONE, {OWNER, FRIEND, STRANGER}),
        (Audience.OWN, {OWNER}),
        (Audience.NAMED, {OWNER, FRIEND}),
    ],
)
def test_private_pools_take_whom_they_are_for(audience, welcome):
    offer = Offer(OWNER, audience=audience, named=frozenset({FRIEND}))
    for account in (OWNER, FRIEND, STRANGER):
        refusal = find(offer, make_ask(account_id=account))
        assert refusal is (None if account in welcome else OfferRefusal.NOT_FOR_THIS_ACCOUNT)


def test_ones_own_floor_does_not_stop_ones_own_jobs():
    assert find(Offer(OWNER, 10**12), make_ask(account_id=OWNER, ceiling_microcredits_per_hour=1)) is None


def test_hours_are_those_of_the_owners_clock():
    # Monday to Friday, 18:00 to 23:00.
    hours = to_hours((24 * day + 18, 24 * day + 23) for day in range(5))
    evening_in_berlin = datetime(2030, 1, 7, 17, 30, tzinfo=UTC)
    assert Schedule(hours, BERLIN).is_open(evening_in_berlin)
    assert not Schedule(hours, KOLKATA).is_open(evening_in_berlin + timedelta(hours=1))
    assert not Schedule(hours, UTC).is_open(evening_in_berlin)


def test_hours_follow_summer_time():
    schedule = Schedule(to_hours([(18, 19)]), BERLIN)
    assert schedule.is_open(datetime(2030, 1, 7, 17, 0, tzinfo=UTC))
    assert schedule.is_open(datetime(2030, 7, 1, 16, 0, tzinfo=UTC))
    assert not schedule.is_open(datetime(2030, 7, 1, 17, 0, tzinfo=UTC))


def test_a_closed_offer_says_when_it_opens():
    schedule = Schedule(to_hours([(18, 23)]), KOLKATA)
    now = datetime(2030, 1, 7, 6, 7, 8, 9, tzinfo=UTC)
    assert find_offer_refusal(Offer(OWNER, schedule=schedule), make_ask(), now=now) is OfferRefusal.CLOSED_NOW
    # 18:00 in India is 12:30 in Greenwich.
    assert schedule.next_open_at(now) == datetime(2030, 1, 7, 12, 30, tzinfo=UTC)
    opened = datetime(2030, 1, 7, 13, 0, tzinfo=UTC)
    assert schedule.next_open_at(opened) == opened
    assert Schedule(0, KOLKATA).next_open_at(now) is None


@pytest.mark.parametrize("now", [datetime(2030, 3, 31, 0, 30, tzinfo=UTC), datetime(2030, 10, 27, 0, 30, tzinfo=UTC)])
def test_an_hour_that_is_skipped_or_comes_twice_confuses_nobody(now):
    for hour in range(168):
        schedule = Schedule(1 << hour, BERLIN)
        opens = schedule.next_open_at(now)
        assert opens is not None
        assert schedule.is_open(opens)
        assert not any(
            schedule.is_open(now + timedelta(minutes=15 * n))
            for n in range(int((opens - now) / timedelta(minutes=15)))
        )


def test_spans_of_hours_may_go_over_the_end_of_the_week():
    assert to_hours([(167, 1)]) == 1 << 167 | 1
    assert to_hours([(0, 168)]) == to_hours([(5, 5)]) == (1 << 168) - 1
    assert to_hours([]) == 0
    with pytest.raises(ValueError, match="write hours from 0"):
        to_hours([(0, 169)])


def test_lengths_are_rounded_down_to_a_step():
    assert [round_down_seconds(each) for each in (-1, 0, 9, 10, 61, 10**9)] == [
        0,
        0,
        0,
        10,
        60,
        SECONDS_MIN_STEPS[-1],
    ]


def test_a_good_offer_has_no_faults():
    offer = Offer(OWNER, 5, Schedule(1, BERLIN), 60, frozenset({"ml"}), Audience.NAMED, named=frozenset({FRIEND}))
    assert list_offer_faults(offer, kinds=KINDS, floor_max=10) == []


@pytest.mark.parametrize(
    ("overrides", "fault"),
    [
        ({"floor_microcredits_per_hour": -1}, "between 0 and 10"),
        ({"floor_microcredits_per_hour": 11}, "between 0 and 10"),
        ({"seconds_min": 7}, "one of 0, 10, 60"),
        ({"kinds": frozenset({"mining"})}, "kind 'mining' is unknown; there are compute, gaming, ml"),
        ({"schedule": Schedule(0, BERLIN)}, "at least one hour"),
        ({"audience": Audience.NAMED}, "name one, or choose own or anyone"),
        ({"named": frozenset({FRIEND})}, "choose named, or name none"),
        ({"audience": Audience.NAMED, "named": frozenset(map(account_number, range(101)))}, "takes 100 at most"),
    ],
)
def test_what_is_wrong_with_an_offer_is_told(overrides, fault):
    faults = list_offer_faults(Offer(OWNER, **overrides), kinds=KINDS, floor_max=10)
    assert len(faults) == 1
    assert fault in faults[0]


def test_every_refusal_has_words():
    assert set(PLAIN_WORDS) == set(OfferRefusal)
