"""What the schema of challenges, proofs and sittings refuses: each statement breaks one rule and no other."""

from __future__ import annotations

from uuid import UUID

from computepool.core.trust.challenge import ProofState
from computepool.core.trust.products import PRODUCTS_MAX, SIZE_MAX, SIZE_MIN

ENUMS = {"proof_state": ProofState}

# As tests/integration/test_schema.py has it.
NODE = UUID(int=4)
BYTES = "'\\x" + "01" * 32 + "'"
COMMITTED = {"committed_at": "now()", "root": BYTES, "segments": "'{0}'", "words": "'{}'"}


def insert_challenge(**overrides: object) -> str:
    values: dict[str, object] = {
        "id": "gen_random_uuid()",
        "node_id": f"'{NODE}'",
        "slot": "'cpu:0'",
        "claim": "'cpu|1'",
        "seed": BYTES,
        "size": SIZE_MIN,
        "products": 1,
        "issued_at": "now()",
        "expires_at": "now() + interval '1 minute'",
        **overrides,
    }
    return f"INSERT INTO challenges ({', '.join(values)}) VALUES ({', '.join(map(str, values.values()))})"


def insert_proof(**overrides: object) -> str:
    values: dict[str, object] = {
        "node_id": f"'{NODE}'",
        "slot": "'gpu:0'",
        "claim": "'NVIDIA GeForce RTX 4090|25757220864'",
        "claimed_tier": "'rtx-4090'",
        "state": "'slower'",
        "tier": "'unknown-8'",
        "shown_tflops": 9.5,
        "reason": "'slow'",
        **overrides,
    }
    return f"INSERT INTO proofs ({', '.join(values)}) VALUES ({', '.join(map(str, values.values()))})"


def insert_sitting(**overrides: object) -> str:
    values: dict[str, object] = {"node_id": f"'{NODE}'", "slot": "'gpu:0'", "due_at": "now()", **overrides}
    return f"INSERT INTO sittings ({', '.join(values)}) VALUES ({', '.join(map(str, values.values()))})"


# Nothing is wrong with these: what is refused below is refused for what was changed.
POSSIBLE = [
    insert_challenge(size=SIZE_MAX, products=PRODUCTS_MAX),
    insert_challenge(**COMMITTED),
    insert_challenge(**COMMITTED, opened_at="now()", is_right="true"),
    *(
        insert_proof(state=f"'{state.value}'")
        for state in ProofState
        if state.value in ("proven", "slower", "unsure")
    ),
    insert_proof(state="'forged'", shown_tflops="NULL"),
    # It did not answer when it was asked again.
    insert_proof(state="'unproven'", shown_tflops="NULL"),
    insert_sitting(),
    insert_sitting(asked_at="now()"),
    insert_sitting(asked_at="now()", told_at="now()", missed_count=2, unsure_count=1),
]

# The rows of tests/integration/test_schema.py's table, for challenges.
IMPOSSIBLE = [
    ("challenges_work_check", insert_challenge(seed="'\\x01'")),
    ("challenges_work_check", insert_challenge(size=SIZE_MIN - 1)),
    ("challenges_work_check", insert_challenge(size=SIZE_MAX + 1)),
    ("challenges_work_check", insert_challenge(products=0)),
    ("challenges_work_check", insert_challenge(memory_bytes=-1)),
    ("challenges_work_check", insert_challenge(products=PRODUCTS_MAX + 1)),
    ("challenges_expiry_check", insert_challenge(expires_at="now()")),
    ("challenges_commitment_check", insert_challenge(committed_at="now()")),
    ("challenges_commitment_check", insert_challenge(**{**COMMITTED, "segments": "NULL"})),
    ("challenges_commitment_check", insert_challenge(**{**COMMITTED, "words": "NULL"})),
    ("challenges_commitment_check", insert_challenge(**{**COMMITTED, "root": "'\\x01'"})),
    ("challenges_commitment_check", insert_challenge(**{**COMMITTED, "committed_at": "now() + interval '1 hour'"})),
    ("challenges_opening_check", insert_challenge(opened_at="now()", is_right="true")),
    ("challenges_opening_check", insert_challenge(**COMMITTED, opened_at="now()")),
    ("proofs_shown_check", insert_proof(state="'unproven'")),
    ("proofs_shown_check", insert_proof(shown_tflops="NULL")),
    ("proofs_shown_check", insert_proof(state="'forged'")),
    ("proofs_shown_check", insert_proof(shown_tflops=0)),
    ("proofs_spread_check", insert_proof(spread_ratio=1.1)),
    ("proofs_spread_check", insert_proof(spread_ratio=-0.1)),
    ("sittings_told_check", insert_sitting(told_at="now()")),
    ("sittings_counts_check", insert_sitting(missed_count=-1)),
    ("sittings_counts_check", insert_sitting(unsure_count=-1)),
]
