"""Checkpoints follow each other by hash, and none can be changed unnoticed."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from computepool.core.ledger.accounts import AccountKind
from computepool.core.ledger.checkpoint import Checkpoint, find_checkpoint_fault, find_newest_fault, follow
from computepool.core.ledger.closing import TrialLine, make_trial

K = AccountKind
AT = datetime(2026, 3, 10, 12, tzinfo=UTC)
BATCH, SUMS = b"b" * 32, b"s" * 32


def make(previous: Checkpoint | None = None, **overrides: Any) -> Checkpoint:
    given = {"batch_number": 7, "last_id": 70, "last_at": AT, "kind_sums": {K.FEE: 5, K.WORLD: -5}, **overrides}
    return follow(previous, Checkpoint(number=0, batch_sha256=BATCH, sums_sha256=SUMS, **given))


def find(previous: Checkpoint | None, newest: Checkpoint, **now: bytes) -> str | None:
    return find_newest_fault(previous, newest, **{"batch_sha256": BATCH, "sums_sha256": SUMS, **now})


def test_a_checkpoint_that_nobody_touched_holds():
    first = make()
    second = make(first, last_id=80)
    assert (first.number, second.number, second.previous_sha256) == (1, 2, first.sha256)
    assert find(None, first) is None
    assert find(first, second) is None
    assert find_checkpoint_fault(first, batch_sha256=BATCH) is None


CHANGES = {
    "number": 9,
    "batch_number": 8,
    "batch_sha256": bytes(32),
    "last_id": 71,
    "last_at": AT + timedelta(microseconds=1),
    "kind_sums": {K.FEE: 6, K.WORLD: -6},
    "sums_sha256": bytes(32),
    "previous_sha256": b"p" * 32,
    "sha256": bytes(32),
}


def test_every_field_is_tried_below():
    assert set(CHANGES) == {field.name for field in fields(Checkpoint)}


@pytest.mark.parametrize("name", CHANGES)
def test_a_field_that_was_changed_is_noticed(name):
    assert find_checkpoint_fault(replace(make(), **{name: CHANGES[name]}), batch_sha256=BATCH) is not None


def test_what_it_stands_on_is_looked_at_too():
    first = make()
    assert "another hash" in str(find(None, first, batch_sha256=bytes(32)))
    assert "sums" in str(find(None, first, sums_sha256=bytes(32)))
    assert "does not follow" in str(find(make(last_id=71), make(first)))
    assert find_checkpoint_fault(first, batch_sha256=None) is not None


def test_a_trial_that_was_counted_from_a_checkpoint_has_its_sums_in_front():
    lines = [TrialLine(K.FEE, 1, 10, 2)]
    trial = {line.kind: line for line in make_trial(lines, {K.FEE: 5, K.WORLD: -5})}
    assert (trial[K.FEE].opening, trial[K.FEE].closing) == (6, 14)
    assert (trial[K.WORLD].opening, trial[K.WORLD].closing) == (-5, -5)
    assert len(trial) == len(AccountKind)
