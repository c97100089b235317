"""Grants leases: takes the heads of the queue, lets core pair them with free slots, writes the attempts."""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import msgspec

from computepool import clock, entropy
from computepool.core.ids import AttemptId, JobId, ShapeId
from computepool.core.jobs.lease import Attempt
from computepool.core.jobs.ranges import to_ranges
from computepool.core.jobs.spec import SCRIPT_FILE_NAME
from computepool.core.placement.place import Head, Pair, list_feasible, place
from computepool.core.placement.shape import Shape
from computepool.core.placement.slot import Slot
from computepool.hub.config import HubSettings
from computepool.hub.services.keyring import JOB_TOKEN_TYPE, Keyring
from computepool.hub.store import attempts as attempt_store
from computepool.hub.store import events as event_store
from computepool.hub.store import hub as hub_store
from computepool.hub.store import jobs as job_store
from computepool.hub.store import shapes as shape_store
from computepool.hub.store import slices as slice_store
from computepool.hub.store.attempts import Grant
from computepool.hub.store.connect import Connection, Pool
from computepool.hub.store.events import NewEvent
from computepool.hub.store.jobs import JobOrder
from computepool.hub.store.slices import TakenHead
from computepool.wire.attempts import Assignment, RunOrder
from computepool.wire.jobs import JobSpec

# Leases granted by one transaction at most.
GRANTS_MAX = 512
ORDERS_REMEMBERED_MAX = 2_000


