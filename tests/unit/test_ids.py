"""Ids: ordered by time, never twice, and one value whatever kind of UUID it is held in."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import msgspec
import pytest

from computepool import entropy
from computepool.hub.store import ids

MAKERS = [entropy.new_id, ids.new_id]


@pytest.mark.parametrize("make", MAKERS)
def test_an_id_is_a_uuid_of_version_7_and_none_comes_twice(make: Callable[[], uuid.UUID]) -> None:
    made = [make() for _ in range(1_000)]
    assert {(each.version, each.variant) for each in made} == {(7, uuid.RFC_4122)}
    assert len(set(made)) == len(made)


@pytest.mark.parametrize("make", MAKERS)
def test_a_later_id_is_greater(make: Callable[[], uuid.UUID], monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_800_000_000.0
    monkeypatch.setattr(entropy.clock, "unix_seconds", lambda: now)
    early = [make() for _ in range(100)]
    now += 0.001
    assert max(early) < min(make() for _ in range(100))


def test_all_bits_that_should_be_random_are() -> None:
    made = [entropy.new_id().int & ((1 << 76) - 1) for _ in range(200)]
    always, ever = made[0], made[0]
    for each in made:
        always, ever = always & each, ever | each
    assert always == 0b10 << 62
    assert ever == ((1 << 76) - 1) & ~(1 << 62)


def test_the_drivers_kind_is_the_same_value_to_all_who_compare_hash_or_write_it() -> None:
    plain = entropy.new_id()
    held = ids.to_driver_id(plain)
    assert held == plain
    assert plain == held
    assert hash(held) == hash(plain)
    assert {plain: 1}[held] == 1
    assert {held: 1}[plain] == 1
    assert str(held) == str(plain)
    assert held.bytes == plain.bytes
    assert msgspec.json.encode(held) == msgspec.json.encode(plain)
