"""Results that are checked, the runs that were asked for because of them, and where nodes stand by it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from computepool.core.ids import AccountId, AttemptId, JobId, NodeId, ShapeId
from computepool.core.jobs.state import AttemptState, JobState
from computepool.core.trust.inspection import CheckOutcome, CheckState
from computepool.core.trust.reputation import Integrity
from computepool.core.trust.standing import NodeTrust, Standing, TrustEffect
from computepool.core.trust.validation import Verify
from computepool.hub.store.connect import Connection
from computepool.hub.store.nodes import OfferedSlot, to_offered
from computepool.hub.store.queries import load_queries

_q = load_queries("validation")


@dataclass(frozen=True, slots=True)
class CheckedReport:
    """A delivered attempt of a job whose results are checked."""

    verify: Verify
    nondeterministic: bool
    trust: NodeTrust


@dataclass(frozen=True, slots=True)
class NewCheck:
    attempt_id: AttemptId
    job_id: JobId
    slice_index: int
    node_id: NodeId
    mode: Verify
    withheld: bool
    retro: bool = False


@dataclass(frozen=True, slots=True)
class NewWatch:
    """A result of a job whose runs differ by themselves, for which its node is to be watched."""

    attempt_id: AttemptId
    job_id: JobId
    node_id: NodeId


@dataclass(frozen=True, slots=True)
class Watch:
    attempt_id: AttemptId
    job_id: JobId
    node_id: NodeId
    submitter_id: AccountId
    opened_at: datetime
    now: datetime


@dataclass(frozen=True, slots=True)
class StoredRun:
    """One run of the slice that is checked."""

    # Of the run itself; for the result that is checked, the job that it belongs to.
    job_id: JobId
    attempt_id: AttemptId
    node_id: NodeId
    owner_id: AccountId
    state: AttemptState
    job_state: JobState
    finished_at: datetime | None
    outputs: list[dict[str, Any]]
    result_sha256: bytes | None
    # Where its node calls from; None: not known.
    network: str | None
    # What its node has told, and which slot of it ran it.
    hardware: dict[str, Any]
    slot: str


@dataclass(frozen=True, slots=True)
class StoredCheck:
    attempt_id: AttemptId
    job_id: JobId
    slice_index: int
    mode: Verify
    withheld: bool
    retro: bool
    state: CheckState
    outcome: CheckOutcome | None
    opened_at: datetime
    asked_count: int
    verdicts: dict[AttemptId, bool | None]
    # What is checked is the run of a node that was watched, not a result of the job.
    is_trial: bool
    # Of the job.
    submitter_id: AccountId
    spec: dict[str, Any]
    shape_id: ShapeId
    wall_seconds: int
    reserve_microcredits: int
    slice_base_microcredits: int | None
    nondeterministic: bool
    now: datetime
    # The result itself first.
    runs: tuple[StoredRun, ...]


@dataclass(frozen=True, slots=True)
class FreeSlot:
    offered: OfferedSlot
    trust: NodeTrust
    network: str | None
    hardware: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ResultGroup:
    """Delivered slices of a job that came from one node, and were checked alike."""

    node_id: NodeId
    # None: they were not checked.
    outcome: CheckOutcome | None
    count: int


@dataclass(frozen=True, slots=True)
class EndedTrial:
    run: StoredRun
    # Whose result it has to equal.
    subject_id: AttemptId
    # The job whose node is watched by it; None: the node is on its way back.
    watched_job_id: JobId | None


@dataclass(frozen=True, slots=True)
class PendingEffect:
    """What is still to be done about a node."""

    id: int
    node_id: NodeId
    effect: TrustEffect


@dataclass(frozen=True, slots=True)
class DistrustedNode:
    node_id: NodeId
    node_name: str
    owner_id: AccountId
    trust: NodeTrust


async def list_checked(conn: Connection, ids: Collection[AttemptId]) -> dict[AttemptId, CheckedReport]:
    return {
        row["attempt_id"]: CheckedReport(Verify(row["verify"]), row["nondeterministic"], to_trust(row))
        async for row in _q.list_checked(conn, ids=sorted(ids))
    }


async def insert_checks(conn: Connection, checks: Sequence[NewCheck]) -> None:
    await _q.insert_checks(
        conn,
        attempt_ids=[c.attempt_id for c in checks],
        job_ids=[c.job_id for c in checks],
        slice_indexes=[c.slice_index for c in checks],
        node_ids=[c.node_id for c in checks],
        modes=[c.mode for c in checks],
        withheld=[c.withheld for c in checks],
        retro=[c.retro for c in checks],
    )


async def insert_watches(conn: Connection, watches: Sequence[NewWatch], *, waiting_max: int) -> None:
    await _q.insert_watches(
        conn,
        attempt_ids=[w.attempt_id for w in watches],
        job_ids=[w.job_id for w in watches],
        node_ids=[w.node_id for w in watches],
        waiting_max=waiting_max,
    )


async def take_watches(conn: Connection, *, seconds: float, limit: int) -> list[Watch]:
    return [Watch(**row) async for row in _q.take_watches(conn, seconds=seconds, limit_count=limit)]


async def watch_again(conn: Connection, attempt_id: AttemptId, *, seconds: float) -> None:
    await _q.watch_again(conn, attempt_id=attempt_id, seconds=seconds)


async def delete_watch(conn: Connection, attempt_id: AttemptId) -> None:
    await _q.delete_watch(conn, attempt_id=attempt_id)


async def open_retro_checks(conn: Connection, node_id: NodeId, *, limit: int) -> None:
    await _q.open_retro_checks(conn, node_id=node_id, limit_count=limit)


async def take_checks(conn: Connection, *, seconds: float, limit: int) -> list[AttemptId]:
    return [row["attempt_id"] async for row in _q.take_checks(conn, seconds=seconds, limit_count=limit)]


async def find_check(conn: Connection, attempt_id: AttemptId) -> StoredCheck | None:
    row = await _q.find_check(conn, attempt_id=attempt_id)
    if not row:
        return None
    first = StoredRun(
        row["job_id"],
        attempt_id,
        row["node_id"],
        row["owner_id"],
        AttemptState.SUCCEEDED,
        JobState.SUCCEEDED,
        row["finished_at"],
        row["outputs"],
        row["result_sha256"],
        row["network"],
        row["hardware"],
        row["slot"],
    )
    others = [_to_run(each) async for each in _q.list_runs(conn, attempt_id=attempt_id)]
    return StoredCheck(
        attempt_id=attempt_id,
        job_id=row["job_id"],
        slice_index=row["slice_index"],
        mode=Verify(row["mode"]),
        withheld=row["withheld"],
        retro=row["retro"],
        state=CheckState(row["state"]),
        outcome=CheckOutcome(row["outcome"]) if row["outcome"] else None,
        opened_at=row["opened_at"],
        asked_count=row["asked_count"],
        verdicts={AttemptId(UUID(id)): verdict for id, verdict in row["verdicts"].items()},
        is_trial=row["is_trial"],
        submitter_id=row["submitter_id"],
        spec=row["spec"],
        shape_id=row["shape_id"],
        wall_seconds=row["wall_seconds"],
        reserve_microcredits=row["reserve_microcredits"],
        slice_base_microcredits=row["slice_base_microcredits"],
        nondeterministic=row["nondeterministic"],
        now=row["now"],
        runs=(first, *others),
    )


async def look_again(conn: Connection, attempt_id: AttemptId, *, seconds: float) -> None:
    await _q.look_again(conn, attempt_id=attempt_id, seconds=seconds)


async def ask_runs(conn: Connection, attempt_id: AttemptId, *, count: int, seen: int) -> bool:
    """False: somebody else has asked meanwhile, or it is decided."""
    return bool(await _q.ask_runs(conn, attempt_id=attempt_id, count=count, seen=seen))


async def insert_check_job(
    conn: Connection,
    check: StoredCheck,
    *,
    id: JobId,
    shape_id: ShapeId,
    reserve_microcredits: int,
    spec: dict[str, Any] | None = None,
) -> None:
    """Runs the slice once more; or, with a spec, that in its place."""
    await _q.insert_check_job(
        conn,
        id=id,
        job_id=check.job_id,
        slice_index=check.slice_index,
        attempt_id=check.attempt_id,
        shape_id=shape_id,
        reserve=reserve_microcredits,
        spec=spec,
    )


async def list_free_slots(
    conn: Connection,
    *,
    submitter_id: AccountId,
    standings: Collection[Standing],
    trusted: bool,
    validated_min: int,
    silence_seconds: float,
    limit: int,
    node_id: NodeId | None = None,
) -> list[FreeSlot]:
    """Of nodes that stand so; with `trusted` only of those that may be, by what was validated of them."""
    rows = _q.list_free_slots(
        conn,
        submitter_id=submitter_id,
        standings=list(standings),
        node_id=node_id,
        trusted=trusted,
        validated_min=validated_min,
        silence_seconds=silence_seconds,
        limit_count=limit,
    )
    return [FreeSlot(to_offered(row), to_trust(row), row["network"], row["hardware"]) async for row in rows]


async def lock_trust(conn: Connection, node_ids: Iterable[NodeId]) -> dict[NodeId, NodeTrust]:
    """Of all of them: a node that nothing is known of has a row from then on."""
    ids = sorted(node_ids)
    await _q.insert_trust(conn, node_ids=ids)
    return {row["node_id"]: to_trust(row) async for row in _q.lock_trust(conn, node_ids=ids)}


async def list_trust(conn: Connection, node_ids: Iterable[NodeId]) -> dict[NodeId, NodeTrust]:
    """Of those that anything is known of."""
    return {row["node_id"]: to_trust(row) async for row in _q.list_trust(conn, node_ids=sorted(node_ids))}


async def put_trust(conn: Connection, node_id: NodeId, trust: NodeTrust) -> None:
    await _q.put_trust(
        conn,
        node_id=node_id,
        right_weight=trust.integrity.right,
        wrong_weight=trust.integrity.wrong,
        validated_count=trust.integrity.validated_count,
        counted_at=trust.integrity.counted_at,
        standing=trust.standing,
        since=trust.since,
        wrong_at=list(trust.wrong_at),
        bugged_count=trust.bugged_count,
        returning_left=trust.returning_left,
        is_vouched=trust.is_vouched,
        serving_since=trust.serving_since,
    )


async def rule_check(
    conn: Connection,
    attempt_id: AttemptId,
    *,
    outcome: CheckOutcome,
    verdicts: Mapping[AttemptId, bool | None],
) -> bool:
    """False: somebody else has ruled meanwhile."""
    return bool(
        await _q.rule_check(
            conn,
            attempt_id=attempt_id,
            outcome=outcome,
            verdicts={str(id): verdict for id, verdict in verdicts.items()},
        )
    )


async def close_check(conn: Connection, attempt_id: AttemptId) -> None:
    await _q.close_check(conn, attempt_id=attempt_id)


async def insert_effects(conn: Connection, effects: Sequence[tuple[NodeId, TrustEffect]]) -> None:
    node_ids, kinds = [node_id for node_id, _ in effects], [effect for _, effect in effects]
    await _q.insert_effects(conn, node_ids=node_ids, effects=kinds)


async def take_effects(conn: Connection, *, seconds: float, limit: int) -> list[PendingEffect]:
    rows = _q.take_effects(conn, seconds=seconds, limit_count=limit)
    return [PendingEffect(row["id"], row["node_id"], TrustEffect(row["effect"])) async for row in rows]


async def delete_effect(conn: Connection, id: int) -> None:
    await _q.delete_effect(conn, id=id)


async def set_nondeterministic(conn: Connection, id: JobId) -> None:
    await _q.set_nondeterministic(conn, id=id)


async def is_wrong_result(conn: Connection, check: StoredCheck) -> bool:
    """Whether the slice still has the result that was found wrong; locks it."""
    found = await _q.is_wrong_result(
        conn, attempt_id=check.attempt_id, job_id=check.job_id, slice_index=check.slice_index
    )
    return bool(found)


async def copy_result(
    conn: Connection, check: StoredCheck, *, id: AttemptId, right_id: AttemptId, message: str
) -> None:
    await _q.copy_result(
        conn, id=id, right_id=right_id, job_id=check.job_id, slice_index=check.slice_index, message=message
    )


async def replace_result(conn: Connection, check: StoredCheck, *, accepted_id: AttemptId) -> None:
    await _q.replace_result(
        conn,
        accepted_id=accepted_id,
        wrong_id=check.attempt_id,
        job_id=check.job_id,
        slice_index=check.slice_index,
    )


async def list_unreleased(conn: Connection, node_id: NodeId, *, limit: int) -> list[AttemptId]:
    return [row["id"] async for row in _q.list_unreleased(conn, node_id=node_id, limit_count=limit)]


async def list_bugged(conn: Connection, *, limit: int) -> list[NodeId]:
    return [row["node_id"] async for row in _q.list_bugged(conn, limit_count=limit)]


async def list_returning(conn: Connection, *, silence_seconds: float, limit: int) -> list[NodeId]:
    rows = _q.list_returning(conn, silence_seconds=silence_seconds, limit_count=limit)
    return [row["node_id"] async for row in rows]


async def list_subjects(
    conn: Connection, node_id: NodeId, *, submitter_id: AccountId | None, looked_at_max: int, limit: int
) -> list[AttemptId]:
    """Results that are known to be right and that the node could be tried with; of one submitter's if named."""
    if submitter_id is None:
        rows = _q.list_subjects(conn, node_id=node_id, looked_at_max=looked_at_max, limit_count=limit)
    else:
        rows = _q.list_subjects_of(
            conn, node_id=node_id, submitter_id=submitter_id, looked_at_max=looked_at_max, limit_count=limit
        )
    return [row["attempt_id"] async for row in rows]


