"""What the schema of slices' checkpoints refuses: each statement breaks one rule and no other."""

from __future__ import annotations

from uuid import UUID

from computepool.core.jobs.checkpoint_proofs import Verdict

ENUMS = {"checkpoint_verdict": Verdict}

# As tests/integration/test_schema.py has it.
JOB, ATTEMPT = UUID(int=2), UUID(int=6)


def insert(table: str = "job_checkpoints", **overrides: object) -> str:
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
    return f"INSERT INTO {table} ({', '.join(values)}) VALUES ({', '.join(map(str, values.values()))})"


def judge(**overrides: object) -> str:
    """Of an attempt, left out and judged."""
    values = {"left_out_after": 2, "verdict": "'forged'", "judged_at": "now()", **overrides}
    return insert("attempt_checkpoints", **values)


POSSIBLE = [
    insert(),
    insert(progress=0),
    insert(progress=1),
    insert("attempt_checkpoints"),
    insert("attempt_checkpoints", left_out_after=2),
    judge(),
    "UPDATE attempts SET saved_at = now()",
    "UPDATE attempts SET saved_at = now(), saved_seconds = 7",
]

# Of what was saved, whoever it is kept for.
BROKEN: list[tuple[str, dict[str, object]]] = [
    ("number", {"number": 0}),
    ("number", {"attempt_number": 0}),
    ("hash", {"sha256": "'\\x00'"}),
    ("files", {"files": "'[]'"}),
    ("size", {"size_bytes": -1}),
    ("progress", {"progress": -0.1}),
    ("progress", {"progress": 1.1}),
    ("progress", {"progress": "'NaN'"}),
]

IMPOSSIBLE = [
    ("attempts_saved_check", "UPDATE attempts SET saved_seconds = -1, saved_at = now()"),
    ("attempts_saved_check", "UPDATE attempts SET saved_seconds = 1"),
    *(
        (f"{table}_{rule}_check", insert(table, **values))
        for table in ("job_checkpoints", "attempt_checkpoints")
        for rule, values in BROKEN
    ),
    ("attempt_checkpoints_left_out_check", judge(left_out_after=1)),
    ("attempt_checkpoints_verdict_check", judge(left_out_after="NULL")),
    ("attempt_checkpoints_verdict_check", judge(verdict="NULL")),
    ("attempt_checkpoints_verdict_check", judge(judged_at="NULL")),
]
