"""Looks four times a second, while somebody watches, at what has happened, and tells each viewer their part of it.

Every hub looks for itself, whichever hub has written: nothing has to be announced, and nothing can be missed
(docs/internals/live.md). Rows that a viewer gets are read after the events that they follow from, and carry the
newest of their ids as a version.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field

import msgspec

from computepool import clock
from computepool.core.accounts.roles import Role
from computepool.core.errors import AccountSuspended, Unauthenticated
from computepool.core.ids import AccountId, JobId, NodeId, RunId
from computepool.core.live.tail import STALE_SECONDS, Tail, parse_cursor, say_cursor
from computepool.hub.live.mesh import ARCS_MAX, EDGES_MAX, NODES_MAX, SHOWN_SECONDS, MeshState
from computepool.hub.live.viewers import Topic, Viewer, Viewers, to_message
from computepool.hub.services.callers import Callers
from computepool.hub.services.nodes import NodeWithSlots, list_with_slots
from computepool.hub.store import jobs as job_store
from computepool.hub.store import live as store
from computepool.hub.store import runs as run_store
from computepool.hub.store.connect import Connection, Pool
from computepool.hub.store.jobs import Job
from computepool.hub.store.live import FeedEvent
from computepool.hub.store.runs import FeedLine
from computepool.wire import jobs as job_wire
from computepool.wire import live as wire
from computepool.wire import market as market_wire
from computepool.wire import networks as network_wire
from computepool.wire import nodes as node_wire

log = logging.getLogger("computepool.live")

TICK_SECONDS = 0.25
PULSE_SECONDS = 5.0
# A look that takes longer than this has failed: viewers are told that it is not live.
LOOK_SECONDS_MAX = 4.0
# What is not told by events (who fell silent, what waits, prices) is looked at this often, less often in large grids.
SWEEP_SECONDS = 5.0
COUNT_SECONDS = 1.0
LOOK_ROWS_MAX = 5_000
EVENTS_PER_FRAME_MAX = 200
ROWS_PER_FRAME_MAX = 200
RUN_LINES_MAX = 500
RESUME_ROWS_MAX = 10_000
COUNTED_MAX = 100_000
MESH_MEMORY_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Shapes:
    """How rows are written for people; the transport knows."""

    job: Callable[[Job], job_wire.Job]
    node: Callable[[NodeWithSlots], node_wire.Node]
    line: Callable[[FeedLine], network_wire.RunLine]
    spots: Callable[[], Awaitable[list[market_wire.Spot]]]


@dataclass(slots=True)
class _Change:
    """What has happened in one tick."""

    events: list[FeedEvent] = field(default_factory=list)
    mesh: wire.MeshDelta | None = None
    owners: dict[AccountId, list[NodeId]] = field(default_factory=dict)
    jobs: dict[JobId, Job] = field(default_factory=dict)
    nodes: dict[NodeId, NodeWithSlots] = field(default_factory=dict)
    counts: wire.Counts | None = None
    prices: list[market_wire.Spot] | None = None
    lines: dict[RunId, list[FeedLine]] = field(default_factory=dict)
    # Something was missed: everybody loads afresh.
    lost: bool = False


class Live:
    def __init__(
        self, pool: Pool, callers: Callers, shapes: Shapes, *, pseudonym_key: bytes, silence_seconds: float
    ) -> None:
        self._pool = pool
        self._callers = callers
        self._shapes = shapes
        self._key = pseudonym_key
        self._silence_seconds = silence_seconds
        self.viewers = Viewers()
        self._tail: Tail[FeedEvent] | None = None
        self._mesh = MeshState(pseudonym_key)
        self._mesh_seconds = float("-inf")
        self._mesh_version = 0
        self._mesh_json = (float("-inf"), b"")
        self._mesh_lock = asyncio.Lock()
        self._swept_seconds = float("-inf")
        self._counted_seconds = float("-inf")
        self._counts: wire.Counts | None = None
        self._prices: list[market_wire.Spot] | None = None
        self._run_marks: dict[RunId, int] = {}
        self._looked_seconds = clock.seconds()
        self._told_seconds: dict[Topic, float] = {}
        self._doubted: set[str] = set()
        self._checking: asyncio.Task[None] | None = None
        self._closing = False

    # Viewers come and go

    async def join(self, viewer: Viewer, *, cursor: str | None) -> None:
        """From now on it hears everything; what it missed since its cursor comes first, if that can be told."""
        if self._closing:
            viewer.end(wire.ByeCode.CLOSING)
        self.viewers.add(viewer)
        try:
            await self._start()
            missed = await self._list_missed(cursor)
            hello = wire.LiveHello(at=clock.now(), version=self._version, resumed=missed is not None)
            viewer.put(to_message("hello", hello, cursor=self._cursor))
            if missed:
                change = _Change(events=missed)
                async with self._pool.acquire() as conn:
                    await self._load_rows(conn, change, [viewer.topic])
                frame = self._to_frame(viewer.topic, change)
                if frame is not None:
                    viewer.put(to_message("delta", frame, cursor=self._cursor))
        except BaseException:
            self.viewers.remove(viewer)
            raise

    def leave(self, viewer: Viewer) -> None:
        self.viewers.remove(viewer)

    def close(self) -> None:
        self._closing = True
        self.viewers.end_all(wire.ByeCode.CLOSING)

    def check_soon(self, account_id: AccountId | None) -> None:
        """Keys, roles or the standing of an account have changed; None: anybody's may have."""
        self._doubted |= {viewer.credential for viewer in self.viewers.list_of_account(account_id)}
        if self._doubted and (self._checking is None or self._checking.done()):
            self._checking = asyncio.ensure_future(self._check_doubted())

    async def _check_doubted(self) -> None:
        """One key after the other, however many streams it has opened: dispatch needs the database more."""
        while self._doubted:
            credential = self._doubted.pop()
            try:
                roles = (await self._callers.get_account(credential)).roles
            except (Unauthenticated, AccountSuspended):
                roles = None
            except Exception as error:
                log.warning("viewers_unchecked error=%r", error)
                continue
            for viewer in self.viewers:
                if viewer.credential == credential and (
                    roles is None or (viewer.topic.everyone and Role.OPERATOR not in roles)
                ):
                    viewer.end(wire.ByeCode.SIGNED_OUT)

    # What has happened

    async def run(self) -> None:
        while True:
            if not len(self.viewers):
                self._rest()
                self.viewers.came.clear()
                await self.viewers.came.wait()
            started = clock.seconds()
            try:
                async with asyncio.timeout(LOOK_SECONDS_MAX):
                    change = await self._look()
            except Exception as error:
                log.warning("look_failed error=%r", error)
                change = _Change()
            await self._tell(change)
            await asyncio.sleep(max(0.01, TICK_SECONDS - (clock.seconds() - started)))

    def _rest(self) -> None:
        """Nobody watches: what is remembered would only grow old."""
        self._tail = None
        self._run_marks.clear()
        self._told_seconds.clear()

    async def _start(self) -> None:
        if self._tail is not None:
            return
        async with self._pool.acquire() as conn:
            tail = await store.start_tail(conn)
        if self._tail is None:
            self._tail = tail
            self._looked_seconds = clock.seconds()
            # The mesh follows this tail's events from what is there now.
            self._swept_seconds = float("-inf")

    async def _look(self) -> _Change:
        change = _Change()
        await self._start()
        tail = self._tail
        assert tail is not None
        async with self._pool.acquire() as conn:
            seen = await store.look(conn, newest_id=tail.newest_id, gaps=tail.gaps, limit=LOOK_ROWS_MAX)
            now = clock.seconds()
            change.events = tail.take(seen, seconds=now)
            change.lost, tail.overflowed = tail.overflowed, False
            self._looked_seconds = now
            topics = self.viewers.topics
            await self._refresh_mesh(conn, change, now)
            change.mesh, change.owners = self._mesh.take_changes()
            await self._load_rows(conn, change, topics)
            await self._load_lines(conn, change, topics)
        return change

    async def _refresh_mesh(self, conn: Connection, change: _Change, now: float) -> None:
        if now - self._swept_seconds >= SWEEP_SECONDS + len(self._mesh.nodes) / 1_000:
            await self._sweep(conn)
            self._swept_seconds = clock.seconds()
            prices = await self._shapes.spots()
            if prices != self._prices:
                self._prices = change.prices = prices
        else:
            node_ids = {event.node_id for event in change.events if event.node_id is not None}
            job_ids = {event.job_id for event in change.events if event.job_id is not None}
            if node_ids:
                self._mesh.put_nodes(await self._list_nodes(conn, node_ids), asked=node_ids)
            if job_ids:
                live = await store.list_live(conn, limit=ARCS_MAX, job_ids=job_ids)
                self._mesh.put_live(live, asked=job_ids)
        self._mesh_seconds, self._mesh_version = clock.seconds(), self._version
        if now - self._counted_seconds >= COUNT_SECONDS:
            self._counted_seconds = now
            if change.events:
                self._mesh.put_open(await store.count_open(conn, count_max=COUNTED_MAX))
            counts = self._mesh.to_counts()
            if counts != self._counts:
                self._counts = change.counts = counts

    async def _sweep(self, conn: Connection) -> None:
        """Everything anew."""
        self._mesh.put_nodes(await self._list_nodes(conn, None), asked=None)
        self._mesh.put_live(await store.list_live(conn, limit=ARCS_MAX), asked=None)
        self._mesh.put_edges(await store.list_edges(conn, limit=EDGES_MAX))
        self._mesh.put_open(await store.count_open(conn, count_max=COUNTED_MAX))

    async def _list_nodes(self, conn: Connection, node_ids: Collection[NodeId] | None) -> list[store.SeenNode]:
        return await store.list_nodes(
            conn,
            silence_seconds=self._silence_seconds,
            shown_seconds=SHOWN_SECONDS,
            limit=NODES_MAX,
            node_ids=node_ids,
        )

    async def _load_rows(self, conn: Connection, change: _Change, topics: Sequence[Topic]) -> None:
        """The jobs and nodes that somebody who watches will be told of."""
        watched = {topic.account_id for topic in topics if topic.account_id is not None}
        everyone = any(topic.everyone for topic in topics)
        mine = [event for event in change.events if everyone or event.account_id in watched]
        job_ids = list({event.job_id: None for event in mine if event.job_id is not None})[-ROWS_PER_FRAME_MAX * 5 :]
        node_ids = {event.node_id: None for event in mine if event.node_id is not None}
        for account_id, changed in change.owners.items():
            if everyone or account_id in watched:
                node_ids |= dict.fromkeys(changed)
        if job_ids:
            found_jobs = await job_store.find_jobs(conn, job_ids)
            # Runs that check results belong to the jobs that they check, as in every list.
            change.jobs = {id: job for id, job in found_jobs.items() if job.checks_attempt_id is None}
        if node_ids:
            found = await list_with_slots(conn, list(node_ids)[-ROWS_PER_FRAME_MAX * 5 :])
            change.nodes = {each.node.id: each for each in found}

    async def _load_lines(self, conn: Connection, change: _Change, topics: Sequence[Topic]) -> None:
        watched = {topic.run_id for topic in topics if topic.run_id is not None}
        for gone in self._run_marks.keys() - watched:
            del self._run_marks[gone]
        for run_id in watched:
            if run_id not in self._run_marks:
                self._run_marks[run_id] = await store.find_newest_line(conn, run_id)
                continue
            lines = await run_store.list_feed(conn, run_id, after=self._run_marks[run_id], limit=RUN_LINES_MAX)
            if lines:
                change.lines[run_id] = lines
                self._run_marks[run_id] = lines[-1].id

    async def _list_missed(self, cursor: str | None) -> list[FeedEvent] | None:
        """What has happened since a cursor; None if that cannot be told."""
        known = parse_cursor(cursor)
        if known is None or known[1] > self._version:
            return None
        async with self._pool.acquire() as conn:
            missed = await store.list_since(conn, watermark=known[0], limit=RESUME_ROWS_MAX + 1)
        return missed if len(missed) <= RESUME_ROWS_MAX else None

    # What is told

    @property
    def _version(self) -> int:
        return self._tail.newest_id if self._tail is not None else 0

    @property
    def _cursor(self) -> str:
        return say_cursor(self._tail.watermark, self._tail.newest_id) if self._tail is not None else ""

    @property
    def watermark_seconds(self) -> float:
        return self._tail.find_age(seconds=clock.seconds()) if self._tail is not None else 0.0

    @property
    def look_seconds(self) -> float:
        """Since the last look; 0 when nobody watches."""
        return clock.seconds() - self._looked_seconds if self._tail is not None else 0.0

    async def _tell(self, change: _Change) -> None:
        reset = to_message("reset", wire.LiveReset(message="Too much happened at once. Load everything afresh."))
        pulse = self._say_pulse()
        now = clock.seconds()
        for topic in self.viewers.topics:
            if change.lost:
                await self.viewers.publish(topic, reset)
            frame = self._to_frame(topic, change)
            if frame is not None:
                await self.viewers.publish(topic, to_message("delta", frame, cursor=self._cursor))
            elif now - self._told_seconds.get(topic, float("-inf")) >= PULSE_SECONDS:
                await self.viewers.publish(topic, pulse)
            else:
                continue
            self._told_seconds[topic] = now
        for topic in self._told_seconds.keys() - set(self.viewers.topics):
            del self._told_seconds[topic]

    def _say_pulse(self) -> bytes:
        age = self.watermark_seconds
        pulse = wire.LivePulse(
            at=clock.now(),
            stale=age > STALE_SECONDS,
            watermark_seconds=round(age, 2),
            look_seconds=round(self.look_seconds, 2),
        )
        return to_message("pulse", pulse, cursor=self._cursor)

    def _to_frame(self, topic: Topic, change: _Change) -> wire.LiveFrame | None:
        """The part of a change that this topic is about; None if there is none."""
        public = topic.is_public or topic.mesh
        own = [] if topic.is_public else self._list_own(topic, change)
        jobs, nodes = self._list_own_rows(topic, change, own)
        lines = change.lines.get(topic.run_id, ()) if topic.run_id is not None else ()
        mesh = change.mesh if public else None
        counts = change.counts if public else None
        prices = change.prices if public else None
        if not (own or jobs or nodes or lines or mesh or counts or prices is not None):
            return None
        version, age = self._version, self.watermark_seconds
        return wire.LiveFrame(
            at=clock.now(),
            version=version,
            stale=age > STALE_SECONDS,
            watermark_seconds=round(age, 2),
            look_seconds=round(self.look_seconds, 2),
            events=[_to_event(event) for event in own[-EVENTS_PER_FRAME_MAX:]],
            truncated=len(own) > EVENTS_PER_FRAME_MAX or max(len(jobs), len(nodes)) > ROWS_PER_FRAME_MAX,
            jobs=[wire.JobRow(version=version, job=self._shapes.job(job)) for job in jobs[-ROWS_PER_FRAME_MAX:]],
            nodes=[wire.NodeRow(version=version, node=self._shapes.node(n)) for n in nodes[-ROWS_PER_FRAME_MAX:]],
            credits=bool(own or nodes),
            runs=self._to_updates(topic, lines),
            mesh=mesh,
            counts=counts,
            prices=prices,
        )

    def _to_updates(self, topic: Topic, lines: Sequence[FeedLine]) -> list[wire.RunUpdate]:
        if topic.run_id is None or not lines:
            return []
        return [wire.RunUpdate(run_id=topic.run_id, lines=[self._shapes.line(line) for line in lines])]

    def _list_own(self, topic: Topic, change: _Change) -> list[FeedEvent]:
        return [event for event in change.events if topic.everyone or event.account_id == topic.account_id]

    def _list_own_rows(
        self, topic: Topic, change: _Change, own: Sequence[FeedEvent]
    ) -> tuple[list[Job], list[NodeWithSlots]]:
        """Whose they are is asked of the rows themselves: events alone would not be proof enough."""
        if topic.is_public:
            return [], []
        named = {event.job_id for event in own}
        jobs = [job for id, job in change.jobs.items() if id in named]
        if topic.everyone:
            return jobs, list(change.nodes.values())
        return (
            [job for job in jobs if job.account_id == topic.account_id],
            [node for node in change.nodes.values() if node.node.account_id == topic.account_id],
        )

    # The mesh at one moment

    async def get_mesh_json(self, hub_point: wire.HubPoint | None) -> bytes:
        """Encoded once for all who ask within a moment."""
        made_seconds, encoded = self._mesh_json
        if clock.seconds() - made_seconds > MESH_MEMORY_SECONDS:
            mesh = msgspec.structs.replace(await self.get_mesh(), hub=hub_point)
            encoded = msgspec.json.encode(mesh)
            self._mesh_json = (clock.seconds(), encoded)
        return encoded

    async def get_mesh(self) -> wire.Mesh:
        async with self._mesh_lock:
            # While somebody watches, every tick brings it up to date.
            good_seconds = MESH_MEMORY_SECONDS if self._tail is None else 2 * LOOK_SECONDS_MAX
            if clock.seconds() - self._mesh_seconds > good_seconds:
                await self._load_mesh()
            mesh = self._mesh
            return wire.Mesh(
                version=self._mesh_version,
                at=clock.now(),
                nodes=mesh.list_nodes(),
                arcs=mesh.list_arcs(),
                edges=mesh.list_edges(),
                counts=mesh.to_counts(),
                truncated=mesh.is_truncated,
            )

    async def _load_mesh(self) -> None:
        async with self._pool.acquire() as conn:
            # The version first: what happens meanwhile is told again.
            start = await store.start_tail(conn)
            await self._sweep(conn)
        self._mesh_seconds, self._mesh_version = clock.seconds(), start.newest_id
        if self._tail is None:
            # Nobody watches, so that nobody is owed the difference.
            self._mesh.take_changes()

    async def find_node(self, pseudonym: str) -> store.SeenNode | None:
        await self.get_mesh()
        return self._mesh.find_node(pseudonym)


def _to_event(event: FeedEvent) -> wire.LiveEvent:
    return wire.LiveEvent(
        id=event.id,
        at=event.at,
        kind=event.kind,
        account_id=event.account_id,
        job_id=event.job_id,
        node_id=event.node_id,
        body=event.body,
    )
