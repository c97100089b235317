"""Weights as data: what a file may say, and which jobs get which set."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from computepool.core.ids import JobId
from computepool.core.placement.weights import Preference, Split, Weights, parse_weights
from computepool.hub.services.weights import load_weights
from computepool.settings import InvalidSettings

GOOD = """
[split]
first = "default"
second = "classic"
second_share = 0.25
[sets.default]
price = 1
speed = 2.5
[sets.classic]
vram_fit = 10.0
"""


def jobs(count: int) -> list[JobId]:
    return [JobId(UUID(int=number)) for number in range(count)]


def test_a_file_gives_its_sets_and_its_split():
    book = parse_weights(GOOD)
    assert book.sets == {"default": Weights(price=1.0, speed=2.5), "classic": Weights(vram_fit=10.0)}
    assert book.split == Split("default", "classic", 0.25)


def test_the_shipped_file_has_the_default_and_the_classic_set():
    book = load_weights()
    assert book.sets["default"] == Weights(price=1.0, speed=1.0, reliability=1.0)
    assert book.sets["classic"] == Weights(vram_fit=10.0, cores_fit=5.0)
    assert {book.split.choose(job) for job in jobs(50)} == {"default"}


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("price = 1", "price = -1", r"sets.default.price is -1; it must be a number from 0 to 10"),
        ("price = 1", "price = 11", "sets.default.price is 11"),
        ("price = 1", "price = true", "sets.default.price is True"),
        ("price = 1", "price = nan", "sets.default.price is nan"),
        ("price = 1", 'price = "1"', "sets.default.price is '1'"),
        ("price = 1", "prize = 1", "sets.default.prize is unknown; there are price, speed"),
        ('second = "classic"', 'second = "clasic"', "split.second is 'clasic'; the sets are default, classic"),
        ("second_share = 0.25", "second_share = 1.5", "split.second_share is 1.5"),
        ("second_share = 0.25", "", "split.second_share is None"),
        ("second_share = 0.25", "second_share = 0\nthird = 1", "split.third is unknown"),
        ("[split]", "[spilt]", "'spilt' is unknown.*there is no .split"),
        ("[sets.default]", "[sets]\nother = 1\n[sets.default]", "sets.other is not a table"),
        ("[split]", "[split", "not TOML"),
    ],
)
def test_what_is_wrong_is_refused_with_the_place(old, new, fault):
    with pytest.raises(ValueError, match=f"(?s){fault}"):
        parse_weights(GOOD.replace(old, new))


def test_a_file_without_sets_is_refused():
    with pytest.raises(ValueError, match="no set of weights"):
        parse_weights("[split]\nfirst = 'a'\nsecond = 'b'\nsecond_share = 0")


def test_all_faults_are_told_at_once():
    with pytest.raises(ValueError, match=r"price is -1.*second_share is 2"):
        parse_weights(GOOD.replace("price = 1", "price = -1").replace("0.25", "2"))


def test_an_operators_file_is_read_and_its_faults_name_it(tmp_path: Path):
    path = tmp_path / "weights.toml"
    with pytest.raises(InvalidSettings, match=r"weights\.toml"):
        load_weights(path)
    path.write_text(GOOD)
    assert load_weights(path) == parse_weights(GOOD)
    path.write_text("[sets")
    with pytest.raises(InvalidSettings, match=r"weights\.toml: the weights are not TOML"):
        load_weights(path)


def test_cheapest_ignores_speed_and_fastest_ignores_the_price():
    weights = Weights(1.0, 2.0, 3.0, 4.0, 5.0)
    assert weights.under(Preference.VALUE) == weights
    assert weights.under(Preference.CHEAPEST) == Weights(1.0, 0.0, 3.0, 4.0, 5.0)
    assert weights.under(Preference.FASTEST) == Weights(0.0, 2.0, 3.0, 4.0, 5.0)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_jobs_are_split_by_the_share(share):
    split = Split("default", "classic", share)
    chosen = [split.choose(job) for job in jobs(4_000)]
    assert chosen.count("classic") / 4_000 == pytest.approx(share, abs=0.03)


def test_a_job_keeps_its_set_and_another_comparison_draws_anew():
    split, other = Split("a", "b", 0.5), Split("a", "c", 0.5)
    first = [split.choose(job) == "b" for job in jobs(200)]
    assert first == [split.choose(job) == "b" for job in jobs(200)]
    assert first != [other.choose(job) == "c" for job in jobs(200)]


def test_a_larger_share_moves_jobs_one_way_only():
    small, large = Split("a", "b", 0.2), Split("a", "b", 0.4)
    assert all(large.choose(job) == "b" for job in jobs(500) if small.choose(job) == "b")
