"""Pay that owners wait for, put straight into attempts and books; and whether the two say the same."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

from computepool import entropy
from computepool.core.ids import AccountId, AttemptId, JobId, NodeId
from computepool.core.ledger import verbs
from computepool.core.ledger.accounts import LedgerAccount
from computepool.core.ledger.charging import Charge, charge_attempt
from computepool.core.ledger.refusal import Refusal
from computepool.core.ledger.transfer import Posting
from computepool.core.payments.cash import CREDIT
from computepool.hub.http.errors import AWAY
from computepool.hub.store import ledger
from computepool.hub.store.connect import Pool
from tests.support.postgres import connected
from tests.support.rows import insert_account, insert_job

T = TypeVar("T")

FEE_PPM = 200_000
RICH = 1_000_000 * CREDIT
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Pay:
    """What one owner earned with one job, an attempt for each of its slices."""

    job_id: JobId
    charges: list[Charge]

    @property
    def attempt_ids(self) -> list[AttemptId]:
        return [charge.attempt_id for charge in self.charges]

    @property
    def owner_microcredits(self) -> int:
        return sum(charge.owner_microcredits for charge in self.charges)


async def insert_held_pay(dsn: str, owner_id: str, submitter_id: str, *, microcredits: int = 7 * CREDIT) -> Pay:
    """Of people whom only the API knows; held back for an hour, so that there is time to doubt it."""
    async with connected(dsn) as conn:
        await conn.set_type_codec("jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
        return await insert_pay(
            conn,
            owner_id=AccountId(UUID(owner_id)),
            submitter_id=AccountId(UUID(submitter_id)),
            prices=[microcredits],
            due_seconds_ago=-3_600,
        )


async def insert_pay(
    conn: Any,
    *,
    owner_id: AccountId,
    submitter_id: AccountId,
    prices: Sequence[int],
    due_seconds_ago: float = 60.0,
    receipt: str | None = None,
    settled: bool = True,
) -> Pay:
    """Held, settled and pending. `receipt` is the state of the node's; unless `settled`, only attempts know of it."""
    async with conn.transaction():
        job_id = await insert_job(conn, submitter_id, slice_count=len(prices))
        charges = [charge_attempt(AttemptId(entropy.new_id()), price, fee_ppm=FEE_PPM) for price in prices]
        node_id = await insert_node(conn, owner_id)
        receipt_id = await _insert_receipt(conn, node_id, receipt) if receipt else None
        await conn.executemany(
            """INSERT INTO attempts (id, job_id, slice_index, number, node_id, slot, state, expires_at, finished_at,
                                     charged_microcredits, fee_microcredits, earning_state, release_at, receipt_id)
               VALUES ($1, $2, $3, 1, $4, 'cpu:0', 'succeeded', now(), now(), $5, $6, 'pending',
                       now() - $7 * interval '1 second', $8)""",
            [
                (
                    charge.attempt_id,
                    job_id,
                    index,
                    node_id,
                    charge.total_microcredits,
                    charge.fee_microcredits,
                    due_seconds_ago,
                    receipt_id,
                )
                for index, charge in enumerate(charges)
            ],
        )
        await conn.execute(
            """UPDATE slices s
                  SET state = 'succeeded', attempt_count = 1, accepted_attempt_id = a.id, finished_at = now()
                 FROM attempts a WHERE a.job_id = s.job_id AND a.slice_index = s.slice_index AND s.job_id = $1""",
            job_id,
        )
        if settled:
            total = sum(prices)
            await post(conn, verbs.hold(job_id=job_id, submitter_id=submitter_id, amount=total))
            await post(
                conn,
                verbs.settle(
                    job_id=job_id,
                    submitter_id=submitter_id,
                    owner_id=owner_id,
                    charges=charges,
                    held_remaining=total,
                ),
            )
    return Pay(job_id, charges)


async def insert_node(conn: Any, owner_id: AccountId) -> NodeId:
    id = NodeId(entropy.new_id())
    await conn.execute(
        """INSERT INTO nodes (id, account_id, name, public_key, synthetic, isolation, hardware, agent_version)
           VALUES ($1, $2, 'node', $3, false, 'sandboxed',
                   '{"cores": 1, "ram_bytes": 1, "disk_bytes": 1, "cpu_slots": 1}', '')""",
        id,
        owner_id,
        next(_numbers).to_bytes(32, "big"),
    )
    return id


async def _insert_receipt(conn: Any, node_id: NodeId, state: str) -> UUID:
    id = entropy.new_id()
    await conn.execute(
        "INSERT INTO receipts (id, node_id, token, state) VALUES ($1, $2, 'a.b.c', $3)", id, node_id, state
    )
    return id


