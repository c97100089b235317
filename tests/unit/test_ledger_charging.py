"""What an attempt costs: seconds, rules by cause, prices, and the split."""

from __future__ import annotations

from uuid import UUID

import pytest

from computepool.core.ids import AttemptId
from computepool.core.jobs.cause import NODE_FAULTS, SPENDS_RETRY, Cause
from computepool.core.jobs.state import AttemptState
from computepool.core.ledger.charging import (
    RULES,
    ChargeRule,
    End,
    FrozenPrice,
    PriceMode,
    charge_attempt,
    count_paid_seconds,
    meter_seconds,
    price_attempt,
    price_reserve,
    price_seconds,
)
from computepool.core.ledger.fee import FEE_PPM_MAX, split_price

WALL = 3_600
HOURLY = FrozenPrice(PriceMode.PER_SECOND, 36_000_000)
FIXED = FrozenPrice(PriceMode.PER_SLICE, 1_000_000)


def end(cause: Cause | None = None, **overrides) -> End:
    values = {"cause": cause, "state": AttemptState.RUNNING, "metered_seconds": 100, **overrides}
    return End(**values)


# Seconds


@pytest.mark.parametrize(
    ("claimed", "held", "metered"),
    [
        (10.0, 20.0, 10),
        (10.2, 20.0, 11),
        # More than it can have had by our own clock.
        (1e12, 20.0, 20),
        (20.5, 20.4, 21),
        (0.0, 20.0, 1),
        (0.001, 0.001, 1),
        (float("inf"), 7.5, 8),
        (float("nan"), 7.5, 1),
        (-5.0, 7.5, 1),
        (5.0, -3.0, 1),
        # Cancelled: nobody claims anything.
        (None, 12.1, 13),
        # No more than its limit allows, whoever says so.
        (9_999.0, 9_999.0, WALL),
        (None, float("inf"), WALL),
    ],
)
def test_the_smaller_of_two_clocks_counts_in_whole_seconds(claimed, held, metered):
    assert meter_seconds(claimed_seconds=claimed, held_seconds=held, wall_seconds=WALL) == metered


# Rules


def test_every_cause_has_a_rule():
    assert set(RULES) == {None, *Cause}


def test_who_is_at_fault_pays():
    # What was found before the job began has cost nobody a second.
    never_began = {Cause.PACKAGES_FAILED, Cause.NOT_ALLOWED}
    assert all(RULES[cause] is ChargeRule.METERED for cause in SPENDS_RETRY - never_began)
    assert all(RULES[cause] is ChargeRule.NOTHING for cause in never_began)
    # What a machine had saved before it was lost is of use all the same.
    lost = {Cause.NODE_VANISHED, Cause.NETWORK_LOST, Cause.GPU_LOST}
    assert all(RULES[cause] is ChargeRule.TO_CHECKPOINT for cause in lost)
    assert all(RULES[cause] is ChargeRule.NOTHING for cause in NODE_FAULTS - lost)
    assert RULES[Cause.HUB_FAULT] is RULES[Cause.SUPERSEDED] is ChargeRule.NOTHING


@pytest.mark.parametrize(
    ("ended", "seconds"),
    [
        (end(None), 100),
        # A lost attempt that delivers after all.
        (end(None, state=AttemptState.LOST), 100),
        (end(Cause.EXIT_CODE), 100),
        (end(Cause.OUT_OF_MEMORY), 100),
        (end(Cause.TIMED_OUT), 100),
        # It had moved on without this attempt.
        (end(Cause.EXIT_CODE, state=AttemptState.LOST), 0),
        (end(Cause.CANCELLED), 100),
        (end(Cause.CANCELLED, state=AttemptState.LEASED), 0),
        (end(Cause.CANCELLED, state=AttemptState.LOST), 0),
        (end(Cause.EXPIRED), 100),
        (end(Cause.EXPIRED, state=AttemptState.LEASED), 0),
        (end(Cause.POISONOUS), 100),
        (end(Cause.SUPERSEDED), 0),
        (end(Cause.NODE_VANISHED), 0),
        (end(Cause.GPU_LOST), 0),
        (end(Cause.OWNER_RETURNED), 0),
        (end(Cause.OWNER_RETURNED, checkpoint_seconds=60), 60),
        (end(Cause.OWNER_RETURNED, checkpoint_seconds=600), 100),
        # What was saved of a lost machine's work is of use, whoever is at fault.
        (end(Cause.NODE_VANISHED, checkpoint_seconds=60), 60),
        (end(Cause.NETWORK_LOST, checkpoint_seconds=60), 60),
        (end(Cause.GPU_LOST, checkpoint_seconds=60), 60),
        (end(Cause.NODE_VANISHED, state=AttemptState.LOST, checkpoint_seconds=60), 0),
        # It pays for no work that is found to be wrong, nor twice for the same.
        (end(Cause.WRONG_RESULT, checkpoint_seconds=60), 0),
        (end(Cause.SUPERSEDED, checkpoint_seconds=60), 0),
        (end(Cause.SANDBOX_REFUSED, checkpoint_seconds=60), 0),
    ],
)
def test_seconds_are_paid_by_the_cause_of_the_end(ended, seconds):
    assert count_paid_seconds(ended) == seconds