class Leases:
    """Remembers what never changes (shapes, and what recent jobs ask to run), so that a grant need not load it."""

    def __init__(self, pool: Pool, keyring: Keyring, settings: HubSettings) -> None:
        self._pool = pool
        self._keyring = keyring
        self._settings = settings
        self._shapes: dict[ShapeId, Shape] = {}
        self._orders: OrderedDict[JobId, _Order] = OrderedDict()

    async def grant(self, free: Sequence[Slot]) -> list[Grant]:
        """Leases to fill these slots with, as far as the queue reaches. Committed when this returns."""
        async with self._pool.acquire() as conn, conn.transaction():
            shapes = await self._list_backlog(conn)
            counts = list_feasible(shapes, free)
            if not counts:
                return []
            wanted = {shape_id: min(count, GRANTS_MAX) for shape_id, count in counts.items()}
            now = await hub_store.get_now(conn)
            while True:
                taken = await slice_store.take_heads(conn, wanted)
                pairs = place([t.head for t in taken], shapes, free, now=now)
                wanted = _look_further(wanted, [t.head for t in taken], pairs, len(free))
                if not wanted:
                    return await self._write(conn, pairs[:GRANTS_MAX], taken)

    async def _list_backlog(self, conn: Connection) -> dict[ShapeId, Shape]:
        backlog = await shape_store.list_backlogged(conn)
        unknown = [shape_id for shape_id in backlog if shape_id not in self._shapes]
        if unknown:
            self._shapes.update(await shape_store.list_shapes(conn, unknown))
        return {shape_id: self._shapes[shape_id] for shape_id in backlog}

    async def _write(self, conn: Connection, pairs: Sequence[Pair], taken: Sequence[TakenHead]) -> list[Grant]:
        counts = {(t.head.job_id, t.head.slice_index): t.attempt_count for t in taken}
        grants = [
            Grant(
                id=AttemptId(entropy.new_id()),
                job_id=pair.head.job_id,
                slice_index=pair.head.slice_index,
                number=counts[(pair.head.job_id, pair.head.slice_index)] + 1,
                node_id=pair.slot.node_id,
                slot=pair.slot.name,
            )
            for pair in pairs
        ]
        if not grants:
            return []
        inserted = await attempt_store.insert_attempts(conn, grants, lease_seconds=self._settings.lease_seconds)
        granted = [grant for grant in grants if grant.id in inserted]
        if not granted:
            return []
        await slice_store.lease_slices(conn, [(g.job_id, g.slice_index, g.number) for g in granted])
        job_ids = {g.job_id for g in granted}
        await job_store.start_jobs(conn, job_ids)
        await self._load_orders(conn, job_ids)
        await event_store.record_events(conn, [self._to_event(job_id, granted) for job_id in sorted(job_ids)])
        return granted

    def _to_event(self, job_id: JobId, granted: Sequence[Grant]) -> NewEvent:
        indexes = [g.slice_index for g in granted if g.job_id == job_id]
        return NewEvent(
            kind="slices_leased",
            account_id=self._orders[job_id].order.account_id,
            job_id=job_id,
            body={"slices": to_ranges(indexes)},
        )

    async def make_assignments(self, leased: Sequence[Grant | Attempt]) -> list[Assignment]:
        """What the node is told; the same again when an answer was lost on its way."""
        async with self._pool.acquire() as conn:
            await self._load_orders(conn, {lease.job_id for lease in leased})
        return [self._to_assignment(lease) for lease in leased if lease.job_id in self._orders]

    async def _load_orders(self, conn: Connection, job_ids: Set[JobId]) -> None:
        """After this the orders of these jobs are at hand; the others that were not needed for longest go."""
        unknown = [job_id for job_id in job_ids if job_id not in self._orders]
        if unknown:
            for job_id, order in (await job_store.list_orders(conn, unknown)).items():
                self._orders[job_id] = _Order(order, msgspec.convert(order.spec, JobSpec))
        for job_id in job_ids & self._orders.keys():
            self._orders.move_to_end(job_id)
        while len(self._orders) > max(ORDERS_REMEMBERED_MAX, len(job_ids)):
            self._orders.popitem(last=False)

    def _to_assignment(self, lease: Grant | Attempt) -> Assignment:
        order = msgspec.json.encode(self._to_order(lease, self._orders[lease.job_id]))
        attempt_id = lease.id
        now = int(clock.unix_seconds())
        claims = {
            "iss": str(self._keyring.hub_id),
            "aud": str(lease.node_id),
            "jti": str(attempt_id),
            "iat": now,
            "exp": now + self._settings.job_token_seconds,
            "order_sha256": hashlib.sha256(order).hexdigest(),
        }
        return Assignment(
            attempt_id=attempt_id,
            slot=lease.slot,
            lease_secret=self._keyring.lease_secret(attempt_id),
            lease_seconds=self._settings.lease_seconds,
            token=self._keyring.sign(claims, typ=JOB_TOKEN_TYPE),
            order=order.decode(),
        )

    def _to_order(self, lease: Grant | Attempt, job: _Order) -> RunOrder:
        spec = job.spec
        need = spec.requirements
        return RunOrder(
            attempt_id=lease.id,
            job_id=lease.job_id,
            slice_index=lease.slice_index,
            slice_count=job.order.slice_count,
            attempt_number=lease.number,
            slot=lease.slot,
            command=spec.command or ("python3", SCRIPT_FILE_NAME),
            script=spec.script,
            files=spec.files,
            env=spec.env,
            vram_bytes=need.vram_bytes,
            cores=need.cores,
            ram_bytes=need.ram_bytes,
            disk_bytes=need.disk_bytes,
            wall_seconds=job.order.wall_seconds,
            log_bytes=self._settings.log_bytes_max,
            isolation=need.isolation,
        )


def _look_further(
    wanted: Mapping[ShapeId, int], heads: Sequence[Head], pairs: Sequence[Pair], free_count: int
) -> dict[ShapeId, int]:
    """How many heads to take when those in front keep away from the nodes that are free; empty when it is enough.

    The slices behind them may have nothing against these nodes.
    """
    placed = {(pair.head.job_id, pair.head.slice_index) for pair in pairs}
    shy = {h.shape_id for h in heads if h.avoid_node_id and (h.job_id, h.slice_index) not in placed}
    if not shy or len(pairs) >= free_count:
        return {}
    counts = Counter(head.shape_id for head in heads)
    more = {id for id in shy if counts[id] >= wanted[id] and wanted[id] < GRANTS_MAX}
    return {id: min(GRANTS_MAX, 4 * k) if id in more else k for id, k in wanted.items()} if more else {}


@dataclass(frozen=True, slots=True)
class _Order:
    order: JobOrder
    spec: JobSpec
