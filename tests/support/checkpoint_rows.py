"""What the schema of slices' checkpoints refuses: each statement breaks one rule and no other."""

from __future__ import annotations

from uuid import UUID

# As tests/integration/test_schema.py has it.
JOB, ATTEMPT = UUID(int=2), UUID(int=6)


def insert(**overrides: object) -> str:
    values = {
        "job_id": f"'{JOB}'",
        "slice_index": 0,
        "attempt_id": f"'{ATTEMPT}'",
        "attempt_number": 1,
        "number": 1,
        "sha256": "decode(repeat('00', 32), 'hex')",
        "files": '\'[{"path": "a"}]\'',
        "size_bytes": 0,
        "progress": "NULL",
        **overrides,
    }
    return f"INSERT INTO job_checkpoints ({', '.join(values)}) VALUES ({', '.join(map(str, values.values()))})"


POSSIBLE = [
    insert(),
    insert(progress=0),
    insert(progress=1),
    "UPDATE attempts SET saved_at = now()",
    "UPDATE attempts SET saved_at = now(), saved_seconds = 7",
]

IMPOSSIBLE = [
    ("attempts_saved_check", "UPDATE attempts SET saved_seconds = -1, saved_at = now()"),
    ("attempts_saved_check", "UPDATE attempts SET saved_seconds = 1"),
    ("job_checkpoints_number_check", insert(number=0)),
    ("job_checkpoints_number_check", insert(attempt_number=0)),
    ("job_checkpoints_hash_check", insert(sha256="'\\x00'")),
    ("job_checkpoints_files_check", insert(files="'[]'")),
    ("job_checkpoints_size_check", insert(size_bytes=-1)),
    ("job_checkpoints_progress_check", insert(progress=-0.1)),
    ("job_checkpoints_progress_check", insert(progress=1.1)),
    ("job_checkpoints_progress_check", insert(progress="'NaN'")),
]
