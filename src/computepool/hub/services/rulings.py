"""What checks of results come to: who was right, and what follows for slices and pay.

A ruling is written first, together with the nodes' standing (standings.py). What follows from it is done after that,
each part once however often it is tried: a hub that dies anywhere in between leaves nothing that another does not
finish.
"""

from __future__ import annotations

import logging

from computepool import entropy
from computepool.core.ids import AttemptId
from computepool.core.trust.inspection import CheckOutcome, Facts, Rule, RunState
from computepool.core.trust.validation import Verify, are_strangers
from computepool.hub.services.deliveries import accept_withheld
from computepool.hub.services.inspector import Inspector
from computepool.hub.services.standings import count_validated, take_pay_back
from computepool.hub.store import events as event_store
from computepool.hub.store import validation as store
from computepool.hub.store.connect import Connection, Pool
from computepool.hub.store.events import NewEvent
from computepool.hub.store.validation import StoredCheck

log = logging.getLogger("computepool.trust")

REASON_WRONG = "others who ran the slice got something else"
REPLACED = "The first result was wrong; this one is from the runs that found it out."


class _Beaten(Exception):
    """Another hub has ruled meanwhile."""


async def rule(inspector: Inspector, check: StoredCheck, facts: Facts, ruled: Rule) -> None:
    delivered = [
        (stored, run.runner)
        for stored, run in zip(check.runs, facts.runs, strict=True)
        if run.state is RunState.DELIVERED
    ]
    verdicts = {stored.attempt_id: v for (stored, _), v in zip(delivered, ruled.verdicts, strict=True)}
    counted = [
        (stored.node_id, verdict, check.retro and stored.attempt_id == check.attempt_id)
        for (stored, _), verdict in zip(delivered, _list_counted(check, facts, ruled), strict=True)
        if verdict is not None
    ]
    try:
        async with inspector.pool.acquire() as conn, conn.transaction():
            await count_validated(conn, counted, now=check.now)
            if not await store.rule_check(conn, check.attempt_id, outcome=ruled.outcome, verdicts=verdicts):
                raise _Beaten
    except _Beaten:
        return
    log.info("check_ruled attempt_id=%s outcome=%s runs=%d", check.attempt_id, ruled.outcome.value, len(delivered))
    async with inspector.pool.acquire() as conn:
        ruled_check = await store.find_check(conn, check.attempt_id)
    assert ruled_check is not None
    await follow_up(inspector, ruled_check)


def _list_counted(check: StoredCheck, facts: Facts, ruled: Rule) -> list[bool | None]:
    """What of the verdicts moves anybody's record. Newcomers who agree with each other prove nothing: in a quorum
    somebody trusted, and a stranger, must have got the same."""
    runners = [run.runner for run in facts.runs if run.state is RunState.DELIVERED]
    if check.mode is not Verify.QUORUM:
        return list(ruled.verdicts)
    vouchers = [r for r, verdict in zip(runners, ruled.verdicts, strict=True) if verdict and r.is_trusted]
    return [
        verdict if any(are_strangers(voucher, runner) for voucher in vouchers) else None
        for runner, verdict in zip(runners, ruled.verdicts, strict=True)
    ]


# What follows


async def follow_up(inspector: Inspector, check: StoredCheck) -> None:
    await _deliver(inspector.pool, check)
    for attempt_id, verdict in check.verdicts.items():
        if verdict is False:
            await take_pay_back(inspector.pool, attempt_id, REASON_WRONG)
    async with inspector.pool.acquire() as conn:
        await store.close_check(conn, check.attempt_id)


async def _deliver(pool: Pool, check: StoredCheck) -> None:
    """The submitter gets the right result, whoever it is from."""
    async with pool.acquire() as conn, conn.transaction():
        if check.outcome is CheckOutcome.FOUND_WRONG:
            await _replace(conn, check)
        elif check.withheld:
            await accept_withheld(conn, check.attempt_id)
        # That others have got what a node got that was watched means that what was known holds no longer.
        is_stale = check.is_trial and check.outcome is CheckOutcome.AGREED
        if is_stale or check.outcome is CheckOutcome.UNDECIDED:
            await store.set_nondeterministic(conn, check.job_id)
            await _tell_job(conn, check, "job_nondeterministic")


async def _replace(conn: Connection, check: StoredCheck) -> None:
    right_id = next(id for id, verdict in check.verdicts.items() if verdict)
    if not await store.is_wrong_result(conn, check):
        return
    copy_id = AttemptId(entropy.new_id())
    await store.copy_result(conn, check, id=copy_id, right_id=right_id, message=REPLACED)
    if not await accept_withheld(conn, check.attempt_id, right_id=copy_id):
        await store.replace_result(conn, check, accepted_id=copy_id)
    await _tell_job(conn, check, "result_replaced")


async def _tell_job(conn: Connection, check: StoredCheck, kind: str) -> None:
    body = {"slices": [[check.slice_index, check.slice_index]]}
    await event_store.record_events(
        conn, [NewEvent(kind=kind, account_id=check.submitter_id, job_id=check.job_id, body=body)]
    )
