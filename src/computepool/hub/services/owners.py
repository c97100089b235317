"""The owner of runs: hears what happens to them, lets core decide, writes it, and only then gives orders.

A process that serves gRPC owns runs by a lease on their rows. Everything that it decides is written under a guard of
owner and epoch: one that was overtaken writes nothing, so it gives no order in an epoch that is not its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from computepool import clock
from computepool.core.ids import AccountId, AttemptId, JobId, NodeId, RunId
from computepool.core.jobs.cause import NODE_FAULTS
from computepool.core.networks.epochs import adopt, decide, list_locations
from computepool.core.networks.errors import RunElsewhere
from computepool.core.networks.first_fit import Need, Question, Unplaceable, choose_placement
from computepool.core.networks.needs import list_needs
from computepool.core.networks.placement import Location, SeatId
from computepool.core.networks.run import (
    OVER,
    AuditsOpened,
    AuditsSettled,
    CompleteCheckpoint,
    Decision,
    Effect,
    EndRun,
    Event,
    FeedKind,
    ForgetSteps,
    JobEnded,
    KeepReport,
    KeepStep,
    LeasesLost,
    NobodyFits,
    PlaceSeats,
    ProbeAnswered,
    Run,
    Seat,
    SeatFill,
    SeatsFilled,
    SendDrop,
    SendPrepare,
    SendProbe,
    SendRun,
    StepsRejected,
    StopAsked,
    Tell,
    Ticked,
    VacateSeat,
)
from computepool.core.networks.spec import NetworkSpec
from computepool.core.networks.spec_json import from_json
from computepool.core.placement.slot import SlotKind
from computepool.hub.blobs.local import LocalBlobs
from computepool.hub.config import HubSettings
from computepool.hub.services import run_audits as audit_service
from computepool.hub.services import seats as seat_service
from computepool.hub.services.attempts import Beat, record_beats
from computepool.hub.services.prices import PriceBook
from computepool.hub.services.reliabilities import record_outcomes
from computepool.hub.services.run_audits import AuditOrder, RunAudits
from computepool.hub.services.run_blobs import free_blobs, free_loose
from computepool.hub.services.runs import to_terms
from computepool.hub.services.seats import SeatTerms
from computepool.hub.services.transitions import EndedAttempt
from computepool.hub.store import networks as network_store
from computepool.hub.store import runs as run_store
from computepool.hub.store.connect import BLOCKED, Connection, Pool
from computepool.hub.store.run_audits import AuditRow
from computepool.hub.store.runs import DataItem, LoadedRun, Metric, NewLine, Part, RunRow

log = logging.getLogger("computepool.networks")

LEASE_SECONDS = 4.0
TICK_SECONDS = 0.25
LOOK_SECONDS = 1.0
RUNS_MAX = 500
CLAIMS_MAX = 20
# Events that are kept while the database is away. Whatever is lost beyond them, the rules find out and repair.
INBOX_MAX = 20_000
# Somebody else is at the same attempts: how often, and how soon, a batch is tried again.
TRIES_MAX = 20
BLOCKED_SECONDS = 0.05
BATCH_MAX = 256
CHECKPOINTS_KEPT = 3
# How long a host without a session is looked for, which is less than a suspect has.
SEARCH_SECONDS = 1.75
# A beat that is written this shortly after a session closed was heard before. One of the agent's may be written a
# second later and count for a sign of life: then the loss is found with the next probe.
FLUSH_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class PrepareOrder:
    """What a host is to build, and from what."""

    run_id: RunId
    seat: SeatId
    epoch: int
    # As canonical JSON.
    spec: str
    locations: tuple[Location, ...]
    # The step that the weights are of; 0: fresh, from the seed.
    checkpoint_step: int
    parts: tuple[Part, ...]
    data: tuple[DataItem, ...]


Order = PrepareOrder | SendRun | SendDrop | SendProbe | AuditOrder


class Post(Protocol):
    """Where orders go: the sessions of hosts."""

    def send(self, attempt_id: AttemptId, order: Order) -> bool:
        """False: no session of this attempt is open here."""

    def close(self, attempt_id: AttemptId) -> None:
        """Whoever it is must ask anew who owns its run."""


# Whether a host can be dialled and proves that it is the one that holds this attempt.
Dial = Callable[[str, AttemptId], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Heard:
    """An event, with what is to be written if it counts."""

    event: Event
    metric: Metric | None = None
    part: Part | None = None
    # What audits came to, of steps that are rejected.
    audits: tuple[AuditRow, ...] = ()


class OwnerLost(Exception):
    """Somebody else owns the run, or it is over."""


@dataclass(slots=True)
class _Owned:
    run: Run
    spec: NetworkSpec
    spec_json: str
    needs: tuple[Need, ...]
    account_id: AccountId
    job_id: JobId
    terms: SeatTerms
    data: tuple[DataItem, ...]
    slice_indexes: Mapping[SeatId, int]
    row: RunRow
    inbox: list[Heard] = field(default_factory=list)
    # Decides what is in the inbox, one batch after the other.
    draining: asyncio.Task[None] | None = None

    @property
    def data_bytes(self) -> dict[bytes, int]:
        return {bytes.fromhex(item.sha256): item.size_bytes for item in self.data}


class RunOwner:
    def __init__(
        self,
        pool: Pool,
        settings: HubSettings,
        prices: PriceBook,
        blobs: LocalBlobs,
        post: Post,
        *,
        owner_id: UUID,
        address: str,
        dial: Dial | None = None,
        lease_seconds: float = LEASE_SECONDS,
        seconds: Callable[[], float] = clock.seconds,
    ) -> None:
        """`seconds` is the clock that runs are decided by."""
        self._pool = pool
        self._settings = settings
        self._prices = prices
        self._blobs = blobs
        self._post = post
        self._dial = dial
        self.owner_id = owner_id
        self.address = address
        self._lease_seconds = lease_seconds
        self._seconds = seconds
        self._owned: dict[RunId, _Owned] = {}
        self._beats: dict[AttemptId, NodeId] = {}
        # Probes and the freeing of contents, beside the way of events.
        self._chores: set[asyncio.Task[None]] = set()
        self._looked_at = float("-inf")
        self.audits = RunAudits(pool, self, seconds=seconds) if settings.network_audits else None

    def find(self, run_id: RunId) -> Run | None:
        """As this process knows it; None if it does not own it."""
        owned = self._owned.get(run_id)
        return owned.run if owned else None

    @property
    def run_ids(self) -> list[RunId]:
        return list(self._owned)

    # On a timer

    async def run(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            try:
                await self.run_once()
            except Exception as error:
                # The database may be away; what was heard is kept, and the timer comes round again.
                log.warning("runs_not_looked_after error=%r", error)

    async def run_once(self) -> None:
        if clock.seconds() - self._looked_at >= LOOK_SECONDS:
            self._looked_at = clock.seconds()
            await self._renew()
            await self._claim()
            await self._flush_beats()
            await self._look_at_attempts()
        ticks = (self.hear(run_id, Heard(Ticked())) for run_id in self.run_ids)
        for failed in await asyncio.gather(*ticks, return_exceptions=True):
            # One run's trouble is not the others'; what it has heard is kept.
            if isinstance(failed, Exception):
                log.warning("run_not_decided error=%r", failed)
        if self.audits is not None:
            for run_id in self.run_ids:
                self._do_beside(self.audits.catch_up(run_id))

    async def close(self) -> None:
        """Another process may take over at once."""
        for chore in self._chores:
            chore.cancel()
        await asyncio.gather(*self._chores, return_exceptions=True)
        async with self._pool.acquire() as conn:
            await run_store.release_runs(conn, self.owner_id)
        for run_id in self.run_ids:
            self._forget(run_id)

    async def _renew(self) -> None:
        if not self._owned:
            return
        async with self._pool.acquire() as conn:
            kept = await run_store.renew_runs(
                conn, self._owned, owner_id=self.owner_id, lease_seconds=self._lease_seconds
            )
        for run_id in self.run_ids:
            if run_id not in kept:
                log.warning("run_lost run_id=%s reason=another process owns it", run_id)
                self._forget(run_id)
            elif kept[run_id]:
                await self.hear(run_id, Heard(StopAsked()))

    async def _claim(self) -> None:
        room = min(CLAIMS_MAX, RUNS_MAX - len(self._owned))
        if room > 0:
            await self.claim(limit=room)

    async def claim(self, run_id: RunId | None = None, *, limit: int = 1) -> list[RunId]:
        """Runs that nobody owns, or this one if nobody does: from now on they are this process's."""
        async with self._pool.acquire() as conn:
            claimed = await run_store.claim_runs(
                conn,
                owner_id=self.owner_id,
                owner_address=self.address,
                lease_seconds=self._lease_seconds,
                limit=limit,
                id=run_id,
            )
            loaded = [await run_store.load_run(conn, id) for id in claimed]
        for each in loaded:
            if each is None:
                continue
            try:
                await self._adopt(each)
            except Exception as error:
                # Its lease runs out, and whoever comes next tries again.
                log.warning("run_not_adopted run_id=%s error=%r", each.row.id, error)
        return claimed

    async def _adopt(self, loaded: LoadedRun) -> None:
        owned = _to_owned(loaded, now=self._seconds())
        await self._apply(owned, owned.run, adopt(owned.run, now=self._seconds()), [])
        if owned.run.state in OVER:
            return
        self._owned[owned.run.id] = owned
        log.info("run_owned run_id=%s epoch=%d", owned.run.id, owned.run.epoch)
        if loaded.row.stop_asked_at is not None:
            await self.hear(owned.run.id, Heard(StopAsked()))

    async def _flush_beats(self) -> None:
        """A host that is heard renews its lease, as its agent's beats do."""
        beats, self._beats = self._beats, {}
        by_node: dict[NodeId, set[AttemptId]] = {}
        for attempt_id, node_id in beats.items():
            by_node.setdefault(node_id, set()).add(attempt_id)
        if not by_node:
            return
        told = [Beat(node_id, frozenset(ids)) for node_id, ids in by_node.items()]
        try:
            await record_beats(self._pool, told, lease_seconds=self._settings.lease_seconds)
        except BaseException:
            self._beats = {**beats, **self._beats}
            raise

    async def _look_at_attempts(self) -> None:
        """What the ordinary course of attempts has ended: silence, restarts, reports, a cancelled job."""
        filled = {
            seat.attempt_id: run_id
            for run_id, owned in self._owned.items()
            for seat in owned.run.seats.values()
            if seat.attempt_id is not None
        }
        if not self._owned:
            return
        async with self._pool.acquire() as conn:
            ended, jobless = await run_store.list_ended(conn, attempt_ids=filled.keys(), run_ids=self._owned.keys())
        for run_id in {filled[attempt_id] for attempt_id in ended} - jobless:
            await self.hear(run_id, Heard(LeasesLost(frozenset(ended))))
        for run_id in jobless:
            await self.hear(run_id, Heard(JobEnded()))

    # Hosts

    async def admit(self, attempt_id: AttemptId) -> tuple[RunId, SeatId, NodeId]:
        """Whose session this is. A run that nobody owns is taken over by whoever is asked for it."""
        seat = await seat_service.get_seat(self._pool, attempt_id)
        if seat.run_id not in self._owned and not seat.is_owned:
            await self.claim(seat.run_id)
        if seat.run_id not in self._owned:
            raise RunElsewhere("Another hub owns this run: dial that one.", owner_address=seat.owner_address)
        return seat.run_id, seat.seat, seat.node_id

    def note_beat(self, attempt_id: AttemptId, node_id: NodeId) -> None:
        self._beats[attempt_id] = node_id

    def note_closed(self, attempt_id: AttemptId) -> None:
        """What it said before is no sign of life any more."""
        self._beats.pop(attempt_id, None)

    async def hear(self, run_id: RunId, *heard: Heard) -> None:
        """What arrives while something is being written shares the next transaction.

        Whoever waits here may be cancelled; what was heard is decided all the same, and no commit is cut short.
        """
        owned = self._owned.get(run_id)
        if owned is None:
            return
        if len(owned.inbox) + len(heard) <= INBOX_MAX:
            owned.inbox += heard
        if owned.draining is None or owned.draining.done():
            owned.draining = asyncio.create_task(self._drain(owned))
            # Nobody may be left to hear of its failure.
            owned.draining.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(owned.draining)

    async def _drain(self, owned: _Owned) -> None:
        run_id, tries = owned.run.id, 0
        while owned.inbox and self._owned.get(run_id) is owned:
            batch, owned.inbox = owned.inbox[:BATCH_MAX], owned.inbox[BATCH_MAX:]
            try:
                await self._process(owned, batch)
                tries = 0
            except OwnerLost:
                log.warning("run_lost run_id=%s reason=a write was refused", run_id)
                self._forget(run_id)
            except BaseException as error:
                # Heard is heard: it is decided when the database is back. A tick comes again by itself.
                owned.inbox = [each for each in batch if not isinstance(each.event, Ticked)] + owned.inbox
                tries += 1
                if not isinstance(error, BLOCKED) or tries > TRIES_MAX:
                    raise
                await asyncio.sleep(BLOCKED_SECONDS)

    async def _process(self, owned: _Owned, batch: Sequence[Heard]) -> None:
        before, now = owned.run, self._seconds()
        run, effects = before, list[Effect]()
        for heard in batch:
            decision = decide(run, heard.event, now=now)
            run = decision.run
            effects += decision.effects
        await self._apply(owned, before, Decision(run, tuple(effects)), batch)

    async def _apply(self, owned: _Owned, before: Run, decision: Decision, batch: Sequence[Heard]) -> None:
        """Written first, then known, then told."""
        ended: list[EndedAttempt] = []
        loose: list[bytes] = []
        parts: list[Part] = []
        durable = _is_durable(before, decision)
        prepares = decision.run.from_step > 0 and any(isinstance(each, SendPrepare) for each in decision.effects)
        if durable or prepares:
            async with self._pool.acquire() as conn, conn.transaction():
                if durable:
                    ended, loose = await self._write(conn, owned, before, decision, batch)
                if prepares:
                    parts = await run_store.list_parts(conn, decision.run.id, decision.run.from_step)
        owned.run = decision.run
        _log_change(before, decision.run)
        self._tell(owned, decision.effects, parts)
        self._note_ended(ended)
        if self.audits is not None:
            self._audit(self.audits, owned, decision.effects)
        if loose:
            self._do_beside(self._free(owned, loose))
        if owned.run.state in OVER:
            self._do_beside(self._free(owned, ()))
            self._forget(owned.run.id)
        elif any(isinstance(effect, PlaceSeats) for effect in decision.effects):
            await self._place(owned)

    def _forget(self, run_id: RunId) -> None:
        """Its hosts ask anew who owns the run, or hear that it is over."""
        owned = self._owned.pop(run_id, None)
        if owned is None:
            return
        if self.audits is not None:
            self.audits.forget(run_id)
        for seat in owned.run.seats.values():
            if seat.attempt_id is not None:
                self._post.close(seat.attempt_id)

    # Writing

    async def _write(
        self, conn: Connection, owned: _Owned, before: Run, decision: Decision, batch: Sequence[Heard]
    ) -> tuple[list[EndedAttempt], list[bytes]]:
        """Raises OwnerLost, and then nothing is written."""
        run, effects = decision.run, decision.effects
        if not await self._guard(conn, run, known_epoch=before.epoch):
            raise OwnerLost
        changed = [seat for id, seat in run.seats.items() if _stored(seat) != _stored(before.seats[id])]
        if changed:
            await run_store.set_seats(conn, run.id, changed)
        if run.locations != before.locations:
            await run_store.set_locations(conn, run.id, run.locations)
        lines = [NewLine(each.kind, run.epoch, each.step, each.message) for each in effects if isinstance(each, Tell)]
        lines += await self._write_progress(conn, run, effects, batch)
        ended = await self._settle(conn, owned, before, effects)
        rejected = [each for each in effects if isinstance(each, ForgetSteps)]
        loose: list[bytes] = []
        if rejected:
            rows = [row for heard in batch for row in heard.audits]
            loose += await audit_service.write_rejection(conn, run.id, rejected, rows)
        completed = [each.step for each in effects if isinstance(each, CompleteCheckpoint)]
        for step in completed:
            await run_store.complete_checkpoint(conn, run.id, step)
        if completed:
            needed = self.audits.find_oldest_step(run.id) if self.audits is not None else None
            loose += await run_store.delete_old_checkpoints(conn, run.id, keep=CHECKPOINTS_KEPT, before=needed)
        await run_store.insert_lines(conn, run.id, lines)
        return ended, loose

    async def _guard(self, conn: Connection, run: Run, *, known_epoch: int) -> bool:
        return await run_store.write_run(conn, run, owner_id=self.owner_id, known_epoch=known_epoch)

    async def _write_progress(
        self, conn: Connection, run: Run, effects: Iterable[Effect], batch: Sequence[Heard]
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

    async def _settle(
        self, conn: Connection, owned: _Owned, before: Run, effects: Sequence[Effect]
    ) -> list[EndedAttempt]:
        """Who has done its part is paid to here; who is gone is paid to the checkpoint before."""
        vacated = {each.attempt_id: each.cause for each in effects if isinstance(each, VacateSeat)}
        end = next((each for each in effects if isinstance(each, EndRun)), None)
        completed = any(isinstance(each, CompleteCheckpoint) for each in effects)
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

    # Placing

    async def _place(self, owned: _Owned) -> None:
        """Finds PNodes and writes their leases together with what follows for the run, or says why there are none."""
        before = owned.run
        async with self._pool.acquire() as conn, conn.transaction():
            event = await self._choose(conn, owned)
            decision = decide(before, event, now=self._seconds())
            if _is_durable(before, decision):
                await self._write(conn, owned, before, decision, [])
        owned.run = decision.run
        _log_change(before, decision.run)

    async def _choose(self, conn: Connection, owned: _Owned) -> SeatsFilled | NobodyFits:
        run, now = owned.run, self._seconds()
        found = await seat_service.find_pnodes(
            conn,
            self._prices,
            owned.terms,
            account_id=owned.account_id,
            avoided=[node_id for node_id, until in run.avoided.items() if until > now],
            data_bytes=owned.data_bytes,
            silence_seconds=self._settings.lease_seconds,
        )
        staying = [seat.node_id for seat in run.seats.values() if seat.node_id is not None]
        memory_bytes = await network_store.list_memory_bytes(conn, staying)
        answer = choose_placement(_to_question(owned, memory_bytes), found.pnodes)
        if isinstance(answer, Unplaceable):
            return NobodyFits(answer.reasons)
        fills = await seat_service.lease_seats(
            conn,
            self._prices,
            owned.terms,
            account_id=owned.account_id,
            job_id=owned.job_id,
            slice_indexes=owned.slice_indexes,
            chosen=answer.pnodes,
            candidates=found.candidates,
            lease_seconds=self._settings.lease_seconds,
        )
        return _to_filled(run, answer.pnodes.keys(), answer.moves, fills)

    # Audits

    def _audit(self, audits: RunAudits, owned: _Owned, effects: Sequence[Effect]) -> None:
        if audits.follow(owned.run, owned.spec, owned.spec_json, owned.data, effects):
            self._do_beside(audits.catch_up(owned.run.id))

    def send(self, attempt_id: AttemptId, order: AuditOrder) -> bool:
        return self._post.send(attempt_id, order)

    async def reject(self, run_id: RunId, event: StepsRejected, rows: Sequence[AuditRow]) -> None:
        await self.hear(run_id, Heard(event, audits=tuple(rows)))

    async def open_audits(self, run_id: RunId) -> None:
        await self.hear(run_id, Heard(AuditsOpened()))

    async def settle(self, run_id: RunId) -> None:
        await self.hear(run_id, Heard(AuditsSettled()))

    async def free(self, run_id: RunId, sha256s: Sequence[bytes]) -> None:
        owned = self._owned.get(run_id)
        if owned is not None:
            self._do_beside(self._free(owned, sha256s))

    # Telling

    def _tell(self, owned: _Owned, effects: Iterable[Effect], parts: Sequence[Part]) -> None:
        """Nothing here waits or fails: what was written is told."""
        for effect in effects:
            if isinstance(effect, SendPrepare | SendRun) and effect.epoch != owned.run.epoch:
                # Overtaken within one batch.
                continue
            if isinstance(effect, SendPrepare):
                self._post.send(effect.attempt_id, _to_order(owned, effect.seat, parts))
            elif isinstance(effect, SendRun | SendDrop):
                self._post.send(effect.attempt_id, effect)
            elif isinstance(effect, SendProbe) and not self._post.send(effect.attempt_id, effect):
                self._do_beside(self._probe(owned, effect))

    async def _probe(self, owned: _Owned, effect: SendProbe) -> None:
        """A host without a session: is it to be dialled, or was its agent heard with it since?"""
        seat = owned.run.seats[effect.seat]
        asked_at = clock.seconds()
        closed_seconds = self._seconds() - seat.closed_at if seat.closed_at is not None else 0.0
        alive = bool(seat.address and self._dial) and await self._dials(seat.address, effect.attempt_id)
        while not alive and clock.seconds() - asked_at < SEARCH_SECONDS:
            await asyncio.sleep(TICK_SECONDS)
            heard_within = closed_seconds + clock.seconds() - asked_at - FLUSH_SECONDS
            async with self._pool.acquire() as conn:
                alive = effect.attempt_id in await run_store.list_alive(
                    conn, [effect.attempt_id], lease_seconds=self._settings.lease_seconds, seconds=heard_within
                )
        if alive:
            await self.hear(owned.run.id, Heard(ProbeAnswered(effect.seat, effect.attempt_id)))

    async def _dials(self, address: str, attempt_id: AttemptId) -> bool:
        assert self._dial is not None
        try:
            async with asyncio.timeout(SEARCH_SECONDS):
                return await self._dial(address, attempt_id)
        except TimeoutError:
            return False

    def _do_beside(self, work: Awaitable[None]) -> None:
        async def do() -> None:
            try:
                await work
            except Exception as error:
                log.warning("chore_of_run_failed error=%r", error)

        chore = asyncio.create_task(do())
        self._chores.add(chore)
        chore.add_done_callback(self._chores.discard)

    async def _free(self, owned: _Owned, sha256s: Sequence[bytes]) -> None:
        await free_blobs(self._pool, self._blobs, owned.run.id, owned.account_id, sha256s)
        await free_loose(self._pool, self._blobs, owned.run.id, owned.account_id)

    def _note_ended(self, ended: Sequence[EndedAttempt]) -> None:
        """How far the nodes could be relied on as hosts."""
        outcomes: dict[tuple[NodeId, str], list[bool]] = {}
        for attempt in ended:
            if attempt.cause is None or attempt.cause in NODE_FAULTS:
                kind = SlotKind.GPU if attempt.slot.startswith(SlotKind.GPU.value) else SlotKind.CPU
                outcomes.setdefault((attempt.node_id, f"network|{kind.value}"), []).append(attempt.cause is None)
        if outcomes:
            self._do_beside(self._record(outcomes))

    async def _record(self, outcomes: Mapping[tuple[NodeId, str], list[bool]]) -> None:
        await record_outcomes(self._pool, outcomes, now=clock.now())


def _to_owned(loaded: LoadedRun, *, now: float) -> _Owned:
    row, spec = loaded.row, from_json(loaded.spec)
    run = Run(
        id=row.id,
        vnode_ids=tuple(vnode.id for vnode in spec.vnodes),
        loss=spec.loss,
        steps=row.steps,
        seats=loaded.seats,
        replicas=spec.replicas,
        exact=spec.exact,
        state=row.state,
        epoch=row.epoch,
        locations=loaded.locations,
        step=row.step,
        checkpoint_step=row.checkpoint_step,
        reported=loaded.reported,
        reports_from_epoch=row.reports_from_epoch,
        numeric_class=row.numeric_class,
        inexact_from_step=row.inexact_from_step,
        recoveries=row.recoveries,
        message=row.message,
        ends_at=now + loaded.seconds_left,
    )
    return _Owned(
        run=run,
        spec=spec,
        spec_json=loaded.spec,
        needs=tuple(list_needs(spec)),
        account_id=row.account_id,
        job_id=row.job_id,
        terms=to_terms(row.options),
        data=row.data,
        slice_indexes=loaded.slice_indexes,
        row=row,
    )


def _log_change(before: Run, run: Run) -> None:
    if (before.epoch, before.state, before.message) != (run.epoch, run.state, run.message):
        log.info(
            "run_changed run_id=%s epoch=%d state=%s step=%d message=%s",
            run.id,
            run.epoch,
            run.state.value,
            run.step,
            run.message,
        )


def _to_order(owned: _Owned, seat: SeatId, parts: Sequence[Part]) -> PrepareOrder:
    run = owned.run
    mine = {vnode_id for vnode_id, _ in run.list_parts(seat)}
    return PrepareOrder(
        run_id=run.id,
        seat=seat,
        epoch=run.epoch,
        spec=owned.spec_json,
        locations=list_locations(run),
        checkpoint_step=run.from_step,
        parts=tuple(part for part in parts if part.vnode_id in mine),
        data=owned.data,
    )


def _to_question(owned: _Owned, memory_bytes: Mapping[NodeId, int]) -> Question:
    """What is to be placed, and what the hosts that stay have left."""
    run, sizes = owned.run, {need.part: need.memory_bytes for need in owned.needs}
    if not run.locations:
        return Question(owned.needs, dict.fromkeys(run.seats, ()), run.exact, run.numeric_class)
    used = {seat.id: sum(sizes[part] for part in run.list_parts(seat.id)) for seat in run.taken_seats}
    return Question(
        needs=owned.needs,
        vacant={seat.id: run.list_parts(seat.id) for seat in run.taken_seats if seat.is_vacant},
        exact=run.exact,
        numeric_class=run.numeric_class,
        survivors={
            seat.id: memory_bytes[seat.node_id] - used[seat.id]
            for seat in run.taken_seats
            if seat.node_id is not None and seat.node_id in memory_bytes
        },
    )


def _to_filled(
    run: Run, chosen: Iterable[SeatId], moves: Mapping[tuple[str, int], SeatId], fills: Sequence[SeatFill]
) -> SeatsFilled | NobodyFits:
    """A seat whose slot was just taken by somebody else stays vacant; its VNodes are placed with the next try."""
    missed = set(chosen) - {fill.seat for fill in fills}
    if missed and not fills:
        return NobodyFits(("the slots that were chosen have just been taken; others are looked for",))
    kept = {part: seat for part, seat in moves.items() if not run.locations or seat not in missed}
    return SeatsFilled(tuple(fills), kept)


def _is_durable(before: Run, decision: Decision) -> bool:
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
