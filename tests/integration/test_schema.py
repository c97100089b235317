"""The database repeats the invariants: enums, checks, and the two unique indexes against double allocation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from uuid import UUID

import asyncpg
import pytest
import pytest_asyncio

from computepool.core.accounts.roles import Role
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.jobs.order import PriorityClass
from computepool.core.jobs.state import (
    ATTEMPT_LIVE,
    ATTEMPT_TERMINAL,
    SLICE_TERMINAL,
    AttemptState,
    JobState,
    SliceState,
)
from computepool.core.nodes.state import NodeState
from computepool.core.placement.slot import SlotKind
from computepool.core.placement.weights import Preference
from computepool.hub.store.receipts import ReceiptState
from tests.support import (
    audit_rows,
    ban_rows,
    challenge_rows,
    checkpoint_rows,
    dispute_rows,
    ledger_rows,
    live_rows,
    market_rows,
    network_rows,
    offer_rows,
    payment_rows,
    validation_rows,
)
from tests.support.orphans import count_orphans
from tests.support.postgres import TestServer

pytestmark = pytest.mark.asyncio(loop_scope="module")

ENUMS = {
    "slice_state": SliceState,
    "attempt_state": AttemptState,
    "job_state": JobState,
    "node_state": NodeState,
    "slot_kind": SlotKind,
    "isolation_level": IsolationLevel,
    "account_role": Role,
    "failure_cause": Cause,
    "priority_class": PriorityClass,
    "preference": Preference,
    "receipt_state": ReceiptState,
    **checkpoint_rows.ENUMS,
    **ledger_rows.ENUMS,
    **payment_rows.ENUMS,
    **dispute_rows.ENUMS,
    **offer_rows.ENUMS,
    **challenge_rows.ENUMS,
    **network_rows.ENUMS,
    **validation_rows.ENUMS,
}

ACCOUNT, JOB, OTHER_JOB = UUID(int=1), UUID(int=2), UUID(int=3)
NODE, OTHER_NODE = UUID(int=4), UUID(int=5)
FIRST, SECOND = UUID(int=6), UUID(int=7)

# One account, two nodes, a job of three slices and one of one slice.
ROWS = f"""
INSERT INTO accounts (id, email, name, roles, queued_slices_max, stored_bytes_max, calls_per_minute_max)
VALUES ('{ACCOUNT}', 'a@example.org', 'a', '{{submitter}}', 1, 1, 1);
INSERT INTO nodes (id, account_id, name, public_key, synthetic, isolation, hardware, agent_version)
VALUES ('{NODE}', '{ACCOUNT}', 'n', '\\x01', false, 'sandboxed', '{{}}', ''),
       ('{OTHER_NODE}', '{ACCOUNT}', 'n', '\\x02', false, 'sandboxed', '{{}}', '');
INSERT INTO shapes (digest, gpu, vram_bytes, cores, ram_bytes, disk_bytes, tiers, regions, isolation)
VALUES ('\\x01', false, 0, 1, 1, 1, '{{}}', '{{}}', 'sandboxed');
INSERT INTO jobs (id, account_id, name, spec, shape_id, priority, slice_count, retries, wall_seconds)
SELECT job.id, '{ACCOUNT}', 'j', '{{}}', shapes.id, 0, job.slice_count, 0, 1
  FROM shapes, (VALUES ('{JOB}'::uuid, 3), ('{OTHER_JOB}'::uuid, 1)) AS job (id, slice_count);