async def give_credits(conn: Any, account_id: AccountId, microcredits: int) -> None:
    await post(conn, verbs.top_up(top_up_id=entropy.new_id(), account_id=account_id, amount=microcredits))


async def post(conn: Any, posting: Posting | Refusal) -> None:
    assert isinstance(posting, Posting), posting
    [outcome] = await ledger.post(conn, [posting])
    assert not isinstance(outcome, Refusal), outcome


# Owners whose pending or free pay is not what their attempts say; for owners who have neither spent nor cashed out.
DIFFERING = """
WITH said AS (
    SELECT n.account_id, sum(a.part) FILTER (WHERE a.earning_state IN ('pending', 'disputed')) AS pending,
           sum(a.part) FILTER (WHERE a.earning_state = 'released') AS free
      FROM (SELECT node_id, earning_state, charged_microcredits - fee_microcredits AS part FROM attempts) AS a
      JOIN nodes n ON n.id = a.node_id WHERE a.earning_state IS NOT NULL GROUP BY n.account_id),
kept AS (
    SELECT account_id, coalesce(sum(balance) FILTER (WHERE kind = 'owner_pending'), 0) AS pending,
           coalesce(sum(balance) FILTER (WHERE kind = 'owner_available'), 0) AS free
      FROM ledger_accounts WHERE account_id IS NOT NULL GROUP BY account_id)
SELECT said.account_id, said.pending AS said_pending, kept.pending AS kept_pending, said.free AS said_free,
       kept.free AS kept_free
  FROM said LEFT JOIN kept USING (account_id)
 WHERE coalesce(said.pending, 0) <> coalesce(kept.pending, 0) OR coalesce(said.free, 0) <> coalesce(kept.free, 0)
"""


# Attempts whose disputes or reversals are not what their state says: frozen is what is in dispute, and what was taken
# back went back whole, once.
MISJUDGED = """
SELECT a.id, a.earning_state::text AS state, d.open_count, d.upheld_count, t.reversed,
       a.charged_microcredits AS charged
  FROM attempts a
  JOIN LATERAL (SELECT count(*) FILTER (WHERE state = 'open') AS open_count,
                       count(*) FILTER (WHERE state = 'upheld') AS upheld_count
                  FROM disputes WHERE attempt_id = a.id) AS d ON true
  JOIN LATERAL (SELECT coalesce(sum(amount), 0) AS reversed FROM ledger_transfers
                 WHERE kind = 'reverse' AND attempt_id = a.id) AS t ON true
 WHERE a.earning_state IS NOT NULL
   AND ((a.earning_state = 'disputed') <> (d.open_count = 1) OR (a.earning_state = 'reversed') <> (d.upheld_count = 1)
        OR t.reversed <> CASE WHEN a.earning_state = 'reversed' THEN a.charged_microcredits ELSE 0 END)
"""


async def list_faults(conn: Any) -> list[Any]:
    """Empty: the books add up, and every owner has what their attempts say."""
    return [*await list_judgement_faults(conn), *(dict(row) for row in await conn.fetch(DIFFERING))]


async def list_judgement_faults(conn: Any) -> list[Any]:
    """Also for owners who have spent or cashed out."""
    return [*await ledger.list_drifts(conn), *(dict(row) for row in await conn.fetch(MISJUDGED))]


# Of a pool, for tests that look at one database all the time


async def make_people(pool: Pool, count: int = 1) -> tuple[AccountId, list[AccountId]]:
    """A rich submitter, and owners."""
    async with pool.acquire() as conn:
        submitter, *owners = [await insert_account(conn) for _ in range(count + 1)]
        async with conn.transaction():
            await give_credits(conn, submitter, RICH)
    return submitter, owners


async def earn(pool: Pool, owner: AccountId, submitter: AccountId, *prices: int, **options: Any) -> Pay:
    async with pool.acquire() as conn:
        return await insert_pay(conn, owner_id=owner, submitter_id=submitter, prices=prices, **options)


async def insist(act: Callable[[], Awaitable[T]]) -> T:
    """Asks again, as callers do, while the hub is too busy: after half a second behind a lock it answers 503."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await act()
            except AWAY:
                pass


async def get_balance(pool: Pool, account: LedgerAccount) -> int:
    async with pool.acquire() as conn:
        return (await ledger.get_balances(conn, [account]))[account]


async def list_states(pool: Pool, pay: Pay) -> list[str]:
    """By slice."""
    async with pool.acquire() as conn:
        rows = await conn.fetch(
            "SELECT earning_state::text AS state FROM attempts WHERE job_id = $1 ORDER BY slice_index", pay.job_id
        )
    return [row["state"] for row in rows]


async def find_faults(pool: Pool) -> list[Any]:
    async with pool.acquire() as conn:
        return await list_faults(conn)
