"""What the schema of checks and of trust refuses: each statement breaks one rule and no other."""

from __future__ import annotations

from uuid import UUID

from computepool.core.trust.comparators.command import COMPARISONS_MAX
from computepool.core.trust.inspection import CheckOutcome, CheckState
from computepool.core.trust.standing import Standing, TrustEffect
from computepool.core.trust.validation import Verify

ENUMS = {
    "verify_mode": Verify,
    "standing": Standing,
    "check_state": CheckState,
    "check_outcome": CheckOutcome,
    "trust_effect": TrustEffect,
}

# As tests/integration/test_schema.py has it.
JOB, NODE = UUID(int=2), UUID(int=4)


def insert(table: str, **values: object) -> str:
    return f"INSERT INTO {table} ({', '.join(values)}) VALUES ({', '.join(map(str, values.values()))})"


def insert_trust(**overrides: object) -> str:
    return insert("node_trust", **{"node_id": f"'{NODE}'", **overrides})


def insert_check(**overrides: object) -> str:
    values = {
        "attempt_id": "gen_random_uuid()",
        "job_id": f"'{JOB}'",
        "slice_index": 0,
        "node_id": f"'{NODE}'",
        "mode": "'audit'",
        "withheld": "true",
    }
    return insert("checks", **{**values, **overrides})


def insert_trial(**overrides: object) -> str:
    values = {"job_id": f"'{JOB}'", "node_id": f"'{NODE}'", "attempt_id": "gen_random_uuid()"}
    return insert("trials", **{**values, **overrides})


def insert_comparison(**overrides: object) -> str:
    values = {
        "job_id": "gen_random_uuid()",
        "attempt_id": "gen_random_uuid()",
        "number": 1,
        "one_id": "gen_random_uuid()",
        "other_id": "gen_random_uuid()",
    }
    return insert("comparisons", **{**values, **overrides})


# Nothing is wrong with these: what is refused below is refused for what was changed.
POSSIBLE = [
    insert_trust(),
    insert_check(),
    insert_check(state="'ruled'", outcome="'agreed'"),
    insert_check(state="'closed'", outcome="'no_auditor'", closed_at="now()"),
    insert_trial(),
    insert_trial(closed_at="now()", was_right="true"),
    insert_comparison(),
    insert_comparison(number=COMPARISONS_MAX),
    insert_trial(watched_job_id=f"'{JOB}'"),
    insert("trust_effects", node_id=f"'{NODE}'", effect="'forfeit_pay'"),
    insert("watches", attempt_id="gen_random_uuid()", job_id=f"'{JOB}'", node_id=f"'{NODE}'"),
    f"UPDATE jobs SET verify = 'quorum' WHERE id = '{JOB}'",
]

IMPOSSIBLE = [
    ("jobs_verify_check", f"UPDATE jobs SET verify = 'none' WHERE id = '{JOB}'"),
    ("node_trust_weights_check", insert_trust(right_weight=-1)),
    ("node_trust_weights_check", insert_trust(wrong_weight=-1)),
    ("node_trust_counts_check", insert_trust(validated_count=-1)),
    ("node_trust_counts_check", insert_trust(bugged_count=-1)),
    ("node_trust_counts_check", insert_trust(returning_left=-1)),
    ("checks_outcome_check", insert_check(outcome="'agreed'")),
    ("checks_outcome_check", insert_check(state="'ruled'")),
    ("checks_closed_check", insert_check(state="'closed'", outcome="'agreed'")),
    ("checks_closed_check", insert_check(closed_at="now()")),
    ("trials_closed_check", insert_trial(was_right="true")),
    ("comparisons_number_check", insert_comparison(number=0)),
    ("comparisons_number_check", insert_comparison(number=COMPARISONS_MAX + 1)),
]