INSERT INTO slices (job_id, slice_index, account_id, shape_id, priority)
SELECT jobs.id, i, account_id, shape_id, 0 FROM jobs, generate_series(0, slice_count - 1) AS i;
INSERT INTO slots (node_id, name, kind, tier, vram_bytes, cores, ram_bytes, disk_bytes)
VALUES ('{NODE}', 'cpu:0', 'cpu', 'cpu', 0, 1, 1, 1);
INSERT INTO hub_facts (hub_id, blob_store_id) VALUES ('{JOB}', '{JOB}');
"""


@pytest.fixture(scope="module")
def migrated_dsn(postgres: TestServer) -> Iterator[str]:
    dsn = asyncio.run(postgres.create_database())
    yield dsn
    asyncio.run(postgres.drop_database(dsn))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def connection(migrated_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    """One for all: a new one would read the whole catalogue again for each statement."""
    connection = await asyncpg.connect(migrated_dsn)
    yield connection
    await connection.close()


@pytest_asyncio.fixture(loop_scope="module")
async def conn(connection: asyncpg.Connection) -> AsyncIterator[asyncpg.Connection]:
    """The rows above, in a transaction that is rolled back."""
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute(ROWS)
    yield connection
    await transaction.rollback()


async def insert_attempt(conn, **overrides: object) -> None:
    values = {
        "id": FIRST,
        "job_id": JOB,
        "slice_index": 0,
        "number": 1,
        "node_id": NODE,
        "slot": "cpu:0",
        "state": "leased",
        "cause": None,
        **overrides,
    }
    await conn.execute(
        """INSERT INTO attempts
                  (id, job_id, slice_index, number, node_id, slot, state, cause, expires_at, finished_at)
           VALUES ($1, $2, $3, $4, $5, $6, $7, $8, now(),
                   CASE WHEN $7::attempt_state IN ('succeeded', 'failed', 'lost', 'cancelled') THEN now() END)""",
        *values.values(),
    )


# Enums


@pytest.mark.parametrize(("name", "enum"), ENUMS.items(), ids=list(ENUMS))
async def test_the_enum_has_the_labels_of_its_python_twin_in_the_same_order(conn, name, enum):
    rows = await conn.fetch(
        "SELECT enumlabel FROM pg_enum WHERE enumtypid = $1::regtype ORDER BY enumsortorder", name
    )
    assert [row["enumlabel"] for row in rows] == [member.value for member in enum]


async def test_every_enum_of_the_schema_has_a_python_twin(conn):
    rows = await conn.fetch("SELECT typname FROM pg_type WHERE typtype = 'e'")
    assert {row["typname"] for row in rows} == set(ENUMS)


# The two guards against double allocation

LIVE = sorted(state.value for state in ATTEMPT_LIVE)
NOT_LIVE = sorted(state.value for state in set(AttemptState) - ATTEMPT_LIVE)


def cause_of(state: str) -> str | None:
    return "node_vanished" if state in ("failed", "lost", "cancelled") else None


@pytest.mark.parametrize("first", LIVE)
@pytest.mark.parametrize("second", LIVE)
async def test_a_slice_never_has_two_live_attempts(conn, first, second):
    await insert_attempt(conn, state=first)
    with pytest.raises(asyncpg.UniqueViolationError) as refusal:
        await insert_attempt(conn, id=SECOND, number=2, state=second, node_id=OTHER_NODE)
    assert refusal.value.constraint_name == "attempts_live_slice_idx"


@pytest.mark.parametrize("first", LIVE)
@pytest.mark.parametrize("second", LIVE)
async def test_a_slot_never_has_two_live_attempts(conn, first, second):
    await insert_attempt(conn, state=first)
    with pytest.raises(asyncpg.UniqueViolationError) as refusal:
        await insert_attempt(conn, id=SECOND, job_id=OTHER_JOB, state=second)
    assert refusal.value.constraint_name == "attempts_live_slot_idx"


@pytest.mark.parametrize("first", NOT_LIVE)
async def test_an_attempt_that_is_over_frees_its_slice_and_its_slot(conn, first):
    await insert_attempt(conn, state=first, cause=cause_of(first))
    await insert_attempt(conn, id=SECOND, number=2)


async def test_a_lost_attempt_does_not_come_to_life_beside_its_successor(conn):
    await insert_attempt(conn, state="lost", cause="node_vanished")
    await insert_attempt(conn, id=SECOND, number=2, node_id=OTHER_NODE)
    with pytest.raises(asyncpg.UniqueViolationError):
        await conn.execute(
            "UPDATE attempts SET state = 'running', cause = NULL, finished_at = NULL WHERE id = $1", FIRST
        )


async def test_other_slots_and_other_slices_are_not_in_each_others_way(conn):
    await insert_attempt(conn)
    await insert_attempt(conn, id=SECOND, slice_index=1, slot="cpu:1")
    await insert_attempt(conn, id=UUID(int=8), slice_index=2, node_id=OTHER_NODE)


async def test_an_attempts_number_is_never_used_twice_on_a_slice(conn):
    await insert_attempt(conn, state="failed", cause="exit_code")
    with pytest.raises(asyncpg.UniqueViolationError) as refusal:
        await insert_attempt(conn, id=SECOND)
    assert refusal.value.constraint_name == "attempts_number_unique"


async def test_the_live_indexes_hold_exactly_the_states_that_core_calls_live(conn):
    for state in AttemptState:
        await conn.execute("DELETE FROM attempts")
        await insert_attempt(conn, state=state.value, cause=cause_of(state.value))
        overlapping = insert_attempt(conn, id=SECOND, number=2, slot="cpu:1")
        try:
            async with conn.transaction():
                await overlapping
            refused = False
        except asyncpg.UniqueViolationError:
            refused = True
        assert refused is (state in ATTEMPT_LIVE)


# Checks. Each statement breaks one rule and no other.

JOB_ROW = f"UPDATE jobs SET {{}} WHERE id = '{JOB}'"
SLICE_ROW = f"UPDATE slices SET {{}} WHERE job_id = '{JOB}' AND slice_index = 0"
ATTEMPT_ROW = f"UPDATE attempts SET {{}} WHERE id = '{FIRST}'"
# Nonce and tag alone are 28 bytes.
SECRETS_ROW = f"INSERT INTO job_secrets (job_id, sealed) VALUES ('{JOB}', {{}})"

IMPOSSIBLE = [
    ("hub_facts_only_row_check", "UPDATE hub_facts SET only_row = false"),
    ("hub_keys_purpose_check", "INSERT INTO hub_keys (kid, purpose, secret) VALUES ('k', 'fun', '')"),
    ("accounts_stored_bytes_check", "UPDATE accounts SET stored_bytes = -1"),
    ("accounts_fair_weight_check", "UPDATE accounts SET fair_weight = 0"),
    ("accounts_fair_weight_check", "UPDATE accounts SET fair_weight = 100.1"),
    ("accounts_fair_weight_check", "UPDATE accounts SET fair_weight = 'NaN'"),
    ("nodes_floor_check", "UPDATE nodes SET floor_microcredits_per_hour = -1"),
    ("slots_speed_check", "UPDATE slots SET speed_tflops = 0"),
    ("slots_speed_check", "UPDATE slots SET speed_tflops = -1"),
    ("jobs_slice_count_check", JOB_ROW.format("slice_count = 0, state = 'succeeded', finished_at = now()")),
    ("jobs_slice_count_check", JOB_ROW.format("slice_count = 100001")),
    ("jobs_counts_check", JOB_ROW.format("succeeded_count = -1")),
    ("jobs_counts_check", JOB_ROW.format("failed_count = -1, succeeded_count = 1")),
    ("jobs_counts_check", JOB_ROW.format("cancelled_count = -1")),
    ("jobs_counts_check", JOB_ROW.format("succeeded_count = 2, failed_count = 1, cancelled_count = 1")),
    ("jobs_finished_check", JOB_ROW.format("state = 'succeeded', succeeded_count = 3")),
    ("jobs_finished_check", JOB_ROW.format("state = 'succeeded', finished_at = now()")),
    ("jobs_finished_check", JOB_ROW.format("state = 'running', succeeded_count = 3")),
    ("jobs_finished_check", JOB_ROW.format("state = 'running', finished_at = now(), succeeded_count = 3")),
    ("slices_finished_check", SLICE_ROW.format("state = 'cancelled', cause = 'cancelled'")),
    ("slices_finished_check", SLICE_ROW.format("finished_at = now()")),
    ("slices_accepted_check", SLICE_ROW.format("state = 'succeeded', finished_at = now()")),
    ("slices_accepted_check", SLICE_ROW.format(f"accepted_attempt_id = '{FIRST}'")),
    ("slices_cause_check", SLICE_ROW.format("state = 'failed', finished_at = now()")),
    ("slices_cause_check", SLICE_ROW.format("cause = 'exit_code'")),
    ("attempts_finished_check", ATTEMPT_ROW.format("state = 'succeeded'")),
    ("attempts_finished_check", ATTEMPT_ROW.format("state = 'lost', cause = 'node_vanished'")),
    ("attempts_finished_check", ATTEMPT_ROW.format("finished_at = now()")),
    ("attempts_cause_check", ATTEMPT_ROW.format("state = 'failed', finished_at = now()")),
    ("attempts_cause_check", ATTEMPT_ROW.format("cause = 'exit_code'")),
    ("attempts_cause_check", ATTEMPT_ROW.format("state = 'succeeded', finished_at = now(), cause = 'exit_code'")),
    ("job_secrets_sealed_check", SECRETS_ROW.format("decode(repeat('00', 28), 'hex')")),
    *ledger_rows.IMPOSSIBLE,
    *payment_rows.IMPOSSIBLE,
    *audit_rows.IMPOSSIBLE,
    *market_rows.IMPOSSIBLE,
    *dispute_rows.IMPOSSIBLE,
    *offer_rows.IMPOSSIBLE,
    *challenge_rows.IMPOSSIBLE,
    *validation_rows.IMPOSSIBLE,
    *ban_rows.IMPOSSIBLE,
    *network_rows.IMPOSSIBLE,
    *live_rows.IMPOSSIBLE,
    *checkpoint_rows.IMPOSSIBLE,
]
POSSIBLE = [
    SECRETS_ROW.format("decode(repeat('00', 29), 'hex')"),
    *ledger_rows.POSSIBLE,
    *payment_rows.POSSIBLE,
    *audit_rows.POSSIBLE,
    *market_rows.POSSIBLE,
    *dispute_rows.POSSIBLE,
    *offer_rows.POSSIBLE,
    *challenge_rows.POSSIBLE,
    *validation_rows.POSSIBLE,
    *ban_rows.POSSIBLE,
    *network_rows.POSSIBLE,
    *live_rows.POSSIBLE,
    *checkpoint_rows.POSSIBLE,
]


@pytest.mark.parametrize(("constraint", "statement"), IMPOSSIBLE)
async def test_an_impossible_row_is_refused(conn, constraint, statement):
    await insert_attempt(conn)
    with pytest.raises(asyncpg.CheckViolationError) as refusal:
        await conn.execute(statement)
    assert refusal.value.constraint_name == constraint


@pytest.mark.parametrize("statement", POSSIBLE)
async def test_a_row_that_breaks_no_rule_is_taken(conn, statement):
    await insert_attempt(conn)
    await conn.execute(statement)


@pytest.mark.parametrize("statement", network_rows.NEVER)
async def test_what_fences_old_owners_and_hosts_off_never_goes_back(conn, statement):
    with pytest.raises(asyncpg.RestrictViolationError):
        await conn.execute(statement)


async def test_every_check_of_the_schema_is_tried_above(conn):
    rows = await conn.fetch("SELECT conname FROM pg_constraint WHERE contype = 'c' AND conrelid <> 0")
    assert {row["conname"] for row in rows} == {constraint for constraint, _ in IMPOSSIBLE}


@pytest.mark.parametrize("state", [state.value for state in SliceState])
async def test_every_state_of_a_slice_can_be_stored(conn, state):
    ended = SliceState(state) in SLICE_TERMINAL
    await conn.execute(
        "UPDATE slices SET state = $1, finished_at = $2, cause = $3, accepted_attempt_id = $4 WHERE job_id = $5",
        state,
        await conn.fetchval("SELECT now()") if ended else None,
        "exit_code" if state in ("failed", "cancelled") else None,
        FIRST if state == "succeeded" else None,
        OTHER_JOB,
    )


@pytest.mark.parametrize("state", [state.value for state in AttemptState])
async def test_every_state_of_an_attempt_can_be_stored(conn, state):
    await insert_attempt(conn, state=state, cause=cause_of(state))
    finished_at = await conn.fetchval("SELECT finished_at FROM attempts WHERE id = $1", FIRST)
    assert (finished_at is not None) == (AttemptState(state) in ATTEMPT_TERMINAL | {AttemptState.LOST})


async def test_there_is_one_hub_and_no_second(conn):
    with pytest.raises(asyncpg.UniqueViolationError):
        await conn.execute("INSERT INTO hub_facts (hub_id, blob_store_id) VALUES ($1, $1)", JOB)


# The tables that every slice's life writes have no foreign keys; orphans are looked for instead, after every test


ORPHANS = [
    ("jobs of accounts", f"UPDATE jobs SET account_id = '{SECOND}' WHERE id = '{JOB}'"),
    ("jobs of shapes", "DELETE FROM shapes"),
    ("slices of jobs", f"DELETE FROM jobs WHERE id = '{OTHER_JOB}'"),
    ("slices of jobs", f"UPDATE slices SET account_id = '{SECOND}' WHERE slice_index = 2"),
    ("slices of jobs", "UPDATE slices SET priority_class = 'high' WHERE slice_index = 2"),
    ("attempts of slices", "UPDATE attempts SET slice_index = 3"),
    ("attempts of slices", "UPDATE attempts SET number = 2"),
    ("attempts of nodes", f"UPDATE attempts SET node_id = '{SECOND}'"),
    (
        "accepted results of slices",
        SLICE_ROW.format(f"state = 'succeeded', finished_at = now(), accepted_attempt_id = '{SECOND}'"),
    ),
    (
        "accepted results of slices",
        SLICE_ROW.format(f"state = 'succeeded', finished_at = now(), accepted_attempt_id = '{FIRST}'"),
    ),
    ("receipts of attempts", ATTEMPT_ROW.format(f"receipt_id = '{SECOND}'")),
    ("attempts of receipts", f"INSERT INTO receipts (id, node_id, token) VALUES ('{SECOND}', '{NODE}', '')"),
    ("nodes of receipts", f"INSERT INTO receipts (id, node_id, token) VALUES ('{SECOND}', '{SECOND}', '')"),
    ("logs of attempts", f"INSERT INTO log_chunks (attempt_id, start_offset, content) VALUES ('{SECOND}', 0, '')"),
    (
        "jobs of keys",
        "INSERT INTO idempotency (account_id, key, request_sha256, job_id) "
        f"VALUES ('{ACCOUNT}', 'k', '', '{SECOND}')",
    ),
    ("jobs that miscount", f"DELETE FROM slices WHERE job_id = '{JOB}' AND slice_index = 2"),
    ("jobs that miscount", f"UPDATE jobs SET succeeded_count = 1 WHERE id = '{JOB}'"),
]


async def insert_family(conn) -> None:
    """An attempt, and a slice that knows of it."""
    await insert_attempt(conn)
    await conn.execute(SLICE_ROW.format("attempt_count = 1"))


async def test_where_every_row_has_its_parent_no_orphan_is_found(conn):
    await insert_family(conn)
    assert await count_orphans(conn) == {}


@pytest.mark.parametrize(("kind", "statement"), ORPHANS)
async def test_an_orphan_is_found(conn, kind, statement):
    await insert_family(conn)
    await conn.execute(statement)
    assert kind in await count_orphans(conn)


async def test_only_what_is_written_seldom_has_foreign_keys(conn):
    rows = await conn.fetch("SELECT DISTINCT conrelid::regclass::text AS name FROM pg_constraint WHERE contype = 'f'")
    found = {row["name"] for row in rows}
    hot = {"jobs", "slices", "attempts", "receipts", "log_chunks", "events", "fair_usage"}
    assert found & (hot | {"ledger_transfers", "ledger_accounts"}) == set()
    assert found >= {"api_keys", "nodes", "slots", "artifacts"}


@pytest.mark.parametrize(
    ("constraint", "statement"),
    [
        (
            "accounts_email_unique",
            f"INSERT INTO accounts SELECT '{SECOND}', email, name, password_hash, roles, 1, 1, 1 FROM accounts",
        ),
        ("nodes_public_key_unique", f"UPDATE nodes SET public_key = '\\x01' WHERE id = '{OTHER_NODE}'"),
        (
            "shapes_digest_unique",
            "INSERT INTO shapes (digest, gpu, vram_bytes, cores, ram_bytes, disk_bytes, tiers, regions, isolation) "
            "SELECT digest, gpu, vram_bytes, cores, ram_bytes, disk_bytes, tiers, regions, isolation FROM shapes",
        ),
    ],
)
async def test_what_names_one_thing_never_names_two(conn, constraint, statement):
    with pytest.raises(asyncpg.UniqueViolationError) as refusal:
        await conn.execute(statement)
    assert refusal.value.constraint_name == constraint


@pytest.mark.parametrize("type_", list(ENUMS))
async def test_a_label_that_is_in_no_enum_is_refused(conn, type_):
    with pytest.raises(asyncpg.InvalidTextRepresentationError):
        await conn.fetchval(f"SELECT 'unheard_of'::{type_}")
