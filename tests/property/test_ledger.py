"""Whatever happens in whatever order, the books are exact: histories by seed, a machine of hypothesis, and controls.

What a history checks after every step stands in tests/support/ledger_histories.py; sims/ledger_histories.py runs the
full number of them. Each planted bug of tests/support/ledger_bugs.py must be noticed by those checks.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from uuid import UUID

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from computepool.core.ids import AttemptId
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.state import AttemptState
from computepool.core.ledger.amount import AMOUNT_MAX
from computepool.core.ledger.charging import (
    End,
    FrozenPrice,
    PriceMode,
    charge_attempt,
    meter_seconds,
    price_attempt,
    price_reserve,
    price_seconds,
)
from computepool.core.ledger.fee import FEE_PPM_MAX, split_price
from computepool.core.ledger.transfer import TransferKind
from tests.support.ledger_bugs import PLANTED, find_bug
from tests.support.ledger_histories import KINDS, History, Rules

HISTORIES = 1_000
BOUNDED = settings(max_examples=300, deadline=None, derandomize=True, database=None)


def test_no_history_makes_the_books_lie_and_every_verb_is_posted_replayed_and_refused():
    seen: Counter[str] = Counter()
    for seed in range(HISTORIES):
        seen.update(History(seed).run().visited)
    # Histories that went nowhere would prove nothing.
    wanted = {f"{kind.value} posted" for kind in TransferKind}
    wanted |= {f"{kind.value} replayed" for kind in TransferKind}
    wanted |= {f"{kind.value} differing_replay" for kind in TransferKind}
    wanted |= {f"{kind} insufficient_credits" for kind in ("hold", "payout_reserve", "spend_earnings")}
    refusals = ("frozen", "nothing_to_move", "hold_exceeded", "not_due", "disputed", "not_pending", "reversed")
    wanted |= {f"refused {refusal}" for refusal in refusals}
    assert {what for what in wanted if not seen[what]} == set()


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.name)
def test_a_planted_bug_is_noticed(bug):
    noticed = find_bug(bug)
    assert noticed is not None, "missed"
    assert re.search(bug.words, noticed[1]), noticed


class Economy(RuleBasedStateMachine):
    """The same steps, chosen and shortened by hypothesis."""

    tried = Rules()

    def __init__(self) -> None:
        super().__init__()
        self.history = History(0, self.tried)
        self.step_count = 0
        for _ in range(3):
            self.history.step("top_up")

    @rule(kind=st.sampled_from(sorted(KINDS)), seed=st.integers(0, 2**32))
    def step(self, kind: str, seed: int) -> None:
        self.step_count += 1
        # No id is drawn twice, whatever seeds hypothesis repeats.
        self.history.dice = random.Random(f"{self.step_count}/{seed}")
        self.history.step(kind)

    @rule()
    def flush(self) -> None:
        self.history.flush()

    @invariant()
    def books_are_exact(self) -> None:
        if not self.history.waiting:
            self.history.check_all()

    def teardown(self) -> None:
        self.history.flush()
        self.history.check_all()


class TornEconomy(Economy):
    tried = next(bug.rules for bug in PLANTED if bug.name == "a posting is torn")


MACHINE = settings(max_examples=60, stateful_step_count=50, deadline=None, derandomize=True, database=None)
TestEconomy = Economy.TestCase
TestEconomy.settings = MACHINE


def test_control_the_machine_notices_a_bug_too():
    with pytest.raises(AssertionError):
        run_state_machine_as_test(TornEconomy, settings=settings(MACHINE, phases=[Phase.generate]))


# Prices


amounts = st.integers(0, AMOUNT_MAX)
fees = st.integers(0, FEE_PPM_MAX)
seconds = st.integers(1, 14 * 86_400)


@BOUNDED
@given(price=amounts, fee_ppm=fees)
def test_owner_and_fee_come_to_the_price_and_rounding_goes_to_the_fee(price, fee_ppm):
    owner, fee = split_price(price, fee_ppm=fee_ppm)
    assert owner + fee == price
    assert owner >= 0
    assert (fee - 1) * 10**6 < price * fee_ppm <= fee * 10**6


@BOUNDED
@given(one=amounts, other=amounts, fee_ppm=fees)
def test_a_higher_price_gives_neither_side_less(one, other, fee_ppm):
    low, high = sorted((one, other))
    assert all(
        a <= b for a, b in zip(split_price(low, fee_ppm=fee_ppm), split_price(high, fee_ppm=fee_ppm), strict=True)
    )


@BOUNDED
@given(rate=amounts, one=seconds, other=seconds)
def test_cutting_an_interval_in_two_never_gains_a_microcredit(rate, one, other):
    whole = price_seconds(rate, one + other)
    parts = price_seconds(rate, one) + price_seconds(rate, other)
    assert 0 <= whole - parts <= 1


@BOUNDED
@given(rate=amounts, run=seconds)
def test_nobody_pays_more_than_rate_times_seconds(rate, run):
    assert price_seconds(rate, run) * 3_600 <= rate * run


@BOUNDED
@given(claimed=st.floats(allow_nan=True) | st.none(), held=st.floats(allow_nan=True), wall=seconds)
def test_metered_seconds_are_whole_and_within_every_limit(claimed, held, wall):
    metered = meter_seconds(claimed_seconds=claimed, held_seconds=held, wall_seconds=wall)
    assert 1 <= metered <= wall
    for limit in (claimed, held):
        if limit is not None and limit > 0:
            assert metered - 1 < limit


@BOUNDED
@given(
    price=st.builds(FrozenPrice, st.sampled_from(PriceMode), amounts),
    cause=st.sampled_from([None, *Cause]),
    state=st.sampled_from([AttemptState.LEASED, AttemptState.RUNNING, AttemptState.LOST]),
    run=seconds,
    checkpoint=st.integers(0, 14 * 86_400),
    wall=seconds,
)
def test_no_end_costs_more_than_its_reserve_and_no_failure_more_than_success(
    price, cause, state, run, checkpoint, wall
):
    metered = min(run, wall)
    ended = price_attempt(price, End(cause, state, metered, checkpoint), wall_seconds=wall)
    delivered = price_attempt(price, End(None, state, metered), wall_seconds=wall)
    assert 0 <= ended <= delivered <= price_reserve(price, wall_seconds=wall)


@BOUNDED
@given(prices=st.lists(st.integers(0, 10**9), max_size=20), fee_ppm=fees)
def test_what_is_summed_over_attempts_is_the_sum_of_what_stands_with_each(prices, fee_ppm):
    charges = [charge_attempt(AttemptId(UUID(int=n)), price, fee_ppm=fee_ppm) for n, price in enumerate(prices)]
    assert sum(charge.total_microcredits for charge in charges) == sum(prices)
