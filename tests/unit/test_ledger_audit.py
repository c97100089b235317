"""The chain over the books: every way to forge a row or a batch is found and named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from computepool.core.ledger.audit import (
    ENTRY_BYTES,
    GENESIS_SHA256,
    AuditRow,
    Batch,
    BatchFault,
    BatchFaultKind,
    digest_row,
    find_batch_fault,
    find_known_fault,
    seal,
)

K = BatchFaultKind


def make_row(id: int, **overrides: Any) -> AuditRow:
    fields: dict[str, Any] = {
        "id": id,
        "key": f"job/settle/{id}",
        "leg": 0,
        "kind": "settle",
        "source_id": "submitter_held/1",
        "target_id": "owner_pending/2",
        "amount": 1_000 + id,
        "at_microseconds": 1_700_000_000_000_000 + id,
        "job_id": "job",
        "attempt_id": None,
        "payout_id": None,
        "top_up_id": None,
    }
    return AuditRow(**{**fields, **overrides})


# Ids have gaps, as rolled back transactions leave them.
FIRST_ROWS = [make_row(id) for id in (1, 2, 4, 7)]
SECOND_ROWS = [make_row(id) for id in (9, 10, 12)]
FIRST = seal(None, last_id=8, rows=FIRST_ROWS)
SECOND = seal(FIRST, last_id=15, rows=SECOND_ROWS)


def find_fault(first_rows: Sequence[AuditRow], second_rows: Sequence[AuditRow], *batches: Batch) -> BatchFault | None:
    """The first fault of a chain of up to two batches."""
    previous = None
    for batch, rows in zip(batches or (FIRST, SECOND), (first_rows, second_rows), strict=False):
        fault = find_batch_fault(previous, batch, rows)
        if fault is not None:
            return fault
        previous = batch
    return None


def test_batches_follow_each_other_and_cover_all_ids_between():
    assert (FIRST.number, FIRST.first_id, FIRST.last_id, FIRST.row_count) == (1, 1, 8, 4)
    assert (SECOND.number, SECOND.first_id, SECOND.last_id) == (2, 9, 15)
    assert FIRST.previous_sha256 == GENESIS_SHA256
    assert SECOND.previous_sha256 == FIRST.sha256
    assert len(SECOND.fingerprints) == 3 * ENTRY_BYTES
    assert find_fault(FIRST_ROWS, SECOND_ROWS) is None


def test_the_hash_of_the_first_batch_is_the_same_for_ever():
    """If this fails, every hash that anybody has kept is worth nothing. Change the label, and say so, or do not."""
    assert FIRST.sha256.hex() == "cb8b2ce91356eaf14c0c1d8ab87a66028aeb7a2016f238399b7c9b048b928618"


FIELDS = {
    "key": "another",
    "leg": 1,
    "kind": "refund",
    "source_id": "world/0",
    "target_id": "world/1",
    "amount": 1,
    "at_microseconds": 5,
    "job_id": None,
    "attempt_id": "a",
    "payout_id": "p",
    "top_up_id": "t",
}


@pytest.mark.parametrize(("field", "value"), FIELDS.items())
def test_a_row_that_was_changed_in_any_field_is_named(field, value):
    rows = [*SECOND_ROWS]
    rows[1] = replace(rows[1], **{field: value})
    fault = find_fault(FIRST_ROWS, rows)
    assert fault is not None
    assert (fault.kind, fault.batch_number, fault.transfer_id) == (K.TRANSFER_CHANGED, 2, 10)
    assert fault.words == "Transfer 10 of batch 2 was changed after it was sealed."


def test_every_field_of_a_row_is_tried_above():
    assert {*FIELDS, "id"} == set(AuditRow.__dataclass_fields__)


@pytest.mark.parametrize("index", range(4))
def test_a_row_that_is_gone_is_named(index):
    rows = [row for number, row in enumerate(FIRST_ROWS) if number != index]
    fault = find_fault(rows, SECOND_ROWS)
    assert fault is not None
    assert (fault.kind, fault.batch_number, fault.transfer_id) == (K.TRANSFER_MISSING, 1, FIRST_ROWS[index].id)


@pytest.mark.parametrize("id", [3, 5, 8, 4])
def test_a_row_that_was_added_is_named_also_under_an_id_that_is_used(id):
    rows = sorted([*FIRST_ROWS, make_row(id, key="forged")], key=lambda row: (row.id, row.key))
    fault = find_fault(rows, SECOND_ROWS)
    assert fault is not None
    assert (fault.kind, fault.transfer_id) == (K.TRANSFER_ADDED, id)


def test_a_row_that_was_moved_to_another_id_is_missing_where_it_was():
    rows = [*FIRST_ROWS[:3], replace(FIRST_ROWS[3], id=8)]
    fault = find_fault(rows, SECOND_ROWS)
    assert fault is not None
    assert (fault.kind, fault.transfer_id) == (K.TRANSFER_MISSING, 7)


@pytest.mark.parametrize(
    ("forge", "kind"),
    [
        (lambda batch: replace(batch, sha256=bytes(32)), K.BATCH_CHANGED),
        (lambda batch: replace(batch, row_count=3), K.BATCH_CHANGED),
        (lambda batch: replace(batch, amount_sum=0), K.BATCH_CHANGED),
        (lambda batch: replace(batch, first_at_microseconds=0), K.BATCH_CHANGED),
        (lambda batch: replace(batch, last_at_microseconds=0), K.BATCH_CHANGED),
        (lambda batch: replace(batch, last_id=7), K.BATCH_CHANGED),
        (lambda batch: replace(batch, fingerprints=bytes(len(batch.fingerprints))), K.BATCH_CHANGED),
        (lambda batch: replace(batch, previous_sha256=b"x" * 32), K.CHAIN_BROKEN),
        (lambda batch: replace(batch, first_id=0), K.CHAIN_BROKEN),
        (lambda batch: replace(batch, number=3), K.BATCH_MISSING),
    ],
)
def test_a_batch_that_was_changed_is_named(forge: Callable[[Batch], Batch], kind):
    fault = find_fault(FIRST_ROWS, SECOND_ROWS, forge(FIRST), SECOND)
    assert fault is not None
    assert (fault.kind, fault.batch_number) == (kind, 1)


def test_every_field_of_a_batch_is_tried_above():
    tried = {"sha256", "row_count", "amount_sum", "first_at_microseconds", "last_at_microseconds", "last_id"}
    tried |= {"fingerprints", "previous_sha256", "first_id", "number"}
    assert tried == set(Batch.__dataclass_fields__)


def test_a_batch_that_was_made_anew_breaks_the_chain_at_the_next():
    """A forger who can hash, too: the rows of the first batch are others, and so is its hash."""
    forged_rows = [replace(FIRST_ROWS[0], amount=1), *FIRST_ROWS[1:]]
    fault = find_fault(forged_rows, SECOND_ROWS, seal(None, last_id=8, rows=forged_rows), SECOND)
    assert fault is not None
    assert (fault.kind, fault.batch_number) == (K.CHAIN_BROKEN, 2)


def test_a_whole_chain_that_was_made_anew_is_found_by_a_hash_that_was_kept():
    forged_rows = [replace(FIRST_ROWS[0], amount=1), *FIRST_ROWS[1:]]
    forged = seal(None, last_id=8, rows=forged_rows)
    forged_second = seal(forged, last_id=15, rows=SECOND_ROWS)
    assert find_fault(forged_rows, SECOND_ROWS, forged, forged_second) is None
    assert find_known_fault(SECOND, SECOND.sha256) is None
    fault = find_known_fault(forged_second, SECOND.sha256)
    assert fault is not None
    assert (fault.kind, fault.batch_number) == (K.HASH_UNKNOWN, 2)


@pytest.mark.parametrize(("last_id", "rows"), [(8, []), (5, FIRST_ROWS), (8, [make_row(0)]), (20, [make_row(21)])])
def test_a_batch_holds_rows_and_only_those_of_its_range(last_id, rows):
    with pytest.raises(ValueError):
        seal(None, last_id=last_id, rows=rows)


texts = st.text(max_size=12)
rows = st.builds(
    make_row,
    st.integers(1, 8),
    key=texts,
    kind=texts,
    source_id=texts,
    target_id=texts,
    amount=st.integers(1, 10**15),
    job_id=st.none() | texts,
    attempt_id=st.none() | texts,
)


@given(rows, rows)
def test_two_rows_have_the_same_hash_only_if_they_say_the_same(one, other):
    """Whatever stands in a text, commas and quotes too: no two rows run into each other."""
    assert (digest_row(one) == digest_row(other)) == (one == other)
