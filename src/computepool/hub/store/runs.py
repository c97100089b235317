"""Runs of networks: who owns them, where their VNodes live, what they leave behind."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from computepool.core.ids import AccountId, AttemptId, JobId, NetworkId, NodeId, RunId
from computepool.core.networks.placement import Location, SeatId
from computepool.core.networks.run import OVER, FeedKind, Run, RunState, Seat
from computepool.hub.store.connect import Connection
from computepool.hub.store.queries import load_queries

_q = load_queries("runs")

REPORTS_LOADED_MAX = 100_000


@dataclass(frozen=True, slots=True)
class DataItem:
    """A content that a run reads its samples from."""

    sha256: str
    size_bytes: int
    format: str


@dataclass(frozen=True, slots=True)
class RunRow:
    id: RunId
    network_id: NetworkId
    network_name: str
    account_id: AccountId
    job_id: JobId
    state: RunState
    owner_id: UUID | None
    owner_address: str
    owner_until: datetime | None
    epoch: int
    steps: int
    step: int
    checkpoint_step: int
    reports_from_epoch: int
    numeric_class: str
    inexact_from_step: int
    recoveries: int
    message: str
    options: dict[str, Any]
    data: tuple[DataItem, ...]
    created_at: datetime
    expires_at: datetime
    stop_asked_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """All that is stored of a run, for whoever owns it from now on."""

    row: RunRow
    # Of its network, as canonical JSON.
    spec: str
    seconds_left: float
    seats: dict[SeatId, Seat]
    slice_indexes: dict[SeatId, int]
    locations: tuple[Location, ...]
    # By step beyond the last checkpoint: who has stored it.
    reported: dict[int, frozenset[str]]


@dataclass(frozen=True, slots=True)
class SeatRow:
    """A seat as its host needs it."""

    run_id: RunId
    seat: SeatId
    node_id: NodeId
    numeric_class: str
    owner_id: UUID | None
    owner_address: str
    # Its lease has not run out.
    is_owned: bool
    epoch: int
    state: RunState
    data: tuple[DataItem, ...]
    account_id: AccountId


@dataclass(frozen=True, slots=True)
class NewLine:
    """Of the feed."""

    kind: FeedKind
    epoch: int
    step: int
    message: str


@dataclass(frozen=True, slots=True)
class FeedLine:
    id: int
    at: datetime
    kind: FeedKind
    epoch: int
    step: int
    message: str
    # Of a step: the bits of its loss.
    loss_bits: int | None
    samples_per_second: float


@dataclass(frozen=True, slots=True)
class Metric:
    step: int
    epoch: int
    loss_bits: int
    samples_per_second: float
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """What one VNode stored of a step."""

    step: int
    vnode_id: str
    epoch: int
    sha256: bytes
    size_bytes: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Checkpoint:
    step: int
    first_at: datetime
    complete_at: datetime | None
    audited_at: datetime | None
    size_bytes: int


async def insert_run(
    conn: Connection,
    *,
    id: RunId,
    network_id: NetworkId,
    account_id: AccountId,
    job_id: JobId,
    steps: int,
    inexact_from_step: int,
    options: Mapping[str, Any],
    data: Sequence[DataItem],
    seconds: float,
    seats: Sequence[SeatId],
) -> None:
    """With its seats, one for each slice of its job, in order."""
    await _q.insert_run(
        conn,
        id=id,
        network_id=network_id,
        account_id=account_id,
        job_id=job_id,
        steps=steps,
        inexact_from_step=inexact_from_step,
        options=options,
        data=[asdict(item) for item in data],
        seconds=seconds,
    )
    await _q.insert_seats(conn, run_id=id, seats=list(seats), slice_indexes=list(range(len(seats))))
    await _q.set_job_run(conn, run_id=id, job_id=job_id)


async def find_run(conn: Connection, id: RunId) -> RunRow | None:
    return _to_run(await _q.find_run(conn, id=id))


async def find_run_of_job(conn: Connection, job_id: JobId) -> RunRow | None:
    return _to_run(await _q.find_run_of_job(conn, job_id=job_id))


async def lock_run(conn: Connection, id: RunId) -> RunRow | None:
    return _to_run(await _q.lock_run(conn, id=id))


async def list_runs(
    conn: Connection,
    *,
    account_id: AccountId | None,
    network_id: NetworkId | None,
    before: UUID | None,
    limit: int,
) -> list[RunRow]:
    rows = _q.list_runs(conn, account_id=account_id, network_id=network_id, before=before, limit_count=limit)
    return [run async for row in rows if (run := _to_run(row)) is not None]


async def count_open(conn: Connection, network_id: NetworkId) -> int:
    """Runs of a network that are not over."""
    return int(await _q.count_open(conn, network_id=network_id))


async def ask_stop(conn: Connection, id: RunId) -> None:
    await _q.ask_stop(conn, id=id)


async def resume_run(
    conn: Connection, *, id: RunId, job_id: JobId, steps: int, options: Mapping[str, Any], seconds: float
) -> None:
    await _q.resume_run(conn, id=id, job_id=job_id, steps=steps, options=options, seconds=seconds)
    await _q.set_job_run(conn, run_id=id, job_id=job_id)


# Who owns a run


async def claim_runs(
    conn: Connection, *, owner_id: UUID, owner_address: str, lease_seconds: float, limit: int, id: RunId | None = None
) -> list[RunId]:
    """Runs whose owner's lease has run out, or that have none: each in an epoch of its own."""
    rows = _q.claim_runs(
        conn, owner_id=owner_id, owner_address=owner_address, lease_seconds=lease_seconds, limit_count=limit, id=id
    )
    return [row["id"] async for row in rows]


