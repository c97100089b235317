"""Checkpoints of slices: accepted from whoever holds the slice, and handed to whoever holds it next."""

from __future__ import annotations

from computepool.core.errors import InvalidRequest, NotFound, StaleLease
from computepool.core.ids import AttemptId
from computepool.core.jobs.checkpoint import Claim, Refusal, SavedFile, decide_checkpoint, find_fault
from computepool.hub.services.attempts import find_input_size
from computepool.hub.store import artifacts as artifact_store
from computepool.hub.store import job_checkpoints as store
from computepool.hub.store import slices as slice_store
from computepool.hub.store.attempts import HeldAttempt
from computepool.hub.store.connect import Connection, Pool
from computepool.wire.attempts import Checkpoint, CheckpointAnswer


async def save_checkpoint(pool: Pool, held: HeldAttempt, checkpoint: Checkpoint) -> CheckpointAnswer:
    """Counts only whole: with every file there, by its hash and size, in the submitter's own store."""
    claim = Claim(
        number=checkpoint.number,
        run_seconds=checkpoint.run_seconds,
        files=tuple(SavedFile(f.path, f.sha256, f.size_bytes) for f in checkpoint.files),
        progress=checkpoint.progress,
    )
    fault = find_fault(claim)
    if fault is not None:
        raise InvalidRequest(fault)
    async with pool.acquire() as conn, conn.transaction():
        missing = await _list_missing(conn, held, claim)
        if missing:
            return CheckpointAnswer(accepted=False, missing=missing)
        saved_seconds = await _save(conn, held.id, claim)
    return CheckpointAnswer(accepted=True, saved_seconds=saved_seconds)


async def _save(conn: Connection, attempt_id: AttemptId, claim: Claim) -> int:
    # Slices before attempts, like everywhere.
    await slice_store.lock_slices_of_attempts(conn, {attempt_id})
    locked = await store.lock_attempt(conn, attempt_id)
    assert locked is not None
    decision = decide_checkpoint(locked.standing, claim)
    if isinstance(decision, Refusal):
        if decision.is_stale:
            raise StaleLease(f"The checkpoint came too late: {decision.reason}. Forget the attempt.")
        raise InvalidRequest(f"The checkpoint does not count: {decision.reason}")
    if decision.is_news:
        await store.save_checkpoint(
            conn, attempt_id=attempt_id, locked=locked, claim=claim, saved_seconds=decision.saved_seconds
        )
    return decision.saved_seconds


async def _list_missing(conn: Connection, held: HeldAttempt, claim: Claim) -> list[str]:
    wanted = [(held.account_id, bytes.fromhex(file.sha256)) for file in claim.files]
    present = await artifact_store.list_present(conn, wanted)
    wrong = [
        file.path
        for file in claim.files
        if present.get((held.account_id, bytes.fromhex(file.sha256)), file.size_bytes) != file.size_bytes
    ]
    if wrong:
        raise InvalidRequest("Files of the checkpoint have another size: " + ", ".join(sorted(wrong)[:5]))
    return sorted(
        {file.sha256 for file in claim.files if (held.account_id, bytes.fromhex(file.sha256)) not in present}
    )


async def find_kept(pool: Pool, held: HeldAttempt) -> store.KeptFiles | None:
    """What the attempt goes on from."""
    async with pool.acquire() as conn:
        return await store.find_kept(conn, job_id=held.job_id, slice_index=held.slice_index)


async def get_input_size(pool: Pool, held: HeldAttempt, sha256: str) -> int:
    """Through its lease an attempt reads the inputs of its job and the checkpoint of its slice, and nothing else."""
    size_bytes = find_input_size(held, sha256)
    if size_bytes is not None:
        return size_bytes
    kept = await find_kept(pool, held)
    for file in kept.files if kept is not None else ():
        if file.sha256 == sha256:
            return file.size_bytes
    raise NotFound("The job has no such input.")
