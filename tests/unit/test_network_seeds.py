"""Seeds and the order of samples: functions of names, with nothing drawn in between."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from computepool.core.networks.seeds import batch_indices, dropout_seed, parameter_seed, seed_of, share_of


def test_a_seed_has_63_bits_and_does_not_change() -> None:
    assert seed_of(7, "0", "parameter") == parameter_seed(7, "0")
    assert parameter_seed(7, "0.weight") == 5861820202670483210
    assert dropout_seed(7, "blocks.0.dropout", 3, 1) == 571331464976432308
    assert all(0 <= seed_of(number, "a") < 1 << 63 for number in range(1_000))


def test_every_part_of_a_seed_counts_and_no_two_ways_of_writing_it_meet() -> None:
    ways = [
        (1, "a", "b", "c"),
        (1, "ab", "c"),
        (1, "a", "bc"),
        (1, "a", "c", "b"),
        (2, "a", "b", "c"),
        (1, "a", 1),
        (1, "a", "1"),
        (1, "a", 1, 1),
        (1, "a", 11),
        (11, "a"),
        (1, "1a"),
    ]
    assert len({seed_of(seed, path, *parts) for seed, path, *parts in ways}) == len(ways)


@pytest.mark.parametrize(
    ("size", "batch"), [(1, 1), (1, 5), (2, 2), (3, 2), (7, 7), (97, 10), (100, 25), (1797, 128)]
)
def test_every_pass_over_the_data_takes_each_sample_once(size: int, batch: int) -> None:
    steps = -(-3 * size // batch)
    drawn = [index for step in range(steps) for index in batch_indices(5, step, size, batch)]
    for number in range(3):
        assert sorted(drawn[number * size : (number + 1) * size]) == list(range(size))


def test_passes_steps_and_seeds_have_orders_of_their_own() -> None:
    first = batch_indices(5, 0, 1_000, 1_000)
    assert first != batch_indices(5, 1, 1_000, 1_000)
    assert first != batch_indices(6, 0, 1_000, 1_000)
    assert first == batch_indices(5, 0, 1_000, 1_000)


def test_the_order_looks_like_chance() -> None:
    """Where a sample stands says nothing of which it is, nor of its neighbour's: within five deviations."""
    size = 10_000
    order = batch_indices(5, 0, size, size)
    tenths = Counter((place * 10 // size, index * 10 // size) for place, index in enumerate(order))
    assert len(tenths) == 100
    assert all(50 < count < 150 for count in tenths.values())
    climbs = sum(one < two for one, two in pairwise(order))
    assert abs(climbs - size / 2) < 5 * (size / 12) ** 0.5
    fixed = sum(place == index for place, index in enumerate(order))
    assert fixed < 10


def test_a_million_samples_cost_no_more_than_ten() -> None:
    assert len(set(batch_indices(5, 12_345, 10**12, 64))) == 64


def test_micro_batches_share_a_step_without_overlap() -> None:
    indices = batch_indices(5, 0, 100, 16)
    shares = [share_of(indices, number, 4) for number in range(4)]
    assert [index for share in shares for index in share] == indices
    assert {len(share) for share in shares} == {4}
