"""The owner of runs: hears what happens to them, lets core decide, writes it, and only then gives orders.

A process that serves gRPC owns runs by a lease on their rows. Everything that it decides is written under a guard of
owner and epoch: one that was overtaken writes nothing, so it gives no order in an epoch that is not its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from uuid import UUID

from computepool import clock
from computepool.core.ids import AttemptId, NodeId, RunId
from computepool.core.jobs.cause import NODE_FAULTS
from computepool.core.networks.epochs import adopt, decide
from computepool.core.networks.errors import RunElsewhere
from computepool.core.networks.placement import SeatId
from computepool.core.networks.run import (
    OVER,
    AuditsOpened,
    AuditsSettled,
    Decision,
    Effect,
    JobEnded,
    LeasesLost,
    PlaceSeats,
    ProbeAnswered,
    Run,
    Seat,
    SendDrop,
    SendPrepare,
    SendProbe,
    SendRun,
    StepsRejected,
    StopAsked,
    Ticked,
)
from computepool.core.networks.spec import NetworkSpec
from computepool.core.placement.slot import SlotKind
from computepool.hub.blobs.local import LocalBlobs
from computepool.hub.config import HubSettings
from computepool.hub.services import seats as seat_service
from computepool.hub.services.attempts import Beat, record_beats
from computepool.hub.services.owned_runs import Dial, Heard, Order, OwnedRun, Post, PrepareOrder, to_owned
from computepool.hub.services.paces import note_pace
from computepool.hub.services.prices import PriceBook
from computepool.hub.services.reliabilities import record_outcomes
from computepool.hub.services.run_audits import AuditOrder, RunAudits
from computepool.hub.services.run_blobs import free_blobs, free_loose
from computepool.hub.services.run_records import OwnerLost, Written, is_durable, write_decision
from computepool.hub.services.seating import fill_seats
from computepool.hub.services.transitions import EndedAttempt
from computepool.hub.store import runs as run_store
from computepool.hub.store.connect import BLOCKED, Connection, Pool
from computepool.hub.store.run_audits import AuditRow
from computepool.hub.store.runs import LoadedRun, Part

__all__ = ["Heard", "Order", "PrepareOrder", "RunOwner"]

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
# How long a host without a session is looked for, which is less than a suspect has.
SEARCH_SECONDS = 1.75
# A beat that is written this shortly after a session closed was heard before. One of the agent's may be written a
# second later and count for a sign of life: then the loss is found with the next probe.
FLUSH_SECONDS = 0.25


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
        self._owned: dict[RunId, OwnedRun] = {}
        self._beats: dict[AttemptId, NodeId] = {}
        # Probes and the freeing of contents, beside the way of events.
        self._chores: set[asyncio.Task[None]] = set()
        self._looked_at = float("-inf")
        self.audits = RunAudits(pool, self, seconds=seconds) if settings.network_audits else None
        # Whoever answers with a run's weights follows it by the first, and says by the second which steps to keep.
        self.on_change: Callable[[RunId], None] = lambda run_id: None
        self.list_pinned: Callable[[RunId], Collection[int]] = lambda run_id: ()

    def find(self, run_id: RunId) -> Run | None:
        """As this process knows it; None if it does not own it."""
        owned = self._owned.get(run_id)
        return owned.run if owned else None

    def get_spec(self, run_id: RunId) -> NetworkSpec:
        return self._owned[run_id].spec

    def read_clock(self) -> float:
        """By which runs are decided."""
        return self._seconds()

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
        """Runs that nobody owns, or this one if nobody does: from now on they are this process's.

        A run of its own whose lease has run out while this process was held up is kept as it is: to begin it anew
        would leave its hosts behind, who have a session and see no cause to come again.
        """
        if run_id in self._owned:
            await self._renew()
            return []
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
        owned = to_owned(loaded, now=self._seconds())
        await self._apply(owned, owned.run, adopt(owned.run, now=self._seconds()), [])
        if owned.run.state in OVER:
            return
        # Whoever has a session with what this process knew of the run before must come anew.
        self._forget(owned.run.id)
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

    async def _drain(self, owned: OwnedRun) -> None:
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

    async def _process(self, owned: OwnedRun, batch: Sequence[Heard]) -> None:
        before, now = owned.run, self._seconds()
        run, effects = before, list[Effect]()
        for heard in batch:
            decision = decide(run, heard.event, now=now)
            run = decision.run
            effects += decision.effects
        await self._apply(owned, before, Decision(run, tuple(effects)), batch)

    async def _apply(self, owned: OwnedRun, before: Run, decision: Decision, batch: Sequence[Heard]) -> None:
        """Written first, then known, then told."""
        written, parts = Written(), list[Part]()
        if is_durable(before, decision) or _prepares(decision):
            async with self._pool.acquire() as conn, conn.transaction():
                written, parts = await self._write(conn, owned, before, decision, batch)
        self._follow(owned, decision, written, parts)
        if any(isinstance(effect, PlaceSeats) for effect in decision.effects) and owned.run.state not in OVER:
            await self._place(owned)

    async def _write(
        self, conn: Connection, owned: OwnedRun, before: Run, decision: Decision, batch: Sequence[Heard]
    ) -> tuple[Written, list[Part]]:
        """With what its orders name: the parts of the checkpoint that everybody goes back to."""
        written, parts = Written(), list[Part]()
        if is_durable(before, decision):
            run_id = owned.run.id
            written = await write_decision(
                conn,
                owned,
                before,
                decision,
                batch,
                owner_id=self.owner_id,
                spared=self.list_pinned(run_id),
                replayed_from=self.audits.find_oldest_step(run_id) if self.audits is not None else None,
            )
        if _prepares(decision):
            parts = await run_store.list_parts(conn, decision.run.id, decision.run.from_step)
        return written, parts

    def _follow(self, owned: OwnedRun, decision: Decision, written: Written, parts: Sequence[Part]) -> None:
        """What is committed is known and told from now on."""
        before = owned.run
        owned.know(decision.run)
        if (before.epoch, before.state) != (owned.run.epoch, owned.run.state):
            self.on_change(owned.run.id)
        self._tell(owned, decision.effects, parts)
        self._note_ended(written.ended)
        if self.audits is not None:
            self._audit(self.audits, owned, decision.effects)
        if written.loose:
            self._do_beside(self._free(owned, written.loose))
        if owned.run.state in OVER:
            self._do_beside(self._free(owned, ()))
            self._do_beside(note_pace(self._pool, before, owned.spec))
            self._forget(owned.run.id)

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
        self.on_change(run_id)

    # Placing

    async def _place(self, owned: OwnedRun) -> None:
        """Finds PNodes and writes their leases together with what follows for the run, or says why there are none."""
        before = owned.run
        async with self._pool.acquire() as conn, conn.transaction():
            event = await fill_seats(conn, self._prices, self._settings, owned, now=self._seconds())
            decision = decide(before, event, now=self._seconds())
            written, parts = await self._write(conn, owned, before, decision, [])
        # Where those who stay take all of it, the next order is given here.
        self._follow(owned, decision, written, parts)

    # Audits

    def _audit(self, audits: RunAudits, owned: OwnedRun, effects: Sequence[Effect]) -> None:
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

    def _tell(self, owned: OwnedRun, effects: Iterable[Effect], parts: Sequence[Part]) -> None:
        """Nothing here waits or fails: what was written is told."""
        for effect in effects:
            if isinstance(effect, SendPrepare | SendRun) and effect.epoch != owned.run.epoch:
                # Overtaken within one batch.
                continue
            if isinstance(effect, SendPrepare):
                self._post.send(effect.attempt_id, owned.write_order(effect.seat, parts))
            elif isinstance(effect, SendRun | SendDrop):
                self._post.send(effect.attempt_id, effect)
            elif isinstance(effect, SendProbe) and not self._post.send(effect.attempt_id, effect):
                self._do_beside(self._probe(owned, effect))

    async def _probe(self, owned: OwnedRun, effect: SendProbe) -> None:
        """A host without a session: is it to be dialled, or was its agent heard with it since?"""
        seat = owned.run.seats[effect.seat]
        asked_at = clock.seconds()
        closed_seconds = self._seconds() - seat.closed_at if seat.closed_at is not None else 0.0
        alive = await self._dials(seat, effect.attempt_id)
        while not alive and clock.seconds() - asked_at < SEARCH_SECONDS:
            await asyncio.sleep(TICK_SECONDS)
            heard_within = closed_seconds + clock.seconds() - asked_at - FLUSH_SECONDS
            async with self._pool.acquire() as conn:
                alive = effect.attempt_id in await run_store.list_alive(
                    conn, [effect.attempt_id], lease_seconds=self._settings.lease_seconds, seconds=heard_within
                )
        if alive:
            await self.hear(owned.run.id, Heard(ProbeAnswered(effect.seat, effect.attempt_id)))

    async def _dials(self, seat: Seat, attempt_id: AttemptId) -> bool:
        if not seat.address or seat.node_id is None or self._dial is None:
            return False
        try:
            async with asyncio.timeout(SEARCH_SECONDS):
                return await self._dial(seat.address, attempt_id, seat.node_id)
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

    async def _free(self, owned: OwnedRun, sha256s: Sequence[bytes]) -> None:
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


def _prepares(decision: Decision) -> bool:
    return decision.run.from_step > 0 and any(isinstance(each, SendPrepare) for each in decision.effects)