async def renew_runs(
    conn: Connection, ids: Iterable[RunId], *, owner_id: UUID, lease_seconds: float
) -> dict[RunId, bool]:
    """Those that are still this owner's, and whether somebody wants them to stop."""
    rows = _q.renew_runs(conn, ids=sorted(ids), owner_id=owner_id, lease_seconds=lease_seconds)
    return {row["id"]: row["stop_asked"] async for row in rows}


async def release_runs(conn: Connection, owner_id: UUID) -> None:
    await _q.release_runs(conn, owner_id=owner_id)


async def write_run(conn: Connection, run: Run, *, owner_id: UUID, known_epoch: int) -> bool:
    """False: somebody else owns it, or it is over. Nothing was written."""
    written = await _q.write_run(
        conn,
        id=run.id,
        owner_id=owner_id,
        known_epoch=known_epoch,
        state=run.state,
        epoch=run.epoch,
        step=run.step,
        checkpoint_step=run.checkpoint_step,
        reports_from_epoch=run.reports_from_epoch,
        numeric_class=run.numeric_class,
        inexact_from_step=run.inexact_from_step,
        recoveries=run.recoveries,
        message=run.message,
        over=run.state in OVER,
    )
    return written is not None


async def load_run(conn: Connection, id: RunId) -> LoadedRun | None:
    row = await _q.load_run(conn, id=id)
    if row is None:
        return None
    values = dict(row)
    spec, seconds_left = values.pop("spec"), values.pop("seconds_left")
    run = _to_run(values)
    assert run is not None
    seats = [each async for each in _q.list_seats(conn, run_id=id)]
    reported: dict[int, set[str]] = {}
    async for report in _q.list_reports(
        conn,
        run_id=id,
        after=run.checkpoint_step,
        from_epoch=run.reports_from_epoch,
        limit_count=REPORTS_LOADED_MAX,
    ):
        reported.setdefault(report["step"], set()).add(report["vnode_id"])
    return LoadedRun(
        row=run,
        spec=spec,
        seconds_left=seconds_left,
        seats={each["seat"]: _to_seat(each) for each in seats},
        slice_indexes={each["seat"]: each["slice_index"] for each in seats},
        locations=await list_locations(conn, id),
        reported={step: frozenset(vnode_ids) for step, vnode_ids in reported.items()},
    )


async def list_locations(conn: Connection, run_id: RunId) -> tuple[Location, ...]:
    """Without nodes and routes, which belong to the seats."""
    rows = _q.list_placements(conn, run_id=run_id)
    return tuple(
        [Location(row["vnode_id"], SeatId(row["seat"]), row["replica"], row["incarnation"]) async for row in rows]
    )


