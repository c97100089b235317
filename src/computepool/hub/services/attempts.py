"""The end of attempts: completions, beats, silent nodes; and the files and logs that nodes send for them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import msgspec

from computepool import entropy
from computepool.core.errors import ComputePoolError, InvalidRequest, StaleLease
from computepool.core.ids import AccountId, AttemptId, JobId, NodeId
from computepool.core.jobs.cause import REPORTABLE, Cause
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
from computepool.core.jobs.manifest import manifest_sha256
from computepool.core.jobs.spec import is_safe_relative_path, is_sha256
from computepool.core.jobs.state import ATTEMPT_TERMINAL, AttemptState, SliceState
from computepool.core.ledger.accounts import submitter_available
from computepool.hub.config import HubSettings
from computepool.hub.services.callers import NodeCaller
from computepool.hub.services.keyring import Keyring
from computepool.hub.services.stops import stop_poisonous
from computepool.hub.services.transitions import OnEnd, Snapshot, ignore_end, lock_snapshot
from computepool.hub.store import artifacts as artifact_store
from computepool.hub.store import attempts as attempt_store
from computepool.hub.store import hub as hub_store
from computepool.hub.store import ledger
from computepool.hub.store import logs as log_store
from computepool.hub.store import nodes as node_store
from computepool.hub.store.attempts import HeldAttempt, ReceiptRow, ReportRow
from computepool.hub.store.connect import Connection, Pool
from computepool.hub.store.hub import ChangeKind
from computepool.wire.attempts import CompleteOutcome, Completion
from computepool.wire.jobs import OutputFile

OUTPUTS_MAX = 10_000
# Sums of it must stay numbers, whatever nodes say.
USAGE_SECONDS_MAX = 1e12
MESSAGE_LENGTH_MAX = 2_000
LOG_PIECE_BYTES_MAX = 262_144
RECEIPT_LENGTH_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Beat:
    node_id: NodeId
    running: frozenset[AttemptId]


@dataclass(frozen=True, slots=True)
class Report:
    """A node's checked word on the end of one attempt, on its way into the database."""

    node_id: NodeId
    completion: Completion
    sha256: bytes
    # The signed statement that covers it, shared by all reports of one call.
    receipt: ReceiptRow | None


def check_completions(
    keyring: Keyring, caller: NodeCaller, completions: Sequence[Completion], receipt: str
) -> list[Report | ComputePoolError]:
    """Everything that can be said about a call's reports without looking anything up.

    Whether the receipt holds is found out later, by a sweeper: it costs more than all the rest, and nothing that it
    guards happens before.
    """
    if len(receipt) > RECEIPT_LENGTH_MAX or "\0" in receipt:
        raise InvalidRequest(f"A receipt has at most {RECEIPT_LENGTH_MAX:,} characters, none of them NUL.")
    succeeded = any(completion.cause is None for completion in completions)
    if succeeded and receipt.count(".") != 2:
        raise InvalidRequest("A result needs a receipt: a JWT signed by the node; see the protocol page.")
    row = ReceiptRow(entropy.new_id(), caller.node_id, receipt) if succeeded else None
    return [_check_completion(keyring, caller, completion, row) for completion in completions]


def _check_completion(
    keyring: Keyring, caller: NodeCaller, completion: Completion, receipt: ReceiptRow | None
) -> Report | ComputePoolError:
    # A forged secret and another node's attempt look the same from outside.
    if not keyring.is_lease_secret(AttemptId(completion.attempt_id), completion.lease_secret):
        return StaleLease("This node holds no such lease. Forget the attempt.")
    fault = _find_fault(completion)
    if fault is not None:
        return InvalidRequest(fault)
    return Report(caller.node_id, completion, _digest(completion), receipt if completion.cause is None else None)


async def finish_attempts(
    pool: Pool,
    reports: Sequence[Report],
    *,
    on_end: OnEnd = ignore_end,
    then: Callable[[Connection], Awaitable[None]] | None = None,
) -> list[CompleteOutcome | ComputePoolError]:
    """Judges reports together, in one transaction. A refusal of one is a value and never spoils the others.

    `then` is done in the same transaction: whoever ends an attempt often wants the next one, and two commits would
    cost them twice the wait.
    """
    answers: list[CompleteOutcome | ComputePoolError] = []
    async with pool.acquire() as conn, conn.transaction():
        snapshot = await lock_snapshot(conn, (AttemptId(r.completion.attempt_id) for r in reports))
        present = await _list_outputs(conn, reports, snapshot)
        failed = [AttemptId(r.completion.attempt_id) for r in reports if r.completion.cause is not None]
        purse = await _open_purse(conn, failed, snapshot)
        kept: set[UUID] = set()
        for report in reports:
            try:
                outcome = _judge(snapshot, present, purse, report)
            except ComputePoolError as refusal:
                answers.append(refusal)
                continue
            answers.append(outcome)
            if report.receipt is not None and report.receipt.id not in kept and not outcome.repeated:
                kept.add(report.receipt.id)
                snapshot.keep_receipt(report.receipt)
        await snapshot.apply(conn)
        if then is not None:
            await then(conn)
        await snapshot.post(conn)
        if snapshot.has_stopped:
            await hub_store.record_change(conn, ChangeKind.CONTROLS)
    on_end(snapshot.list_ended())
    await stop_poisonous(pool, snapshot.list_poisonous_jobs(), on_end=on_end)
    return answers


