"""A node that audits of a network found wrong, as they write it."""

from __future__ import annotations

import uuid

import asyncpg


async def bug_node(dsn: str, node_id: str, owner_id: str, *, wrong: int) -> str:
    """The id of the run whose audits they were."""
    network_id, run_id, job_id = (str(uuid.uuid4()) for _ in range(3))
    conn = await asyncpg.connect(dsn)
    try:
        await conn.execute(
            "INSERT INTO networks (id, account_id, name, spec, digest, vnode_count, parameter_count) "
            "VALUES ($1::text::uuid, $2::text::uuid, 'net', '{}', sha256('x'), 1, 0)",
            network_id,
            owner_id,
        )
        await conn.execute(
            "INSERT INTO runs (id, network_id, account_id, job_id, steps, options, data, state, expires_at, "
            "finished_at) VALUES ($1::text::uuid, $2::text::uuid, $3::text::uuid, $4::text::uuid, 100, '{}', '[]', "
            "'stopped', now(), now())",
            run_id,
            network_id,
            owner_id,
            job_id,
        )
        for number in range(wrong):
            await conn.execute(
                "INSERT INTO run_audits (id, run_id, epoch, seat, attempt_id, node_id, from_step, until_step, "
                "outcome, witness_ids, message) VALUES ($1::text::uuid, $2::text::uuid, 1, 'seat-0', $1::text::uuid, "
                "$3::text::uuid, $4, $5, 'wrong', ARRAY[$1::text::uuid, $2::text::uuid], 'other bits')",
                str(uuid.UUID(int=number + 1)),
                run_id,
                node_id,
                10 * number,
                10 * number + 10,
            )
        await conn.execute(
            "INSERT INTO node_trust (node_id, standing, since, bugged_count, serving_since) "
            "VALUES ($1::text::uuid, 'bugged', now(), 1, now())",
            node_id,
        )
    finally:
        await conn.close()
    return run_id


async def forgive_node(dsn: str, node_id: str) -> None:
    """As if nothing had been found."""
    conn = await asyncpg.connect(dsn)
    try:
        await conn.execute("DELETE FROM node_trust WHERE node_id = $1::text::uuid", node_id)
    finally:
        await conn.close()
