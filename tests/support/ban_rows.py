"""What the schema of blocked inputs and of newcomers refuses: each statement breaks one rule and no other."""

from __future__ import annotations

from uuid import UUID

# As tests/integration/test_schema.py has it.
ACCOUNT = UUID(int=1)
SHA256 = "'\\x" + "01" * 32 + "'"


def insert_blocked(sha256: str = SHA256) -> str:
    return f"INSERT INTO blocked_inputs (sha256, why, blocked_by) VALUES ({sha256}, 'a miner', '{ACCOUNT}')"


POSSIBLE = [
    insert_blocked(),
    "UPDATE accounts SET new_nodes_max = 0",
    "UPDATE nodes SET network = '93.184.216.0/24'",
]

# The rows of tests/integration/test_schema.py's table.
IMPOSSIBLE = [
    ("blocked_inputs_sha256_check", insert_blocked("'\\x01'")),
    ("accounts_new_nodes_check", "UPDATE accounts SET new_nodes_max = -1"),
]