async def insert_trial(
    conn: Connection, *, job_id: JobId, node_id: NodeId, attempt_id: AttemptId, watched_job_id: JobId | None
) -> bool:
    """False: the node is tried by another hub at this moment."""
    return bool(
        await _q.insert_trial(
            conn, job_id=job_id, node_id=node_id, attempt_id=attempt_id, watched_job_id=watched_job_id
        )
    )


async def list_ended_trials(conn: Connection, *, limit: int) -> list[EndedTrial]:
    rows = _q.list_ended_trials(conn, limit_count=limit)
    return [EndedTrial(_to_run(row), row["subject_id"], row["watched_job_id"]) async for row in rows]


async def close_trial(conn: Connection, job_id: JobId, *, was_right: bool | None) -> bool:
    """False: somebody else has."""
    return bool(await _q.close_trial(conn, job_id=job_id, was_right=was_right))


async def list_recent_verdicts(
    conn: Connection, node_ids: Collection[NodeId], *, limit: int
) -> dict[NodeId, list[tuple[datetime, bool | None]]]:
    """By node, newest first, no more than so many of each."""
    found: dict[NodeId, list[tuple[datetime, bool | None]]] = {id: [] for id in node_ids}
    async for row in _q.list_recent_verdicts(conn, node_ids=sorted(node_ids), limit_count=limit):
        found[row["node_id"]].append((row["at"], row["right"]))
    return found


