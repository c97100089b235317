"""What the schema of offers refuses: each statement breaks one rule and no other."""

from __future__ import annotations

from uuid import UUID

from computepool.core.jobs.wants import ALLOWS_MAX
from computepool.core.market.offers import NAMED_ACCOUNTS_MAX, SECONDS_MIN_STEPS, Audience

ENUMS = {"offer_audience": Audience}

# As tests/integration/test_schema.py has it.
NODE = UUID(int=4)
SOME_HOURS = "'\\x" + "01" + "00" * 20 + "'"
NO_HOURS = "'\\x" + "00" * 21 + "'"


def insert_offer(**overrides: object) -> str:
    values: dict[str, object] = {"node_id": f"'{NODE}'", **overrides}
    return f"INSERT INTO offers ({', '.join(values)}) VALUES ({', '.join(map(str, values.values()))})"


def name_accounts(count: int) -> str:
    return "'{" + ",".join(str(UUID(int=number)) for number in range(1, count + 1)) + "}'"


# Nothing is wrong with these: what is refused below is refused for what was changed.
POSSIBLE = [
    insert_offer(),
    insert_offer(hours=SOME_HOURS, zone="'Europe/Berlin'", kinds="'{ml,compute}'"),
    insert_offer(audience="'own'"),
    insert_offer(audience="'named'", named=name_accounts(NAMED_ACCOUNTS_MAX)),
    *(insert_offer(seconds_min=step) for step in SECONDS_MIN_STEPS),
    "UPDATE shapes SET slice_seconds = 60, job_kind = 'ml'",
    "UPDATE shapes SET wants = '{packages}'",
    "UPDATE nodes SET allows = '{image docker.io/library/*,packages}'",
]

# The rows of tests/integration/test_schema.py's table, for offers.
IMPOSSIBLE = [
    ("offers_hours_check", insert_offer(hours="'\\x01'", zone="'UTC'")),
    ("offers_hours_check", insert_offer(hours=NO_HOURS, zone="'UTC'")),
    ("offers_zone_check", insert_offer(hours=SOME_HOURS)),
    ("offers_zone_check", insert_offer(zone="'UTC'")),
    ("offers_seconds_check", insert_offer(seconds_min=7)),
    ("offers_seconds_check", insert_offer(seconds_min=-10)),
    ("offers_kinds_check", insert_offer(kinds="'{" + ",".join("abcdefghijklmnopqrstuvwxyzABCDEFG") + "}'")),
    ("offers_kinds_check", insert_offer(kinds="'{NULL}'")),
    ("offers_named_check", insert_offer(audience="'named'")),
    ("offers_named_check", insert_offer(audience="'own'", named=name_accounts(1))),
    ("offers_named_check", insert_offer(named=name_accounts(1))),
    ("offers_named_check", insert_offer(audience="'named'", named=name_accounts(NAMED_ACCOUNTS_MAX + 1))),
    ("offers_named_check", insert_offer(audience="'named'", named="'{NULL}'")),
    ("shapes_slice_seconds_check", "UPDATE shapes SET slice_seconds = -1"),
    ("shapes_wants_check", "UPDATE shapes SET wants = '{NULL}'"),
    ("shapes_wants_check", "UPDATE shapes SET wants = array_fill('packages'::text, '{35}')"),
    ("nodes_allows_check", "UPDATE nodes SET allows = '{NULL}'"),
    ("nodes_allows_check", f"UPDATE nodes SET allows = array_fill('packages'::text, '{{{ALLOWS_MAX + 1}}}')"),
]
