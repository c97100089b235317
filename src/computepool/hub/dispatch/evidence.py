"""How far nodes can be relied on: counted in memory as attempts end, written once a second, asked by placement.

Nothing here is on the way of a transaction. Of a node that is new to this hub the least is assumed until its record
has been read, which takes a second at most.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from computepool import clock
from computepool.core.ids import NodeId
from computepool.core.jobs.cause import NODE_FAULTS
from computepool.core.placement.slot import SlotKind
from computepool.core.trust.reputation import Reliability, reliability_bound, to_job_class
from computepool.hub.services.reliabilities import record_outcomes
from computepool.hub.services.transitions import EndedAttempt
from computepool.hub.store import reliabilities as reliability_store
from computepool.hub.store.connect import Connection, Pool
from computepool.hub.store.reliabilities import EvidenceKey

log = logging.getLogger("computepool.dispatch")

FLUSH_SECONDS = 1.0
KEYS_PER_FLUSH = 2_000
NODES_PER_LOAD = 5_000
# Older ones would hardly move the bound: its memory is about fifty events.
OUTCOMES_MAX = 256
PENDING_MAX = 200_000
NODES_MAX = 200_000
# What is known of a node is read again after this long: it may have worked for other hubs since.
MEMORY_SECONDS = 60.0


@dataclass(slots=True)
class _Known:
    read_at: float
    by_class: dict[str, Reliability] = field(default_factory=dict)


class Evidence:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        # What is not written yet: per node and class of jobs, whether each attempt ended well.
        self._pending: dict[EvidenceKey, deque[bool]] = {}
        self._known: OrderedDict[NodeId, _Known] = OrderedDict()
        # Asked for, and not read yet or not lately.
        self._wanted: dict[NodeId, None] = {}
        # Told of nodes whose bounds may have moved.
        self.on_change: Callable[[Collection[NodeId]], None] | None = None

    def bound(self, node_id: NodeId, kind: SlotKind) -> float:
        """The share of attempts on a slot of this kind that the node finishes at least, as far as we may be sure."""
        found = self._known.get(node_id)
        if found is None or found.read_at + MEMORY_SECONDS < clock.seconds():
            self._wanted[node_id] = None
        by_class = found.by_class if found is not None else {}
        known = by_class.get(to_job_class(gpu=kind is SlotKind.GPU), Reliability())
        return reliability_bound(known, now=clock.now())

    def note_ended(self, ended: Sequence[EndedAttempt]) -> None:
        """After the commit. What ended by the submitter's or nobody's fault says nothing about the node."""
        for attempt in ended:
            if attempt.cause is None or attempt.cause in NODE_FAULTS:
                job_class = to_job_class(gpu=attempt.slot.startswith(SlotKind.GPU.value))
                self._note(attempt.node_id, job_class, well=attempt.cause is None)

    def _note(self, node_id: NodeId, job_class: str, *, well: bool) -> None:
        outcomes = self._pending.get((node_id, job_class))
        if outcomes is None:
            if len(self._pending) >= PENDING_MAX:
                return
            outcomes = self._pending[node_id, job_class] = deque(maxlen=OUTCOMES_MAX)
        outcomes.append(well)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            try:
                await self.flush()
                await self._load_wanted()
            except Exception as error:
                log.warning("evidence_not_written error=%r", error)

    async def flush(self) -> None:
        """Writes what was counted, as much as fits into one transaction."""
        batch = {key: self._pending.pop(key) for key in list(islice(self._pending, KEYS_PER_FLUSH))}
        if not batch:
            return
        try:
            known = await record_outcomes(self._pool, batch, now=clock.now())
        except BaseException:
            self._put_back(batch)
            raise
        self._remember(known)
        self._tell({node_id for node_id, _ in known})

    def _put_back(self, batch: Mapping[EvidenceKey, deque[bool]]) -> None:
        for key, outcomes in batch.items():
            later = self._pending.get(key, ())
            self._pending[key] = deque((*outcomes, *later), maxlen=OUTCOMES_MAX)

    async def load(self, conn: Connection, node_ids: Iterable[NodeId]) -> None:
        """Reads what is known of these nodes. Afterwards they count as known, even if that is nothing."""
        wanted = list(node_ids)
        found = await reliability_store.list_reliabilities(conn, wanted)
        for node_id in wanted:
            self._wanted.pop(node_id, None)
            self._known[node_id] = _Known(clock.seconds())
        self._remember(found)

    async def _load_wanted(self) -> None:
        while len(self._wanted) > NODES_MAX:
            self._wanted.popitem()
        wanted = list(islice(self._wanted, NODES_PER_LOAD))
        if not wanted:
            return
        async with self._pool.acquire() as conn:
            await self.load(conn, wanted)
        self._tell(wanted)

    def _remember(self, known: Mapping[EvidenceKey, Reliability]) -> None:
        for (node_id, job_class), reliability in known.items():
            if node_id in self._known:
                self._known[node_id].by_class[job_class] = reliability
                self._known.move_to_end(node_id)
        while len(self._known) > NODES_MAX:
            self._known.popitem(last=False)

    def _tell(self, node_ids: Collection[NodeId]) -> None:
        if self.on_change is not None:
            self.on_change(node_ids)
