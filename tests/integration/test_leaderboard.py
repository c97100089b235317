"""Days of owners are counted from what others paid, and once more while pay can be taken back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from computepool import entropy
from computepool.core.live.leaderboard import Measure, Period, find_due_day, first_day
from computepool.hub.services.leaderboard import count_days, list_leaders
from computepool.hub.store import leaderboard as store
from tests.support import rows

KEY = bytes(32)
CHARGED, FEE = 5_000_000, 1_000_000


@pytest.fixture
async def owner(conn):
    return await rows.insert_account(conn)


async def add_paid(conn, owner, submitter, *, at: str = "now()", earning: str = "pending") -> UUID:
    """An attempt of one hour on a node of the owner's, for a job of the submitter's."""
    node_id, attempt_id = entropy.new_id(), entropy.new_id()
    job_id = await rows.insert_job(conn, submitter)
    await conn.execute(
        """INSERT INTO nodes (id, account_id, name, public_key, synthetic, isolation, hardware, agent_version,
                              last_seen_at)
           VALUES ($1, $2, 'n', $3, false, 'sandboxed', '{}', '', now())""",
        node_id,
        owner,
        node_id.bytes,
    )
    receipt_id = entropy.new_id()
    await conn.execute(
        "INSERT INTO receipts (id, node_id, token, state) VALUES ($1, $2, '', 'verified')", receipt_id, node_id
    )
    await conn.execute(
        f"""INSERT INTO attempts (id, job_id, slice_index, number, node_id, slot, state, expires_at, finished_at,
                                  charged_microcredits, fee_microcredits, rate_microcredits_per_hour, earning_state,
                                  release_at, receipt_id)
            VALUES ($1, $2, 0, 1, $3, 'cpu:0', 'succeeded', now(), {at}, $4, $5, $4, $6, now(), $7)""",
        attempt_id,
        job_id,
        node_id,
        CHARGED,
        FEE,
        earning,
        receipt_id,
    )
    return attempt_id


async def count(pool) -> None:
    while await count_days(pool) is not None:
        pass


async def values(pool, measure: Measure, period: Period = Period.DAY) -> dict[UUID, int]:
    found = await list_leaders(pool, KEY, by=measure, period=period, limit=10)
    return {each.account_id: each.value for each in found.leaders}


async def test_what_others_paid_counts_and_what_one_paid_oneself_does_not(pool, conn, owner):
    other = await rows.insert_account(conn)
    await add_paid(conn, owner, owner)
    await count(pool)
    assert await values(pool, Measure.EARNED) == {}
    await add_paid(conn, owner, other)
    await conn.execute("DELETE FROM owner_days_counted")
    await count(pool)
    assert await values(pool, Measure.EARNED) == {owner: CHARGED - FEE}
    assert await values(pool, Measure.HOURS) == {owner: 3_600}
    assert await values(pool, Measure.VERIFIED_SLICES) == {owner: 1}


async def test_work_for_a_linked_account_does_not_count(pool, conn, owner):
    linked = await rows.insert_account(conn)
    for account_id, place in ((owner, "IBAN 12 34"), (linked, "iban1234")):
        await conn.execute(
            """INSERT INTO payout_details (id, account_id, region, currency, destination)
               VALUES ($1, $2, 'IN', 'INR', $3)""",
            entropy.new_id(),
            account_id,
            place,
        )
    await add_paid(conn, owner, linked)
    await count(pool)
    assert await values(pool, Measure.EARNED) == {}
    # Control: it is the link that keeps it out.
    await conn.execute("UPDATE payout_details SET destination = 'elsewhere' WHERE account_id = $1", linked)
    await conn.execute("DELETE FROM owner_days_counted")
    await count(pool)
    assert await values(pool, Measure.EARNED) == {owner: CHARGED - FEE}


async def test_pay_that_is_taken_back_is_taken_off_the_day(pool, conn, owner):
    attempt_id = await add_paid(conn, owner, await rows.insert_account(conn), at="now() - interval '2 days'")
    await count(pool)
    assert await values(pool, Measure.EARNED, Period.WEEK) == {owner: CHARGED - FEE}
    assert await values(pool, Measure.EARNED, Period.DAY) == {}
    await conn.execute("UPDATE attempts SET earning_state = 'reversed' WHERE id = $1", attempt_id)
    await conn.execute("UPDATE owner_days_counted SET counted_at = now() - interval '2 hours'")
    await count(pool)
    assert await values(pool, Measure.EARNED, Period.WEEK) == {}


async def test_who_leaves_or_is_suspended_is_not_listed_and_pseudonyms_are(pool, conn, owner):
    await add_paid(conn, owner, await rows.insert_account(conn))
    await count(pool)
    made = (await list_leaders(pool, KEY, by=Measure.EARNED, period=Period.ALL, limit=1)).leaders[0].pseudonym
    assert made.count("-") == 2
    await conn.execute("INSERT INTO profiles (account_id, pseudonym) VALUES ($1, 'Grace')", owner)
    found = await list_leaders(pool, KEY, by=Measure.EARNED, period=Period.ALL, limit=1)
    assert [each.pseudonym for each in found.leaders] == ["Grace"]
    await conn.execute("UPDATE profiles SET on_leaderboard = false")
    assert await values(pool, Measure.EARNED) == {}
    await conn.execute("UPDATE profiles SET on_leaderboard = true")
    await conn.execute("UPDATE accounts SET suspended_at = now() WHERE id = $1", owner)
    assert await values(pool, Measure.EARNED) == {}


async def test_two_hubs_never_count_at_once(pool, conn):
    transaction = conn.transaction()
    await transaction.start()
    assert await store.try_lock(conn)
    assert await count_days(pool) is None
    await transaction.rollback()
    assert await count_days(pool) is not None


def test_today_is_counted_often_open_days_hourly_and_older_ones_never_again():
    now = datetime(2026, 5, 10, 12, tzinfo=UTC)
    today = now.date()
    fresh = {today - timedelta(days=back): now for back in range(4)}
    assert find_due_day({}, now) == today
    assert find_due_day(fresh, now) is None
    assert find_due_day(fresh, now + timedelta(minutes=2)) == today
    later = now + timedelta(hours=2)
    assert find_due_day({**fresh, today: later}, later) == today - timedelta(days=1)
    assert first_day(Period.WEEK, today) == today - timedelta(days=6)