async def list_distrusted(conn: Connection, *, before: NodeId | None, limit: int) -> list[DistrustedNode]:
    """Nodes that are not clear; those whose standing has changed last come first."""
    rows = _q.list_distrusted(conn, before=before, limit_count=limit)
    return [DistrustedNode(row["node_id"], row["node_name"], row["owner_id"], to_trust(row)) async for row in rows]


async def list_result_groups(conn: Connection, job_id: JobId) -> list[ResultGroup]:
    rows = _q.list_result_groups(conn, job_id=job_id)
    return [
        # A check that is under way says nothing yet.
        ResultGroup(row["node_id"], CheckOutcome(row["outcome"]) if row["closed"] else None, row["count"])
        async for row in rows
    ]


async def sum_check_jobs(conn: Connection, job_id: JobId) -> tuple[int, int]:
    """How many runs were made to check the job's results, and what they have cost."""
    row = await _q.sum_check_jobs(conn, job_id=job_id)
    return row["count"], row["microcredits"]


def _to_run(row: Any) -> StoredRun:
    return StoredRun(
        row["job_id"],
        row["attempt_id"],
        row["node_id"],
        row["owner_id"],
        AttemptState(row["state"]),
        JobState(row["job_state"]),
        row["finished_at"],
        row["outputs"],
        row["result_sha256"],
        row["network"],
        row["hardware"],
        row["slot"],
    )


def to_trust(row: Any) -> NodeTrust:
    """Of a row, or of the empty side of an outer join."""
    if row["standing"] is None:
        return NodeTrust()
    return NodeTrust(
        integrity=Integrity(row["right_weight"], row["wrong_weight"], row["validated_count"], row["counted_at"]),
        standing=Standing(row["standing"]),
        since=row["since"],
        wrong_at=tuple(row["wrong_at"]),
        bugged_count=row["bugged_count"],
        returning_left=row["returning_left"],
        is_vouched=row["is_vouched"],
        serving_since=row["serving_since"],
    )
