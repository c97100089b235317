"""The simulation of the economy in short: few histories of two stories, and what is said of planted faults."""

from __future__ import annotations

import pytest

from computepool.core.market.rate_card import Bucket
from sims.economy import Economy, Job, Node, account
from sims.market import (
    BIDS,
    BIG,
    CONTENDED,
    UNDAMPED,
    LowestFloorFirst,
    Story,
    WithoutForce,
    count_breaches,
    find_settle_ticks,
    find_share,
    find_swing,
    load_card,
    run_shading,
    tell_spike,
    tell_thunderstorm,
)

SEED = "short"
HERE = BIG[0]


@pytest.fixture(scope="module")
def storms() -> list[Story]:
    return [tell_thunderstorm(seed) for seed in (SEED, "b", "c")]


@pytest.fixture(scope="module")
def storm(storms: list[Story]) -> Story:
    return storms[0]


@pytest.fixture(scope="module")
def spike() -> Story:
    return tell_spike(SEED)


def test_400_nodes_that_arrive_at_once_cause_no_stampede(storm: Story):
    most, middle = find_share(storm.economy.nodes)
    assert len([node for node in storm.economy.nodes if node.online]) == 502
    assert most <= 3 * middle


def test_control_giving_work_to_the_lowest_floor_first_is_a_stampede():
    most, middle = find_share(tell_thunderstorm(SEED, kind=LowestFloorFirst).economy.nodes)
    assert most > 3 * middle


def test_the_price_settles_within_ten_ticks_and_rests(storms: list[Story], spike: Story):
    assert find_settle_ticks(storms) <= 10
    assert find_settle_ticks([spike]) <= 10
    assert find_swing([spike]) < 0.03


def test_control_without_damping_it_never_settles():
    wild = tell_spike(SEED, UNDAMPED)
    assert find_settle_ticks([wild]) > 10
    assert find_swing([wild]) > 0.3


def test_the_books_are_exact_and_nobody_paid_outside_their_bounds(storm: Story, spike: Story):
    for story in (storm, spike):
        assert story.economy.till.list_faults() == []
        assert count_breaches(story.economy) == (0, 0)
        assert len(story.economy.settled) > 1_000


def test_the_same_seed_makes_the_same_history(storm: Story):
    again = tell_thunderstorm(SEED)
    assert again.economy.settled == storm.economy.settled
    assert again.economy.trace == storm.economy.trace


def test_bidding_the_floor_gains_nothing_while_the_bucket_is_contended():
    truth = run_shading(SEED, CONTENDED[1], None)
    assert truth > 0
    assert run_shading(SEED, CONTENDED[1], BIDS[0]) <= 1.05 * truth


def test_control_without_force_bidding_the_floor_pays():
    truth = run_shading(SEED, CONTENDED[1], None, WithoutForce)
    assert run_shading(SEED, CONTENDED[1], BIDS[0], WithoutForce) > 1.05 * truth


class Overcharging(Economy):
    """A planted bug: a credit more an hour than agreed, or less."""

    credit = 1_000_000

    def _start(self, job: Job, node: Node, price: int) -> None:
        super()._start(job, node, price + self.credit)


class Undercharging(Overcharging):
    credit = -1_000_000


def run_one_job(kind: type[Economy], *, floor: int, ceiling: int, slices: int) -> Economy:
    economy = kind(load_card(), SEED)
    economy.add_node(HERE, floor, account(1))
    economy.submit(
        account(2), (HERE,), value=ceiling, ceiling=ceiling, seconds=[600] * slices, patience_seconds=10**6
    )
    economy.run(10)
    return economy


REFERENCE = load_card().reference(Bucket("rtx-4090", "us"))


def test_control_a_price_outside_its_bounds_is_counted():
    bounds = {"floor": REFERENCE, "ceiling": REFERENCE, "slices": 3}
    assert count_breaches(run_one_job(Economy, **bounds)) == (0, 0)
    above, _ = count_breaches(run_one_job(Overcharging, **bounds))
    _, below = count_breaches(run_one_job(Undercharging, **bounds))
    assert above > 0
    assert below > 0


def test_control_the_ledger_pays_no_more_than_was_held():
    with pytest.raises(RuntimeError, match="HOLD_EXCEEDED"):
        run_one_job(Overcharging, floor=REFERENCE, ceiling=REFERENCE, slices=1)