# Prices


def test_seconds_are_priced_by_the_frozen_rate_and_rounded_down():
    assert price_seconds(36_000_000, 100) == 1_000_000
    assert price_seconds(3_599, 1) == 0
    assert price_seconds(3_601, 1) == 1
    assert price_seconds(10**15, 14 * 86_400) == 10**15 * 336


@pytest.mark.parametrize("price", [HOURLY, FIXED])
def test_ones_own_node_is_free(price):
    assert price_attempt(price, end(None), wall_seconds=WALL, is_own=True) == 0


def test_per_second_a_failure_of_ones_own_costs_what_success_would():
    success = price_attempt(HOURLY, end(None), wall_seconds=WALL)
    assert price_attempt(HOURLY, end(Cause.EXIT_CODE), wall_seconds=WALL) == success == 1_000_000


def test_a_fixed_price_is_for_a_slice_that_was_delivered():
    assert price_attempt(FIXED, end(None, metered_seconds=1), wall_seconds=WALL) == 1_000_000
    assert price_attempt(FIXED, end(None, metered_seconds=WALL), wall_seconds=WALL) == 1_000_000


def test_of_a_fixed_price_a_failure_costs_the_part_that_it_ran_of_its_limit():
    assert price_attempt(FIXED, end(Cause.EXIT_CODE, metered_seconds=1), wall_seconds=WALL) == 277
    assert price_attempt(FIXED, end(Cause.TIMED_OUT, metered_seconds=WALL), wall_seconds=WALL) == 1_000_000
    assert price_attempt(FIXED, end(Cause.CANCELLED, metered_seconds=1_800), wall_seconds=WALL) == 500_000
    assert price_attempt(FIXED, end(Cause.NODE_VANISHED), wall_seconds=WALL) == 0


@pytest.mark.parametrize("price", [HOURLY, FIXED, FrozenPrice(PriceMode.PER_SECOND, 0)])
@pytest.mark.parametrize("cause", [None, *Cause])
def test_no_end_costs_more_than_was_reserved(price, cause):
    seconds = meter_seconds(claimed_seconds=1e9, held_seconds=1e9, wall_seconds=WALL)
    ended = end(cause, metered_seconds=seconds, checkpoint_seconds=seconds)
    assert price_attempt(price, ended, wall_seconds=WALL) <= price_reserve(price, wall_seconds=WALL)


# The split


@pytest.mark.parametrize(
    ("price", "owner", "fee"),
    [
        (0, 0, 0),
        (1, 0, 1),
        (2, 1, 1),
        (4, 3, 1),
        (5, 4, 1),
        (6, 4, 2),
        (100, 80, 20),
        (10**15, 8 * 10**14, 2 * 10**14),
    ],
)
def test_the_fee_is_a_fifth_rounded_up_and_the_owner_has_the_rest(price, owner, fee):
    assert split_price(price, fee_ppm=200_000) == (owner, fee)


def test_without_a_fee_the_owner_has_all():
    assert split_price(7, fee_ppm=0) == (7, 0)


@pytest.mark.parametrize("fee_ppm", [-1, FEE_PPM_MAX + 1, 10**6])
def test_no_more_than_a_fifth_is_ever_taken(fee_ppm):
    with pytest.raises(ValueError, match="fee"):
        split_price(100, fee_ppm=fee_ppm)


def test_a_charge_comes_to_its_price():
    charge = charge_attempt(AttemptId(UUID(int=1)), 99, fee_ppm=200_000)
    assert (charge.owner_microcredits, charge.fee_microcredits, charge.total_microcredits) == (79, 20, 99)