async def _list_outputs(
    conn: Connection, reports: Sequence[Report], snapshot: Snapshot
) -> dict[tuple[AccountId, bytes], int]:
    wanted = []
    for report in reports:
        attempt = snapshot.attempts.get(AttemptId(report.completion.attempt_id))
        if attempt is not None and report.completion.outputs:
            account_id = snapshot.get_account_id(attempt.job_id)
            wanted += [(account_id, bytes.fromhex(output.sha256)) for output in report.completion.outputs]
    return await artifact_store.list_present(conn, wanted) if wanted else {}


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
    snapshot: Snapshot, present: Mapping[tuple[AccountId, bytes], int], purse: _Purse, report: Report
) -> CompleteOutcome:
    completion = report.completion
    attempt_id = AttemptId(completion.attempt_id)
    attempt = snapshot.attempts.get(attempt_id)
    if attempt is None or attempt.node_id != report.node_id:
        raise StaleLease("This node holds no such lease. Forget the attempt.")
    key = (attempt.job_id, attempt.slice_index)
    # A seat of a run has nothing to deliver: the run's owner ends it. Whoever ends it before has left.
    left = completion.cause is None and snapshot.is_seat(attempt_id)
    cause = Cause.OWNER_RETURNED if left else completion.cause
    claim = ReportedEnd(completion.exit_code, cause, report.sha256)
    slice_, siblings = snapshot.slices[key], snapshot.list_live(key, but=attempt_id)
    decision = decide_report(slice_, attempt, siblings, claim)
    if isinstance(decision, Refusal):
        raise StaleLease(f"The result came too late: {decision.reason}. Forget the attempt.")
    if not decision.repeated:
        account_id, row = snapshot.get_account_id(attempt.job_id), _to_row(report)
        if cause is None:
            _check_outputs(completion, account_id, present)
        elif (
            decision.slice.state is SliceState.QUEUED
            and not snapshot.is_seat(attempt_id)
            and not purse.pays(snapshot, account_id, decision.attempts[0], row)
        ):
            decision = decide_last_report(slice_, attempt, siblings, claim)
            assert isinstance(decision, Decision)
        snapshot.take(decision, report=row)
    return CompleteOutcome(accepted=decision.accepted, repeated=decision.repeated)


def _check_outputs(
    completion: Completion, account_id: AccountId, present: Mapping[tuple[AccountId, bytes], int]
) -> None:
    # One content may stand under several names, each with a size of its own to be checked.
    missing = [
        o.path for o in completion.outputs if present.get((account_id, bytes.fromhex(o.sha256))) != o.size_bytes
    ]
    if missing:
        raise InvalidRequest("Outputs were not uploaded, or with another size: " + ", ".join(sorted(missing)[:5]))


def _find_fault(completion: Completion) -> str | None:
    usage, outputs = completion.usage, completion.outputs
    if completion.cause is not None and completion.cause not in REPORTABLE:
        return f"A node cannot report the cause {completion.cause.value}."
    if completion.cause is None and completion.exit_code != 0:
        return "Success means exit_code 0; otherwise give a cause."
    if usage.run_seconds < 0 or usage.cpu_seconds < 0 or usage.memory_bytes_peak < 0:
        return "Usage cannot be negative."
    if max(usage.run_seconds, usage.cpu_seconds) > USAGE_SECONDS_MAX:
        return "Usage is more than any machine can have had."
    if completion.exit_code is not None and not -1_000 <= completion.exit_code <= 1_000:
        return "exit_code is out of any range that a program can end with."
    if outputs and (fault := _find_output_fault(outputs)):
        return fault
    if completion.cause is None and completion.result_sha256 != _manifest(outputs):
        return "result_sha256 is not the hash of the outputs' manifest; see the protocol page."
    return None


def _find_output_fault(outputs: Sequence[OutputFile]) -> str | None:
    if len(outputs) > OUTPUTS_MAX:
        return f"More than {OUTPUTS_MAX:,} output files; pack them into an archive."
    if not all(is_sha256(output.sha256) and output.size_bytes >= 0 for output in outputs):
        return "Every output needs its sha256 as 64 lower-case hex digits, and its size."
    paths = [output.path for output in outputs]
    if len(set(paths)) != len(paths) or not all(is_safe_relative_path(path) for path in paths):
        return "Output paths must be relative, without '..', each once."
    return None


_EMPTY_MANIFEST = manifest_sha256(())


def _manifest(outputs: Sequence[OutputFile]) -> str:
    return manifest_sha256((o.path, o.sha256) for o in outputs) if outputs else _EMPTY_MANIFEST


def _digest(completion: Completion) -> bytes:
    """What makes two completions the same. The boot may differ: the agent may have restarted in between."""
    same = (
        completion.attempt_id,
        completion.exit_code,
        completion.cause,
        completion.result_sha256,
        [(o.path, o.sha256) for o in completion.outputs],
    )
    return hashlib.sha256(msgspec.json.encode(same)).digest()


def _to_row(report: Report) -> ReportRow:
    completion = report.completion
    return ReportRow(
        exit_code=completion.exit_code,
        message=completion.message[:MESSAGE_LENGTH_MAX].replace("\0", ""),
        run_seconds=completion.usage.run_seconds,
        cpu_seconds=completion.usage.cpu_seconds,
        memory_bytes_peak=min(completion.usage.memory_bytes_peak, 1 << 62),
        outputs=[msgspec.to_builtins(output) for output in completion.outputs],
        result_sha256=bytes.fromhex(completion.result_sha256) if completion.cause is None else None,
        receipt_id=report.receipt.id if report.receipt is not None else None,
    )


async def record_beats(pool: Pool, beats: Sequence[Beat], *, lease_seconds: float) -> None:
    """Many beats at once: acknowledges new attempts, extends leases, remembers when nodes were heard."""
    held = sorted((attempt_id, beat.node_id) for beat in beats for attempt_id in beat.running)
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
