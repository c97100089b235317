"""The end of attempts: completions, beats, silent nodes; and the files and logs that nodes send for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple
from uuid import UUID

from computepool.core.errors import ComputePoolError, InvalidRequest, StaleLease
from computepool.core.ids import AccountId, AttemptId, JobId, NodeId
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.lease import (
    Attempt,
    Decision,
    Refusal,
    decide_acknowledgement,
    decide_last_loss,
    decide_last_report,
    decide_loss,
    decide_report,
)
from computepool.core.jobs.lease import Report as ReportedEnd
from computepool.core.jobs.state import ATTEMPT_TERMINAL, AttemptState, SliceState
from computepool.core.ledger.accounts import submitter_available
from computepool.hub.config import HubSettings
from computepool.hub.services import billing
from computepool.hub.services.callers import NodeCaller
from computepool.hub.services.checkpoint_proofs import Doubts, open_doubts
from computepool.hub.services.deliveries import deliver, list_plain
from computepool.hub.services.keyring import Keyring
from computepool.hub.services.reports import Report, check_outputs, list_outputs, to_row
from computepool.hub.services.stops import stop_poisonous
from computepool.hub.services.transitions import OnEnd, Snapshot, ignore_end, lock_snapshot
from computepool.hub.services.validation import Intake, open_intake
from computepool.hub.store import artifacts as artifact_store
from computepool.hub.store import attempts as attempt_store
from computepool.hub.store import hub as hub_store
from computepool.hub.store import ledger
from computepool.hub.store import logs as log_store
from computepool.hub.store import nodes as node_store
from computepool.hub.store.attempts import HeldAttempt, ReportRow
from computepool.hub.store.connect import Connection, Pool
from computepool.hub.store.hub import ChangeKind
from computepool.hub.store.ledger import OpenAccounts
from computepool.wire.attempts import CompleteOutcome

LOG_PIECE_BYTES_MAX = 262_144


# Done in the transaction that ends attempts, after all else that it writes about them.
Then = Callable[[Connection], Awaitable[None]]


class Beat(NamedTuple):
    node_id: NodeId
    running: frozenset[AttemptId]


async def finish_attempts(
    pool: Pool,
    reports: Sequence[Report],
    *,
    on_end: OnEnd = ignore_end,
    then: Then | None = None,
    audit_key: bytes = b"",
    opened: OpenAccounts | None = None,
) -> list[CompleteOutcome | ComputePoolError]:
    """Judges reports together. A refusal of one is a value and never spoils the others.

    `then` is done in the same transaction: whoever ends an attempt often wants the next one, and two commits would
    cost them twice the wait. Results take the short way, in one transaction; what is left of the batch takes the long
    way, in another, because it locks slices and the first has locked jobs by then. Which results are run again by
    others is drawn with `audit_key`. `opened` is what the hub knows of the books.
    """
    delivered = await _deliver(pool, reports, on_end=on_end, then=then, opened=opened or OpenAccounts())
    rest = [report for report in reports if report.attempt_id not in delivered]
    if not rest:
        return [delivered[report.attempt_id] for report in reports]
    judged = iter(await _judge_all(pool, rest, on_end=on_end, then=then, audit_key=audit_key))
    return [delivered.get(report.attempt_id) or next(judged) for report in reports]


async def _deliver(
    pool: Pool, reports: Sequence[Report], *, on_end: OnEnd, then: Then | None, opened: OpenAccounts
) -> dict[AttemptId, CompleteOutcome | ComputePoolError]:
    plain = list_plain(reports)
    if not plain:
        return {}
    async with pool.acquire() as conn, conn.transaction():
        delivered = await deliver(conn, plain)
        if then is not None and len(delivered.outcomes) == len(reports):
            await then(conn)
        await billing.post(conn, delivered.postings, opened=opened)
        if delivered.has_stopped:
            await hub_store.record_change(conn, ChangeKind.CONTROLS)
    opened.note(delivered.postings)
    on_end(delivered.ended)
    return delivered.outcomes


async def _judge_all(
    pool: Pool, reports: Sequence[Report], *, on_end: OnEnd, then: Then | None, audit_key: bytes
) -> list[CompleteOutcome | ComputePoolError]:
    answers: list[CompleteOutcome | ComputePoolError] = []
    async with pool.acquire() as conn, conn.transaction():
        snapshot = await lock_snapshot(conn, (report.attempt_id for report in reports))
        known = [(snapshot.attempts[r.attempt_id], r) for r in reports if r.attempt_id in snapshot.attempts]
        present = await list_outputs(conn, [(snapshot.get_account_id(a.job_id), r) for a, r in known])
        failed = [report.attempt_id for report in reports if report.completion.cause is not None]
        purse = await _open_purse(conn, failed, snapshot)
        intake = await open_intake(conn, reports, key=audit_key, now=snapshot.now)
        doubts = await open_doubts(conn, [a for a, r in known if r.completion.cause is Cause.EXIT_CODE])
        kept: set[UUID] = set()
        for report in reports:
            try:
                outcome = _judge(snapshot, present, purse, intake, doubts, report)
            except ComputePoolError as refusal:
                answers.append(refusal)
                continue
            answers.append(outcome)
            if report.receipt is not None and report.receipt.id not in kept and not outcome.repeated:
                kept.add(report.receipt.id)
                snapshot.keep_receipt(report.receipt)
        await snapshot.apply(conn)
        await intake.write(conn)
        await doubts.write(conn)
        if then is not None:
            await then(conn)
        await snapshot.post(conn)
        if snapshot.has_stopped:
            await hub_store.record_change(conn, ChangeKind.CONTROLS)
    on_end(snapshot.list_ended())
    await stop_poisonous(pool, snapshot.list_poisonous_jobs(), on_end=on_end)
    return answers


class _Purse:
    """What the submitters of failed slices can still spend: another try needs what this one has cost."""

    def __init__(self, available: Mapping[AccountId, int]) -> None:
        self._left = dict(available)
        self._slack_used: Counter[JobId] = Counter()

    def pays(self, snapshot: Snapshot, account_id: AccountId, attempt: Attempt, row: ReportRow | None) -> bool:
        price = snapshot.price(attempt, row)
        slack = max(0, snapshot.find_slack(attempt.job_id) - self._slack_used[attempt.job_id])
        missing = max(0, price - slack)
        if missing > self._left.get(account_id, 0):
            return False
        self._slack_used[attempt.job_id] += price - missing
        self._left[account_id] = self._left.get(account_id, 0) - missing
        return True


async def _open_purse(conn: Connection, failed: Iterable[AttemptId], snapshot: Snapshot) -> _Purse:
    """Read without locks: the books refuse what is not there, and the node reports again."""
    accounts = {snapshot.get_account_id(snapshot.attempts[id].job_id) for id in failed if id in snapshot.attempts}
    if not accounts:
        return _Purse({})
    balances = await ledger.get_balances(conn, [submitter_available(id) for id in accounts])
    return _Purse({id: balances[submitter_available(id)] for id in accounts})


def _judge(
    snapshot: Snapshot,
    present: Mapping[tuple[AccountId, bytes], int],
    purse: _Purse,
    intake: Intake,
    doubts: Doubts,
    report: Report,
) -> CompleteOutcome:
    completion, attempt_id = report.completion, report.attempt_id
    attempt = snapshot.attempts.get(attempt_id)
    if attempt is None or attempt.node_id != report.node_id:
        raise StaleLease("This node holds no such lease. Forget the attempt.")
    key = (attempt.job_id, attempt.slice_index)
    # A seat of a run has nothing to deliver: the run's owner ends it. Whoever ends it before has left.
    left = completion.cause is None and snapshot.is_seat(attempt_id)
    cause = Cause.OWNER_RETURNED if left else completion.cause
    claim = ReportedEnd(completion.exit_code, cause, report.sha256)
    slice_, siblings = snapshot.slices[key], snapshot.list_live(key, but=attempt_id)
    withheld = cause is None and intake.is_withheld(attempt_id)
    doubt = doubts.find(attempt, claim)
    decision = decide_report(slice_, attempt, siblings, claim, withheld=withheld, forgiven=doubt is not None)
    if isinstance(decision, Refusal):
        raise StaleLease(f"The result came too late: {decision.reason}. Forget the attempt.")
    if not decision.repeated:
        account_id, row = snapshot.get_account_id(attempt.job_id), to_row(report)
        if cause is None and (missing := check_outputs(completion, account_id, present)):
            raise missing
        if (
            cause is not None
            and decision.slice.state is SliceState.QUEUED
            and not snapshot.is_seat(attempt_id)
            and not purse.pays(snapshot, account_id, decision.attempts[0], row)
        ):
            decision = decide_last_report(slice_, attempt, siblings, claim)
            assert isinstance(decision, Decision)
        snapshot.take(decision, report=row)
        if doubt is not None and decision.slice.state is SliceState.QUEUED:
            doubts.take(attempt, account_id, doubt)
        if cause is None:
            intake.take(attempt, row.result_sha256, withheld=withheld)
    return CompleteOutcome(accepted=decision.accepted, repeated=decision.repeated)


async def record_beats(pool: Pool, beats: Sequence[Beat], *, lease_seconds: float) -> None:
    """Many beats at once: acknowledges new attempts, extends leases, remembers when nodes were heard."""
    held = [(attempt_id, beat.node_id) for beat in beats for attempt_id in beat.running]
    async with pool.acquire() as conn:
        if held:
            for passed_over in await attempt_store.extend_leases(conn, held, lease_seconds=lease_seconds):
                await attempt_store.extend_lease(conn, passed_over, lease_seconds=lease_seconds)
            unacknowledged = await attempt_store.list_unacknowledged(conn, held)
            if unacknowledged:
                await _acknowledge(conn, unacknowledged)
        await node_store.see_nodes(conn, {beat.node_id for beat in beats})


async def _acknowledge(conn: Connection, attempt_ids: Sequence[AttemptId]) -> None:
    async with conn.transaction():
        snapshot = await lock_snapshot(conn, attempt_ids)
        for attempt_id in attempt_ids:
            attempt = snapshot.attempts[attempt_id]
            decision = decide_acknowledgement(snapshot.slices[attempt.job_id, attempt.slice_index], attempt)
            if isinstance(decision, Decision):
                snapshot.take(decision)
        await snapshot.write(conn)


async def reap_leases(pool: Pool, *, grace_seconds: float, limit: int, on_end: OnEnd = ignore_end) -> int:
    """Gives away what silent nodes hold. Returns how many attempts were lost."""
    async with pool.acquire() as conn, conn.transaction():
        overdue = await attempt_store.list_overdue(conn, grace_seconds=grace_seconds, limit=limit)
        if not overdue:
            return 0
        snapshot = await lock_snapshot(conn, overdue)
        assert snapshot.now is not None
        last_moment = snapshot.now - timedelta(seconds=grace_seconds)
        # The node may have been heard between the look and the lock.
        lost = await take_losses(conn, snapshot, [id for id in overdue if snapshot.expires_at(id) <= last_moment])
        await snapshot.write(conn)
        await hub_store.notify(conn, "queue")
    on_end(snapshot.list_ended())
    await stop_poisonous(pool, snapshot.list_poisonous_jobs(), on_end=on_end)
    return lost


async def take_losses(conn: Connection, snapshot: Snapshot, attempt_ids: Sequence[AttemptId]) -> int:
    """Nobody is working on these any more. Returns how many that is news of."""
    lost = 0
    # What has saved nothing costs nothing: then there is no need to look at what anybody has.
    purse = await _open_purse(conn, [id for id in attempt_ids if snapshot.attempts[id].saved_seconds], snapshot)
    for attempt_id in attempt_ids:
        attempt = snapshot.attempts[attempt_id]
        slice_ = snapshot.slices[attempt.job_id, attempt.slice_index]
        decision = decide_loss(slice_, attempt, Cause.NODE_VANISHED)
        if not isinstance(decision, Decision):
            continue
        if decision.slice.state is SliceState.QUEUED and attempt.saved_seconds:
            account_id = snapshot.get_account_id(attempt.job_id)
            if not purse.pays(snapshot, account_id, decision.attempts[0], None):
                decision = decide_last_loss(slice_, attempt, Cause.NODE_VANISHED)
                assert isinstance(decision, Decision)
        snapshot.take(decision)
        lost += 1
    return lost


async def get_held(
    pool: Pool, keyring: Keyring, caller: NodeCaller, attempt_id: UUID, lease_secret: str
) -> HeldAttempt:
    """The attempt, if this node holds it and nobody has taken over."""
    async with pool.acquire() as conn:
        held = await attempt_store.find_held(conn, AttemptId(attempt_id))
    if (
        held is None
        or held.node_id != caller.node_id
        or not keyring.is_lease_secret(AttemptId(attempt_id), lease_secret)
    ):
        raise StaleLease("This node holds no such lease. Forget the attempt.")
    taken_over = held.state is AttemptState.LOST and held.newest_number > held.number
    if held.state in ATTEMPT_TERMINAL or taken_over:
        raise StaleLease("This attempt is over or has been taken over. Forget it.")
    return held


def find_input_size(held: HeldAttempt, sha256: str) -> int | None:
    for file in held.spec.get("files", []):
        if file["sha256"] == sha256:
            return int(file["size_bytes"])
    return None


async def record_output(pool: Pool, held: HeldAttempt, *, sha256: str, size_bytes: int) -> None:
    async with pool.acquire() as conn, conn.transaction():
        await artifact_store.record_artifact(
            conn, account_id=held.account_id, sha256=bytes.fromhex(sha256), size_bytes=size_bytes
        )


async def append_log(pool: Pool, settings: HubSettings, held: HeldAttempt, *, offset: int, content: bytes) -> int:
    """Stores what is new of a piece. Returns the offset from which the node should go on."""
    if len(content) > LOG_PIECE_BYTES_MAX:
        raise InvalidRequest(f"A piece of log has at most {LOG_PIECE_BYTES_MAX:,} bytes.")
    async with pool.acquire() as conn, conn.transaction():
        end = await log_store.lock_log_bytes(conn, held.id)
        if not 0 <= offset <= end:
            return end
        # The cap leaves room for the line in which the node says that it cut the log.
        room = settings.log_bytes_max + 1_024 - end
        fresh = content[end - offset :][: max(0, room)]
        if fresh:
            await log_store.append_chunk(conn, attempt_id=held.id, start_offset=end, content=fresh)
        return end + len(fresh)
