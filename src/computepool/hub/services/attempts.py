"""The end of attempts: completions, beats, silent nodes; and the files and logs that nodes send for them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from computepool.core.errors import ComputePoolError, InvalidRequest, NotFound, StaleLease
from computepool.core.ids import AccountId, AttemptId, NodeId
from computepool.core.jobs.cause import REPORTABLE, Cause
from computepool.core.jobs.lease import Decision, Refusal, Report, decide_acknowledgement, decide_loss, decide_report
from computepool.core.jobs.manifest import manifest_sha256
from computepool.core.jobs.spec import is_safe_relative_path, is_sha256
from computepool.core.jobs.state import ATTEMPT_TERMINAL, AttemptState
from computepool.hub.config import HubSettings
from computepool.hub.services.callers import NodeCaller
from computepool.hub.services.keyring import Keyring
from computepool.hub.services.receipts import verify_receipt
from computepool.hub.services.transitions import Snapshot, lock_snapshot
from computepool.hub.store import artifacts as artifact_store
from computepool.hub.store import attempts as attempt_store
from computepool.hub.store import hub as hub_store
from computepool.hub.store import logs as log_store
from computepool.hub.store import nodes as node_store
from computepool.hub.store.attempts import HeldAttempt, Reported, ReportRow
from computepool.hub.store.connect import Connection, Pool
from computepool.hub.store.slices import SliceKey
from computepool.wire.attempts import CompleteAnswer, CompleteRequest

OUTPUTS_MAX = 10_000
MESSAGE_LENGTH_MAX = 2_000
LOG_PIECE_BYTES_MAX = 262_144


@dataclass(frozen=True, slots=True)
class Beat:
    node_id: NodeId
    running: frozenset[AttemptId]


@dataclass(frozen=True, slots=True)
class Completion:
    """A node's checked report of an attempt's end, on its way into the database."""

    node_id: NodeId
    request: CompleteRequest


def check_completion(keyring: Keyring, caller: NodeCaller, request: CompleteRequest) -> Completion:
    """Everything that can be said about a report without looking anything up."""
    # A forged secret and another node's attempt look the same from outside.
    if not keyring.is_lease_secret(AttemptId(request.attempt_id), request.lease_secret):
        raise StaleLease("This node holds no such lease. Forget the attempt.")
    _check_report(request)
    if request.cause is None:
        if request.result_sha256 != manifest_sha256((o.path, o.sha256) for o in request.outputs):
            raise InvalidRequest("result_sha256 is not the hash of the outputs' manifest; see the protocol page.")
        verify_receipt(
            request.receipt,
            Ed25519PublicKey.from_public_bytes(caller.public_key),
            hub_id=keyring.hub_id,
            node_id=caller.node_id,
            attempt_id=request.attempt_id,
            result_sha256=request.result_sha256,
        )
    return Completion(caller.node_id, request)


async def finish_attempts(pool: Pool, completions: Sequence[Completion]) -> list[CompleteAnswer | ComputePoolError]:
    """Judges completions together, in one transaction. A refusal of one is a value and never spoils the others."""
    answers: list[CompleteAnswer | ComputePoolError] = []
    async with pool.acquire() as conn, conn.transaction():
        reported = await attempt_store.list_reported(conn, {AttemptId(c.request.attempt_id) for c in completions})
        snapshot = await lock_snapshot(conn, (r.key for r in reported.values()), attempt_ids=reported)
        present = await _list_outputs(conn, completions, reported)
        rows: list[ReportRow] = []
        for completion in completions:
            try:
                answer, row = _judge(snapshot, reported, present, completion)
            except ComputePoolError as refusal:
                answers.append(refusal)
                continue
            answers.append(answer)
            rows += [row] if row else []
        if rows:
            await attempt_store.record_reports(conn, rows)
        await snapshot.write(conn)
        if snapshot.has_stopped:
            await hub_store.notify(conn, "controls")
    return answers


async def _list_outputs(
    conn: Connection, completions: Sequence[Completion], reported: Mapping[AttemptId, Reported]
) -> dict[tuple[AccountId, bytes], int]:
    wanted = [
        (reported[AttemptId(c.request.attempt_id)].account_id, bytes.fromhex(output.sha256))
        for c in completions
        if AttemptId(c.request.attempt_id) in reported
        for output in c.request.outputs
    ]
    return await artifact_store.list_present(conn, wanted) if wanted else {}


def _judge(
    snapshot: Snapshot,
    reported: Mapping[AttemptId, Reported],
    present: Mapping[tuple[AccountId, bytes], int],
    completion: Completion,
) -> tuple[CompleteAnswer, ReportRow | None]:
    """The answer, and what is to be recorded of the report unless it was given before."""
    request = completion.request
    attempt_id = AttemptId(request.attempt_id)
    attempt = snapshot.attempts.get(attempt_id)
    if attempt is None or attempt.node_id != completion.node_id:
        raise StaleLease("This node holds no such lease. Forget the attempt.")
    key = reported[attempt_id].key
    report = Report(request.exit_code, request.cause, _digest(request))
    decision = decide_report(snapshot.slices[key], attempt, snapshot.list_live(key, but=attempt_id), report)
    if isinstance(decision, Refusal):
        raise StaleLease(f"The result came too late: {decision.reason}. Forget the attempt.")
    answer = CompleteAnswer(accepted=decision.accepted, repeated=decision.repeated)
    if decision.repeated:
        return answer, None
    if request.cause is None:
        _check_outputs(request, reported[attempt_id].account_id, present)
    snapshot.take(decision)
    return answer, _to_row(request)


def _check_outputs(
    request: CompleteRequest, account_id: AccountId, present: Mapping[tuple[AccountId, bytes], int]
) -> None:
    # One content may stand under several names, each with a size of its own to be checked.
    missing = [o.path for o in request.outputs if present.get((account_id, bytes.fromhex(o.sha256))) != o.size_bytes]
    if missing:
        raise InvalidRequest("Outputs were not uploaded, or with another size: " + ", ".join(sorted(missing)[:5]))


def _check_report(request: CompleteRequest) -> None:
    if request.cause is not None and request.cause not in REPORTABLE:
        raise InvalidRequest(f"A node cannot report the cause {request.cause.value}.")
    if request.cause is None and request.exit_code != 0:
        raise InvalidRequest("Success means exit_code 0; otherwise give a cause.")
    if len(request.outputs) > OUTPUTS_MAX:
        raise InvalidRequest(f"More than {OUTPUTS_MAX:,} output files; pack them into an archive.")
    if request.usage.run_seconds < 0 or request.usage.cpu_seconds < 0 or request.usage.memory_bytes_peak < 0:
        raise InvalidRequest("Usage cannot be negative.")
    if request.exit_code is not None and not -1_000 <= request.exit_code <= 1_000:
        raise InvalidRequest("exit_code is out of any range that a program can end with.")
    if "\0" in request.receipt:
        # Stored unread with a failure: the database would refuse it, and with it the whole batch.
        raise InvalidRequest("The receipt contains a NUL character.")
    if not all(is_sha256(output.sha256) and output.size_bytes >= 0 for output in request.outputs):
        raise InvalidRequest("Every output needs its sha256 as 64 lower-case hex digits, and its size.")
    paths = [output.path for output in request.outputs]
    if len(set(paths)) != len(paths) or not all(is_safe_relative_path(path) for path in paths):
        raise InvalidRequest("Output paths must be relative, without '..', each once.")


def _digest(request: CompleteRequest) -> bytes:
    """What makes two completions the same. The boot may differ: the agent may have restarted in between."""
    same = (
        request.attempt_id,
        request.exit_code,
        request.cause,
        request.result_sha256,
        [(o.path, o.sha256) for o in request.outputs],
    )
    return hashlib.sha256(msgspec.json.encode(same)).digest()


def _to_row(request: CompleteRequest) -> ReportRow:
    return ReportRow(
        id=AttemptId(request.attempt_id),
        exit_code=request.exit_code,
        message=request.message[:MESSAGE_LENGTH_MAX].replace("\0", ""),
        run_seconds=request.usage.run_seconds,
        cpu_seconds=request.usage.cpu_seconds,
        memory_bytes_peak=min(request.usage.memory_bytes_peak, 1 << 62),
        outputs=[msgspec.to_builtins(output) for output in request.outputs],
        result_sha256=bytes.fromhex(request.result_sha256) if request.cause is None else None,
        receipt=request.receipt or None,
    )


async def record_beats(pool: Pool, beats: Sequence[Beat], *, lease_seconds: float) -> None:
    """Many beats at once: acknowledges new attempts, extends leases, remembers when nodes were heard."""
    held = sorted((attempt_id, beat.node_id) for beat in beats for attempt_id in beat.running)
    async with pool.acquire() as conn:
        if held:
            async with conn.transaction():
                await attempt_store.extend_leases(conn, held, lease_seconds=lease_seconds)
            unacknowledged = await attempt_store.list_unacknowledged(conn, held)
            if unacknowledged:
                await _acknowledge(conn, unacknowledged)
        await node_store.see_nodes(conn, {beat.node_id for beat in beats})


async def _acknowledge(conn: Connection, keys: Mapping[AttemptId, SliceKey]) -> None:
    async with conn.transaction():
        snapshot = await lock_snapshot(conn, keys.values(), attempt_ids=keys)
        for attempt_id, key in keys.items():
            decision = decide_acknowledgement(snapshot.slices[key], snapshot.attempts[attempt_id])
            if isinstance(decision, Decision):
                snapshot.take(decision)
        await snapshot.write(conn)


async def reap_leases(pool: Pool, *, grace_seconds: float, limit: int) -> int:
    """Gives away what silent nodes hold. Returns how many attempts were lost."""
    async with pool.acquire() as conn, conn.transaction():
        overdue = await attempt_store.list_overdue(conn, grace_seconds=grace_seconds, limit=limit)
        if not overdue:
            return 0
        snapshot = await lock_snapshot(conn, overdue.values(), attempt_ids=overdue)
        now = await hub_store.get_now(conn)
        lost = 0
        for attempt_id, key in overdue.items():
            # The node may have been heard between the look and the lock.
            if snapshot.expires_at[attempt_id] > now - timedelta(seconds=grace_seconds):
                continue
            decision = decide_loss(snapshot.slices[key], snapshot.attempts[attempt_id], Cause.NODE_VANISHED)
            if isinstance(decision, Decision):
                snapshot.take(decision)
                lost += 1
        await snapshot.write(conn)
        await hub_store.notify(conn, "queue")
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


def get_input_size(held: HeldAttempt, sha256: str) -> int:
    """Only the job's own inputs can be read through its lease."""
    for file in held.spec.get("files", []):
        if file["sha256"] == sha256:
            return int(file["size_bytes"])
    raise NotFound("The job has no such input.")


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