async def list_seats(conn: Connection, run_id: RunId) -> dict[SeatId, Seat]:
    return {SeatId(row["seat"]): _to_seat(row) async for row in _q.list_seats(conn, run_id=run_id)}


async def find_seat(conn: Connection, attempt_id: AttemptId) -> SeatRow | None:
    row = await _q.find_seat(conn, attempt_id=attempt_id)
    return SeatRow(**{**row, "state": RunState(row["state"]), "data": _to_data(row["data"])}) if row else None


async def set_seats(conn: Connection, run_id: RunId, seats: Sequence[Seat]) -> None:
    await _q.set_seats(
        conn,
        run_id=run_id,
        seats=[seat.id for seat in seats],
        attempt_ids=[seat.attempt_id for seat in seats],
        node_ids=[seat.node_id for seat in seats],
        numeric_classes=[seat.numeric_class for seat in seats],
        addresses=[seat.address for seat in seats],
    )


async def set_locations(conn: Connection, run_id: RunId, locations: Sequence[Location]) -> None:
    await _q.set_placements(
        conn,
        run_id=run_id,
        vnode_ids=[each.vnode_id for each in locations],
        replicas=[each.replica for each in locations],
        positions=list(range(len(locations))),
        seats=[each.seat for each in locations],
        incarnations=[each.incarnation for each in locations],
    )


# Seats are slices


async def mark_seats(conn: Connection, attempt_ids: Collection[AttemptId]) -> None:
    await _q.mark_seats(conn, ids=sorted(attempt_ids))


async def pay_seats(conn: Connection, attempt_ids: Collection[AttemptId], *, until: datetime) -> None:
    await _q.pay_seats(conn, ids=sorted(attempt_ids), until=until)


async def list_heads(conn: Connection, *, job_id: JobId, slice_indexes: Collection[int]) -> dict[int, int]:
    """By slice that waits: how often it was tried."""
    rows = _q.list_heads(conn, job_id=job_id, slice_indexes=sorted(slice_indexes))
    return {row["slice_index"]: row["attempt_count"] async for row in rows}


async def list_ended(
    conn: Connection, *, attempt_ids: Collection[AttemptId], run_ids: Collection[RunId]
) -> tuple[set[AttemptId], set[RunId]]:
    """Of these attempts those that are over, and of these runs those whose job is."""
    rows = [row async for row in _q.list_ended(conn, attempt_ids=sorted(attempt_ids), run_ids=sorted(run_ids))]
    return {row["attempt_id"] for row in rows if row["attempt_id"]}, {row["run_id"] for row in rows if row["run_id"]}


async def list_alive(
    conn: Connection, attempt_ids: Collection[AttemptId], *, lease_seconds: float, seconds: float
) -> set[AttemptId]:
    """Whose agent was heard within so many seconds."""
    rows = _q.list_alive(conn, ids=sorted(attempt_ids), lease_seconds=lease_seconds, seconds=seconds)
    return {row["id"] async for row in rows}


# What a run leaves behind


async def insert_lines(conn: Connection, run_id: RunId, lines: Sequence[NewLine]) -> None:
    if lines:
        await _q.insert_events(
            conn,
            run_id=run_id,
            kinds=[line.kind.value for line in lines],
            epochs=[line.epoch for line in lines],
            steps=[line.step for line in lines],
            messages=[line.message for line in lines],
        )


async def write_metrics(conn: Connection, run_id: RunId, metrics: Sequence[Metric]) -> list[int]:
    """Steps that came to other bits than before. A step is written once per call."""
    rows = _q.upsert_metrics(
        conn,
        run_id=run_id,
        steps=[metric.step for metric in metrics],
        epochs=[metric.epoch for metric in metrics],
        loss_bits=[metric.loss_bits for metric in metrics],
        rates=[metric.samples_per_second for metric in metrics],
    )
    return [row["step"] async for row in rows]


async def list_feed(conn: Connection, run_id: RunId, *, after: int, limit: int) -> list[FeedLine]:
    rows = _q.list_feed(conn, run_id=run_id, after=after, limit_count=limit)
    return [FeedLine(**{**row, "kind": FeedKind(row["kind"])}) async for row in rows]


