"""Writes what was decided about a run: under a guard of owner and epoch, or nothing of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from computepool.core.networks.run import (
    CompleteCheckpoint,
    Decision,
    Effect,
    EndRun,
    FeedKind,
    ForgetSteps,
    KeepReport,
    KeepStep,
    PaySeats,
    PlaceSeats,
    Run,
    Seat,
    SendDrop,
    SendPrepare,
    SendProbe,
    SendRun,
    Tell,
    VacateSeat,
)
from computepool.hub.services import run_audits as audit_service
from computepool.hub.services import seats as seat_service
from computepool.hub.services.owned_runs import Heard, OwnedRun
from computepool.hub.services.transitions import EndedAttempt
from computepool.hub.store import runs as run_store
from computepool.hub.store.connect import Connection
from computepool.hub.store.runs import NewLine

CHECKPOINTS_KEPT = 3


class OwnerLost(Exception):
    """Somebody else owns the run, or it is over."""


@dataclass(slots=True)
class Written:
    """What follows from it for others, once it is committed."""

    ended: list[EndedAttempt] = field(default_factory=list)
    # Contents that no checkpoint names any more.
    loose: list[bytes] = field(default_factory=list)


async def write_decision(
    conn: Connection,
    owned: OwnedRun,
    before: Run,
    decision: Decision,
    batch: Sequence[Heard],
    *,
    owner_id: UUID,
    spared: Collection[int],
    replayed_from: int | None,
) -> Written:
    """Raises OwnerLost, and then nothing is written.

    Of old checkpoints, the steps that are `spared` stay, and all from the oldest on that an audit may begin at.
    """
    run, effects = decision.run, decision.effects
    if not await run_store.write_run(conn, run, owner_id=owner_id, known_epoch=before.epoch):
        raise OwnerLost
    changed = [seat for id, seat in run.seats.items() if _stored(seat) != _stored(before.seats[id])]
    if changed:
        await run_store.set_seats(conn, run.id, changed)
    if run.locations != before.locations:
        await run_store.set_locations(conn, run.id, run.locations)
    lines = [NewLine(each.kind, run.epoch, each.step, each.message) for each in effects if isinstance(each, Tell)]
    lines += await _write_progress(conn, run, effects, batch)
    written = Written(ended=await _settle(conn, owned, before, effects))
    rejected = [each for each in effects if isinstance(each, ForgetSteps)]
    if rejected:
        rows = [row for heard in batch for row in heard.audits]
        written.loose += await audit_service.write_rejection(conn, run.id, rejected, rows)
    completed = [each.step for each in effects if isinstance(each, CompleteCheckpoint)]
    for step in completed:
        await run_store.complete_checkpoint(conn, run.id, step)
    if completed:
        written.loose += await run_store.delete_old_checkpoints(
            conn, run.id, keep=CHECKPOINTS_KEPT, spared=spared, before=replayed_from
        )
    await run_store.insert_lines(conn, run.id, lines)
    return written


async def _write_progress(
    conn: Connection, run: Run, effects: Iterable[Effect], batch: Sequence[Heard]
) -> list[NewLine]:
    """Losses and reports that count. Whatever comes out differently when it is done again is told."""
    steps = {effect.step for effect in effects if isinstance(effect, KeepStep)}
    reports = {(effect.step, effect.vnode_id) for effect in effects if isinstance(effect, KeepReport)}
    # One row per step and call: of two that came together, the later.
    metrics = {each.metric.step: each.metric for each in batch if each.metric and each.metric.step in steps}
    parts = {
        (each.part.step, each.part.vnode_id): each.part
        for each in batch
        if each.part and (each.part.step, each.part.vnode_id) in reports
    }
    lines = []
    if metrics:
        for step in await run_store.write_metrics(conn, run.id, list(metrics.values())):
            lines.append(NewLine(FeedKind.AUDIT, run.epoch, step, f"step {step} came to another loss this time"))
    if parts:
        for step, vnode_id in await run_store.write_parts(conn, run.id, list(parts.values())):
            words = f"VNode {vnode_id} came to another state of step {step} this time"
            lines.append(NewLine(FeedKind.AUDIT, run.epoch, step, words))
    return lines


async def _settle(conn: Connection, owned: OwnedRun, before: Run, effects: Sequence[Effect]) -> list[EndedAttempt]:
    """Who has done its part is paid to here; who is gone is paid to the checkpoint before."""
    vacated = {each.attempt_id: each.cause for each in effects if isinstance(each, VacateSeat)}
    end = next((each for each in effects if isinstance(each, EndRun)), None)
    completed = any(isinstance(each, CompleteCheckpoint | PaySeats) for each in effects)
    seats = [seat.attempt_id for seat in before.seats.values() if seat.attempt_id is not None]
    if vacated or end is not None:
        await seat_service.lock_seats(conn, seats)
    ended: list[EndedAttempt] = []
    if completed:
        await run_store.pay_seats(conn, seats, until=owned.row.expires_at)
    rejected = [each for each in effects if isinstance(each, ForgetSteps)]
    settled = await audit_service.lower_pay(conn, before.id, rejected)
    if vacated:
        ended += await seat_service.vacate_seats(conn, vacated)
    if end is not None:
        if end.pays_to_now:
            await run_store.pay_seats(conn, seats, until=owned.row.expires_at)
        ended += await seat_service.conclude_seats(conn, owned.job_id, end.state)
    await audit_service.take_pay_back(conn, settled)
    return ended


def is_durable(before: Run, decision: Decision) -> bool:
    """Whether there is anything to write: much of what is heard is of the owner's memory alone."""
    memory_only = (PlaceSeats, SendPrepare, SendRun, SendDrop, SendProbe)
    if any(not isinstance(effect, memory_only) for effect in decision.effects):
        return True
    run = decision.run
    if any(_stored(seat) != _stored(before.seats[id]) for id, seat in run.seats.items()):
        return True
    return _row(run) != _row(before) or run.locations != before.locations


def _stored(seat: Seat) -> tuple[object, ...]:
    return (seat.attempt_id, seat.node_id, seat.numeric_class, seat.address)


def _row(run: Run) -> tuple[object, ...]:
    return (
        run.state,
        run.epoch,
        run.step,
        run.checkpoint_step,
        run.reports_from_epoch,
        run.numeric_class,
        run.inexact_from_step,
        run.recoveries,
        run.message,
    )
