"""Audits of the runs that this process owns: hears what seats claim, draws, asks neighbours and witnesses, judges.

Rules are in core/networks/audit.py and audit_book.py. A book is its owner's memory: whoever takes a run over begins
an empty one, and steps from before that stay unaudited. What is rejected is written with the run's row or not at all.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from computepool import entropy
from computepool.core.ids import AccountId, AttemptId, NodeId, RunId
from computepool.core.ledger.dispute import DisputeOrigin, DisputeRefused
from computepool.core.networks.audit import (
    WRONG_WINDOW,
    AskLog,
    AskReplay,
    AuditEffect,
    AuditOutcome,
    Claim,
    Conclude,
    MarkAudited,
    Reject,
    Replayed,
    SpanDigest,
    Standing,
    Told,
    Witness,
    is_bugged,
)
from computepool.core.networks.audit_book import AuditBook
from computepool.core.networks.epochs import list_locations
from computepool.core.networks.placement import Location, SeatId
from computepool.core.networks.run import (
    OVER,
    CompleteCheckpoint,
    Effect,
    FeedKind,
    ForgetSteps,
    Run,
    SendRun,
    StepsRejected,
)
from computepool.core.networks.spec import NetworkSpec
from computepool.core.trust.standing import record_bugged
from computepool.hub.services import standings
from computepool.hub.services.disputes import take_back
from computepool.hub.store import hub as hub_store
from computepool.hub.store import run_audits as audit_store
from computepool.hub.store import runs as run_store
from computepool.hub.store import validation as trust_store
from computepool.hub.store.connect import Connection, Pool
from computepool.hub.store.run_audits import AuditRow
from computepool.hub.store.runs import DataItem, NewLine, Part

log = logging.getLogger("computepool.networks")

REASON_LENGTH_MAX = 300


@dataclass(frozen=True, slots=True)
class ShowOrder:
    """Store the frames that you sent to this seat; all of them if it is your own."""

    audit_id: UUID
    epoch: int
    seat: SeatId
    from_step: int
    until_step: int


@dataclass(frozen=True, slots=True)
class ReplayOrder:
    audit_id: UUID
    epoch: int
    seat: SeatId
    from_step: int
    until_step: int
    spec: str
    locations: tuple[Location, ...]
    # Of the seat's VNodes: where the replay begins, and what is stored of its end.
    parts: tuple[Part, ...]
    stored: tuple[Part, ...]
    data: tuple[DataItem, ...]
    logs: Mapping[SeatId, str]
    tolerant: bool


AuditOrder = ShowOrder | ReplayOrder


class Owner(Protocol):
    """What audits need of whoever owns the runs."""

    def send(self, attempt_id: AttemptId, order: AuditOrder) -> bool: ...

    async def open_audits(self, run_id: RunId) -> None: ...

    async def reject(self, run_id: RunId, event: StepsRejected, rows: Sequence[AuditRow]) -> None: ...

    async def settle(self, run_id: RunId) -> None: ...

    async def free(self, run_id: RunId, sha256s: Sequence[bytes]) -> None: ...


@dataclass(slots=True)
class _Audited:
    """One run with what is needed to order a replay of it."""

    run: Run
    spec: str
    data: tuple[DataItem, ...]
    book: AuditBook
    # By epoch.
    locations: dict[int, tuple[Location, ...]] = field(default_factory=dict)
    standings: dict[NodeId, tuple[AccountId, int]] = field(default_factory=dict)
    told: dict[UUID, Told] = field(default_factory=dict)
    # One thing after the other.
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class RunAudits:
    def __init__(
        self, pool: Pool, owner: Owner, *, seconds: Callable[[], float], draw: Callable[[], float] = entropy.draw
    ) -> None:
        self._pool = pool
        self._owner = owner
        self._seconds = seconds
        self._draw = draw
        self._audited: dict[RunId, _Audited] = {}

    def find_oldest_step(self, run_id: RunId) -> int | None:
        """The oldest checkpoint that a replay may still begin at."""
        audited = self._audited.get(run_id)
        return audited.book.oldest_step if audited else None

    def forget(self, run_id: RunId) -> None:
        self._audited.pop(run_id, None)

    # What happens to runs

    def follow(
        self, run: Run, spec: NetworkSpec, spec_json: str, data: tuple[DataItem, ...], effects: Iterable[Effect]
    ) -> bool:
        """After each decision that was written. True: `catch_up` has something to do."""
        if run.state in OVER or spec.local_steps:
            # Between rounds of local steps replicas differ, and only one of them is stored: nobody could replay them.
            return False
        audited = self._audited.get(run.id)
        if audited is None:
            book = AuditBook(checkpoint_every=spec.checkpoint_every, draw=self._draw, new_id=entropy.new_id)
            audited = self._audited[run.id] = _Audited(run, spec_json, data, book)
        audited.run = run
        ends = {each.until_step for each in effects if isinstance(each, SendRun) and each.epoch == run.epoch}
        if ends and run.epoch not in audited.locations:
            audited.locations[run.epoch] = list_locations(run)
            seats = {
                seat.id: (seat.attempt_id, seat.node_id)
                for seat in run.taken_seats
                if seat.attempt_id is not None and seat.node_id is not None
            }
            audited.book.begin_epoch(run.epoch, seats, from_step=run.from_step)
        for end in ends:
            audited.book.note_end(run.epoch, end)
        return any(isinstance(each, CompleteCheckpoint) for each in effects)

    async def catch_up(self, run_id: RunId) -> None:
        """A checkpoint is complete, or time has passed. Who is at it already, or comes soon, sees the same."""
        audited = self._audited.get(run_id)
        if audited is None or audited.turn.locked():
            return
        await self._do(run_id, self._catch_up)

    def _catch_up(self, audited: _Audited, hosts: Mapping[SeatId, Witness]) -> list[AuditEffect]:
        now, book = self._seconds(), audited.book
        effects: list[AuditEffect] = []
        if book.complete_step != audited.run.checkpoint_step:
            effects = book.complete(audited.run.checkpoint_step, hosts, now=now)
        return [*effects, *book.tick(hosts, now=now)]

    # What hosts say

    async def hear_claim(self, run_id: RunId, seat: SeatId, attempt_id: AttemptId, span: SpanDigest) -> None:
        audited = self._audited.get(run_id)
        found = audited.run.seats.get(seat) if audited else None
        if audited is None or found is None or found.attempt_id != attempt_id or found.node_id is None:
            return
        if not audited.run.audited:
            await self._owner.open_audits(run_id)
        await self._load_standings(audited)
        standing = _to_standing(audited, found.node_id, found.numeric_class)
        if standing is not None:
            claim = Claim(seat, attempt_id, found.node_id, standing, span)
            await self._do(run_id, lambda audited, hosts: audited.book.claim(claim, hosts, now=self._seconds()))

    async def hear_log(self, run_id: RunId, seat: SeatId, audit_id: UUID, sha256: str) -> None:
        await self._do(
            run_id, lambda audited, hosts: audited.book.show(audit_id, seat, sha256, hosts, now=self._seconds())
        )

    async def hear_replay(
        self, run_id: RunId, attempt_id: AttemptId, audit_id: UUID, replayed: Replayed | None, reason: str
    ) -> None:
        def judge(audited: _Audited, hosts: Mapping[SeatId, Witness]) -> list[AuditEffect]:
            told = audited.told.get(audit_id, Told({}))
            return audited.book.hear_replay(
                audit_id, attempt_id, replayed, told, hosts, now=self._seconds(), reason=reason
            )

        await self._do(run_id, judge)

    # Doing

    async def _do(
        self, run_id: RunId, decide: Callable[[_Audited, Mapping[SeatId, Witness]], list[AuditEffect]]
    ) -> None:
        audited = self._audited.get(run_id)
        if audited is None:
            return
        async with audited.turn:
            effects = decide(audited, _list_hosts(audited))
            for effect in _join_rejections(effects):
                effects += await self._perform(audited, effect)
        if audited.run.settle_at is not None and audited.book.is_settled(now=self._seconds()):
            await self._owner.settle(run_id)

    async def _perform(self, audited: _Audited, effect: AuditEffect | _Rejection) -> list[AuditEffect]:
        run_id = audited.run.id
        if isinstance(effect, AskLog):
            span = effect.claim.span
            self._owner.send(
                effect.attempt_id,
                ShowOrder(effect.audit_id, span.epoch, effect.claim.seat, span.from_step, span.until_step),
            )
        elif isinstance(effect, AskReplay):
            return await self._ask(audited, effect)
        elif isinstance(effect, _Rejection):
            await self._owner.reject(run_id, effect.event, effect.rows(run_id))
            await self._free(audited, effect.conclusions)
        elif isinstance(effect, Conclude):
            await self._conclude(audited, effect)
        elif isinstance(effect, MarkAudited):
            async with self._pool.acquire() as conn, conn.transaction():
                await audit_store.mark_audited(conn, run_id, effect.step)
        return []

    async def _ask(self, audited: _Audited, effect: AskReplay) -> list[AuditEffect]:
        run_id, claim, span = audited.run.id, effect.claim, effect.claim.span
        locations = audited.locations.get(span.epoch, ())
        mine = {each.vnode_id for each in locations if each.seat == claim.seat}
        async with self._pool.acquire() as conn:
            begun = await run_store.list_parts(conn, run_id, span.from_step) if span.from_step else []
            stored = await run_store.list_parts(conn, run_id, span.until_step)
            metrics = await run_store.list_metrics(
                conn, run_id, after=span.from_step, limit=span.until_step - span.from_step
            )
        parts = tuple(part for part in begun if part.vnode_id in mine)
        if not locations or (span.from_step and len(parts) < len(mine)):
            return audited.book.drop(effect.audit_id, "the checkpoint that it began at is gone")
        home = {each.vnode_id for each in locations if each.seat == claim.seat and each.replica == 0}
        ends = tuple(part for part in stored if part.vnode_id in home)
        losses = b"".join(struct.pack("<q", each.loss_bits) for each in metrics if each.epoch == span.epoch)
        whole = len(losses) == 8 * (span.until_step - span.from_step)
        audited.told[effect.audit_id] = Told(
            # What another epoch has stored says nothing of this seat.
            states={part.vnode_id: part.digest for part in ends if part.epoch == span.epoch},
            losses=hashlib.sha256(losses).digest() if whole else b"",
        )
        order = ReplayOrder(
            audit_id=effect.audit_id,
            epoch=span.epoch,
            seat=claim.seat,
            from_step=span.from_step,
            until_step=span.until_step,
            spec=audited.spec,
            locations=locations,
            parts=parts,
            stored=ends,
            data=audited.data,
            logs=effect.logs,
            tolerant=effect.witness.standing.numeric_class != claim.standing.numeric_class,
        )
        self._owner.send(effect.witness.attempt_id, order)
        return []

    async def _conclude(self, audited: _Audited, effect: Conclude) -> None:
        run_id = audited.run.id
        row = to_row(run_id, effect)
        async with self._pool.acquire() as conn, conn.transaction():
            # Writers of a run's feed hold its row, so that no line appears late.
            await run_store.lock_run(conn, run_id)
            await audit_store.insert_audit(conn, row)
            await run_store.insert_lines(conn, run_id, [to_line(row)])
        await self._free(audited, [effect])

    async def _free(self, audited: _Audited, conclusions: Iterable[Conclude]) -> None:
        for each in conclusions:
            audited.told.pop(each.audit_id, None)
        logs = [bytes.fromhex(sha256) for each in conclusions for sha256 in each.logs]
        if logs:
            await self._owner.free(audited.run.id, logs)

    async def _load_standings(self, audited: _Audited) -> None:
        """Anew with every claim: other runs may have learnt something."""
        node_ids = {seat.node_id for seat in audited.run.seats.values() if seat.node_id is not None}
        async with self._pool.acquire() as conn:
            audited.standings = await audit_store.list_standings(conn, node_ids)


# What a rejection writes, in the transaction of the run's owner


async def write_rejection(
    conn: Connection, run_id: RunId, effects: Iterable[ForgetSteps], rows: Iterable[AuditRow]
) -> list[bytes]:
    """Void checkpoints go, with the contents that are returned; who was wrong is noted."""
    loose: list[bytes] = []
    for effect in effects:
        loose += await audit_store.delete_checkpoints_after(conn, run_id, effect.step)
    lines, wrong = [], set()
    for row in rows:
        await audit_store.insert_audit(conn, row)
        lines.append(to_line(row))
        if row.outcome is AuditOutcome.WRONG:
            wrong.add(row.node_id)
    if wrong:
        await _judge_nodes(conn, wrong)
    await run_store.insert_lines(conn, run_id, lines)
    return loose


async def _judge_nodes(conn: Connection, node_ids: Collection[NodeId]) -> None:
    """Too many wrong: bugged, for jobs as well. What a node has answered for once does not count again."""
    now = await hub_store.get_now(conn)
    for node_id, known in (await trust_store.lock_trust(conn, node_ids)).items():
        since = known.since if known.bugged_count else None
        if is_bugged(await audit_store.list_outcomes(conn, node_id, since=since, limit=WRONG_WINDOW)):
            after, effects = record_bugged(known, now=now)
            await standings.move(conn, node_id, known, after, effects)


async def lower_pay(conn: Connection, run_id: RunId, effects: Iterable[ForgetSteps]) -> list[ForgetSteps]:
    """Whoever is blamed is paid to the step that counts. Returns those whose pay is settled already.

    Before `write_rejection`, which takes the checkpoints away that it reads.
    """
    return [
        each
        for each in effects
        if each.attempt_id is not None
        and not await audit_store.lower_pay(conn, each.attempt_id, run_id=run_id, step=each.step)
    ]


async def take_pay_back(conn: Connection, settled: Iterable[ForgetSteps]) -> None:
    """Comes last: accounts are last in the order of locks."""
    for effect in settled:
        assert effect.attempt_id is not None
        try:
            await take_back(
                conn,
                effect.attempt_id,
                origin=DisputeOrigin.AUDIT,
                reason=effect.message[:REASON_LENGTH_MAX],
                by=None,
            )
        except DisputeRefused as refusal:
            log.info("nothing_to_take_back attempt_id=%s reason=%s", effect.attempt_id, refusal)


def to_row(run_id: RunId, effect: Conclude) -> AuditRow:
    claim, span = effect.claim, effect.claim.span
    return AuditRow(
        id=effect.audit_id,
        run_id=run_id,
        epoch=span.epoch,
        seat=claim.seat,
        attempt_id=claim.attempt_id,
        node_id=claim.node_id,
        from_step=span.from_step,
        until_step=span.until_step,
        outcome=effect.outcome,
        witness_ids=tuple(each.node_id for each in effect.witnesses),
        message=effect.message,
    )


def to_line(row: AuditRow) -> NewLine:
    """People count steps from 1."""
    words = f"audit of {row.seat} (PNode {row.node_id}), steps {row.from_step + 1} to {row.until_step}: "
    words += row.outcome.value + (f": {row.message}" if row.message else "")
    return NewLine(FeedKind.AUDIT, row.epoch, row.until_step, words)


@dataclass(frozen=True, slots=True)
class _Rejection:
    """With the conclusions that come with it: all of it is written at once."""

    event: StepsRejected
    conclusions: tuple[Conclude, ...]

    def rows(self, run_id: RunId) -> list[AuditRow]:
        return [to_row(run_id, each) for each in self.conclusions]


def _join_rejections(effects: list[AuditEffect]) -> Iterable[AuditEffect | _Rejection]:
    """Effects may be added while they are gone through."""
    waiting: list[Conclude] = []
    at = 0
    while at < len(effects):
        effect = effects[at]
        at += 1
        later_reject = any(isinstance(each, Reject) for each in effects[at:])
        if isinstance(effect, Conclude) and later_reject:
            waiting.append(effect)
        elif isinstance(effect, Reject):
            claim = effect.claim
            event = StepsRejected(
                claim.seat, claim.attempt_id, claim.node_id, effect.step, effect.blamed, effect.message
            )
            yield _Rejection(event, tuple(waiting))
            waiting = []
        else:
            yield effect


def _list_hosts(audited: _Audited) -> dict[SeatId, Witness]:
    """Who can be asked: hosts with a session, whose owners do not want them back."""
    hosts = {}
    for id, seat in audited.run.seats.items():
        if seat.attempt_id is None or seat.node_id is None or not seat.joined or seat.leaving_at is not None:
            continue
        standing = _to_standing(audited, seat.node_id, seat.numeric_class)
        if standing is not None:
            hosts[id] = Witness(id, seat.attempt_id, seat.node_id, standing)
    return hosts


def _to_standing(audited: _Audited, node_id: NodeId, numeric_class: str) -> Standing | None:
    known = audited.standings.get(node_id)
    return Standing(known[0], numeric_class, known[1]) if known else None
