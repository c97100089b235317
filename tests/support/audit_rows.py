"""What the schema of the audit chain and of closed days refuses: each statement breaks one rule and no other."""

from __future__ import annotations

from uuid import UUID

_HASH = "'\\x" + "00" * 32 + "'"
_ACCOUNT = UUID(int=1)


def insert_batch(
    *,
    number: int = 1,
    first_id: int = 1,
    last_id: int = 5,
    row_count: int = 1,
    last_at: str = "2026-03-10",
    sha256: str = _HASH,
    fingerprints: str = "'\\x" + "00" * 16 + "'",
) -> str:
    return (
        "INSERT INTO audit_batches (number, first_id, last_id, row_count, amount_sum, first_at, last_at, "
        f"previous_sha256, sha256, fingerprints) VALUES ({number}, {first_id}, {last_id}, {row_count}, 1, "
        f"'2026-03-10', '{last_at}', {_HASH}, {sha256}, {fingerprints})"
    )


def insert_closing(sha256: str = _HASH) -> str:
    return f"INSERT INTO book_closings (day, closed_by, sha256) VALUES ('2026-03-10', '{_ACCOUNT}', {sha256})"


def insert_checkpoint(*, number: int = 1, sha256: str = _HASH) -> str:
    """With the batch that it ends at."""
    return (
        f"{insert_batch()}; INSERT INTO book_checkpoints (number, batch_number, batch_sha256, last_id, last_at, "
        f"kind_sums, sums_sha256, previous_sha256, sha256) VALUES ({number}, 1, {_HASH}, 5, now(), '{{}}', {_HASH}, "
        f"{_HASH}, {sha256})"
    )


# The rows of tests/integration/test_schema.py's table, for the chain and the closes.
POSSIBLE = [
    insert_batch(),
    insert_batch(first_id=5, row_count=2, fingerprints="'\\x" + "00" * 32 + "'", last_at="2026-03-11"),
    insert_closing(),
    insert_checkpoint(),
]
IMPOSSIBLE = [
    ("audit_batches_number_check", insert_batch(number=0)),
    ("audit_batches_range_check", insert_batch(first_id=0)),
    ("audit_batches_range_check", insert_batch(first_id=6)),
    ("audit_batches_range_check", insert_batch(last_at="2026-03-09")),
    ("audit_batches_rows_check", insert_batch(row_count=0, fingerprints="''")),
    ("audit_batches_rows_check", insert_batch(row_count=2)),
    ("audit_batches_hash_check", insert_batch(sha256="'\\x00'")),
    ("book_closings_hash_check", insert_closing(sha256="'\\x00'")),
    ("book_checkpoints_number_check", insert_checkpoint(number=0)),
    ("book_checkpoints_hash_check", insert_checkpoint(sha256="'\\x00'")),
]
