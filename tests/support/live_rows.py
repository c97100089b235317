"""What the schema of live views refuses: each statement breaks one rule and no other."""

from __future__ import annotations

from uuid import UUID

# As tests/integration/test_schema.py has it.
ACCOUNT, NODE = UUID(int=1), UUID(int=4)


def insert_profile(pseudonym: str) -> str:
    return f"INSERT INTO profiles (account_id, pseudonym) VALUES ('{ACCOUNT}', '{pseudonym}')"


def insert_day(**overrides: int) -> str:
    values = {"earned_microcredits": 0, "seconds": 0, "verified_count": 0, **overrides}
    return (
        f"INSERT INTO owner_days (day, account_id, {', '.join(values)}) "
        f"VALUES ('2026-01-01', '{ACCOUNT}', {', '.join(map(str, values.values()))})"
    )


def insert_sample(**overrides: int) -> str:
    values = {"nodes_online": 0, "slot_count": 0, "busy_count": 0, "slices_queued": 0, **overrides}
    return (
        f"INSERT INTO grid_samples (at, {', '.join(values)}) VALUES (now(), {', '.join(map(str, values.values()))})"
    )


POSSIBLE = [
    insert_profile("abc"),
    insert_profile("a" * 30),
    f"INSERT INTO profiles (account_id) VALUES ('{ACCOUNT}')",
    insert_day(),
    insert_sample(),
    f"INSERT INTO unplugged_nodes (node_id, until) VALUES ('{NODE}', now())",
]

IMPOSSIBLE = [
    ("hub_facts_pseudonym_check", "UPDATE hub_facts SET pseudonym_key = '\\x01'"),
    ("profiles_pseudonym_check", insert_profile("ab")),
    ("profiles_pseudonym_check", insert_profile("a" * 31)),
    ("owner_days_sums_check", insert_day(earned_microcredits=-1)),
    ("owner_days_sums_check", insert_day(seconds=-1)),
    ("owner_days_sums_check", insert_day(verified_count=-1)),
    ("grid_samples_counts_check", insert_sample(nodes_online=-1)),
    ("grid_samples_counts_check", insert_sample(slot_count=-1)),
    ("grid_samples_counts_check", insert_sample(busy_count=-1)),
    ("grid_samples_counts_check", insert_sample(slices_queued=-1)),
]