async def list_metrics(conn: Connection, run_id: RunId, *, after: int, limit: int) -> list[Metric]:
    return [Metric(**row) async for row in _q.list_metrics(conn, run_id=run_id, after=after, limit_count=limit)]


async def write_parts(conn: Connection, run_id: RunId, parts: Sequence[Part]) -> list[tuple[int, str]]:
    """Steps and VNodes that came to another state than before."""
    rows = _q.upsert_parts(
        conn,
        run_id=run_id,
        steps=[part.step for part in parts],
        vnode_ids=[part.vnode_id for part in parts],
        epochs=[part.epoch for part in parts],
        sha256s=[part.sha256 for part in parts],
        sizes=[part.size_bytes for part in parts],
        digests=[part.digest for part in parts],
    )
    return [(row["step"], row["vnode_id"]) async for row in rows]


async def complete_checkpoint(conn: Connection, run_id: RunId, step: int) -> None:
    await _q.complete_checkpoint(conn, run_id=run_id, step=step)


async def list_parts(conn: Connection, run_id: RunId, step: int) -> list[Part]:
    return [Part(step=step, **row) async for row in _q.list_parts(conn, run_id=run_id, step=step)]


async def list_checkpoints(conn: Connection, run_id: RunId, *, limit: int) -> list[Checkpoint]:
    return [Checkpoint(**row) async for row in _q.list_checkpoints(conn, run_id=run_id, limit_count=limit)]


async def delete_old_checkpoints(
    conn: Connection, run_id: RunId, *, keep: int, spared: Collection[int] = (), before: int | None = None
) -> list[bytes]:
    """Contents that they were made of; another checkpoint may need them still.

    Besides the newest, those of steps that are `spared` stay, and all from step `before` on.
    """
    rows = _q.delete_old_checkpoints(conn, run_id=run_id, keep=keep, spared=sorted(spared), before=before)
    return [row["sha256"] async for row in rows]


async def delete_checkpoints(conn: Connection, network_id: NetworkId) -> list[tuple[RunId, bytes]]:
    return [(row["run_id"], row["sha256"]) async for row in _q.delete_checkpoints(conn, network_id=network_id)]


# Contents


async def insert_blob(conn: Connection, run_id: RunId, *, sha256: bytes, size_bytes: int) -> bool:
    """False: the run has it already."""
    return await _q.insert_blob(conn, run_id=run_id, sha256=sha256, size_bytes=size_bytes) is not None


async def find_blob(conn: Connection, run_id: RunId, sha256: bytes) -> int | None:
    """Its size."""
    size_bytes: int | None = await _q.find_blob(conn, run_id=run_id, sha256=sha256)
    return size_bytes


async def lock_content(conn: Connection, sha256: bytes) -> None:
    await _q.lock_content(conn, sha256=sha256)


async def is_loose(conn: Connection, run_id: RunId, sha256: bytes) -> bool:
    return bool(await _q.is_loose(conn, run_id=run_id, sha256=sha256))


async def list_loose_blobs(conn: Connection, run_id: RunId, *, young_seconds: float, limit: int) -> list[bytes]:
    rows = _q.list_loose_blobs(conn, run_id=run_id, young_seconds=young_seconds, limit_count=limit)
    return [row["sha256"] async for row in rows]


async def delete_blob(conn: Connection, run_id: RunId, sha256: bytes) -> int | None:
    """Its size; None if the run did not have it."""
    size_bytes: int | None = await _q.delete_blob(conn, run_id=run_id, sha256=sha256)
    return size_bytes


async def is_content_used(conn: Connection, sha256: bytes) -> bool:
    return bool(await _q.is_content_used(conn, sha256=sha256))


def _to_run(row: Any) -> RunRow | None:
    return RunRow(**{**row, "state": RunState(row["state"]), "data": _to_data(row["data"])}) if row else None


def _to_data(items: Iterable[Mapping[str, Any]]) -> tuple[DataItem, ...]:
    return tuple(DataItem(**item) for item in items)


def _to_seat(row: Any) -> Seat:
    return Seat(
        id=SeatId(row["seat"]),
        attempt_id=row["attempt_id"],
        node_id=row["node_id"],
        numeric_class=row["numeric_class"],
        address=row["address"],
    )
