"""The slots of the nodes that call here, and which of them are free. A cache: the database is true.

A slot stays in the fleet index while its node is remembered; being offered by a parked call makes it free, and being
leased or the end of the call makes it busy. Both are cheap; only a changed price, speed, reliability or condition
moves it. Hours are kept here too: whoever holds the call of a node that is closed treats it like a paused one.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeAlias

from computepool import clock
from computepool.core.ids import NodeId, SlotName
from computepool.core.market.offers import Schedule
from computepool.core.placement.pools import Fleet
from computepool.core.placement.price import Asked
from computepool.core.placement.scorers import Candidate, make_candidate, round_reliability
from computepool.core.placement.slot import Slot, SlotKind
from computepool.core.placement.weights import Weights
from computepool.hub.dispatch.evidence import Evidence
from computepool.hub.store import nodes as node_store
from computepool.hub.store.connect import Connection

# What is known of a node is read again after this long, in case a change was not heard of.
MEMORY_SECONDS = 60.0
REMEMBERED_MAX = 200_000
# Slots that get another price before calls are served again: some milliseconds.
REPRICED_AT_ONCE = 100

# Slot, its speed and its owner's floor -> what it is offered for.
Ask: TypeAlias = Callable[[Slot, float, int], Asked]


def ask_floor(slot: Slot, speed_tflops: float, floor: int) -> Asked:
    return Asked(floor, floor)


@dataclass(slots=True)
class _Known:
    good_until: float
    # Microcredits per hour.
    floor: int
    candidates: dict[SlotName, Candidate]
    # The number of the change of prices that they have followed.
    pricing: int


class Registry:
    def __init__(self, sets: Mapping[str, Weights], evidence: Evidence, ask: Ask = ask_floor) -> None:
        self.fleet = Fleet(sets)
        self._evidence = evidence
        self._ask = ask
        evidence.on_change = self._update_reliability
        self._nodes: OrderedDict[NodeId, _Known] = OrderedDict()
        # How often prices have changed.
        self._pricing = 0
        # Of the nodes that are not lent at all hours.
        self._schedules: dict[NodeId, Schedule] = {}

    def __contains__(self, node_id: object) -> bool:
        return node_id in self._nodes

    def is_old(self, node_id: NodeId) -> bool:
        return self._nodes[node_id].good_until < clock.seconds()

    def is_closed(self, node_id: NodeId, now: datetime) -> bool:
        """Outside of the hours at which its owner lends it."""
        schedule = self._schedules.get(node_id)
        return schedule is not None and not schedule.is_open(now)

    def list_scheduled(self) -> list[NodeId]:
        """Nodes that may close or open with the hour."""
        return list(self._schedules)

    async def load(self, conn: Connection, node_ids: Iterable[NodeId]) -> None:
        """Reads the slots of these nodes in one query. What is free stays free."""
        found: dict[NodeId, dict[SlotName, Candidate]] = defaultdict(dict)
        floors: dict[NodeId, int] = {}
        schedules: dict[NodeId, Schedule | None] = {}
        wanted = list(node_ids)
        await self._evidence.load(conn, wanted)
        for offered in await node_store.list_candidates(conn, wanted):
            if offered.is_out:
                continue
            slot = offered.slot
            floors[slot.node_id] = offered.floor_microcredits_per_hour
            schedules[slot.node_id] = offered.schedule
            candidate = make_candidate(
                slot,
                price_microcredits_per_hour=offered.floor_microcredits_per_hour,
                reliability=self._evidence.bound(slot.node_id, slot.kind),
                declared_tflops=offered.declared_tflops,
                owner_id=offered.owner_id,
                serving_since=offered.serving_since,
            )
            found[slot.node_id][slot.name] = self._price(candidate, floors[slot.node_id])
        for node_id in wanted:
            self._set(node_id, floors.get(node_id, 0), found[node_id])
            self._set_schedule(node_id, schedules.get(node_id))

    def _price(self, candidate: Candidate, floor: int) -> Candidate:
        asked = self._ask(candidate.slot, candidate.speed_tflops, floor)
        before = (
            candidate.price_microcredits_per_hour,
            candidate.base_price_microcredits_per_hour,
            candidate.spot_microcredits_per_hour,
            candidate.reference_microcredits_per_hour,
        )
        if asked == before:
            return candidate
        return replace(
            candidate,
            price_microcredits_per_hour=asked.price,
            base_price_microcredits_per_hour=asked.base_price,
            spot_microcredits_per_hour=asked.spot,
            reference_microcredits_per_hour=asked.reference,
        )

    def _set(self, node_id: NodeId, floor: int, candidates: dict[SlotName, Candidate]) -> None:
        known = self._nodes.get(node_id)
        for name in known.candidates if known else ():
            if (node_id, name) not in self.fleet:
                continue
            if name in candidates:
                self.fleet.update(candidates[name])
            else:
                self.fleet.remove(node_id, name)
        self._nodes[node_id] = _Known(clock.seconds() + MEMORY_SECONDS, floor, candidates, self._pricing)
        while len(self._nodes) > REMEMBERED_MAX:
            self.forget(next(iter(self._nodes)))

    def _set_schedule(self, node_id: NodeId, schedule: Schedule | None) -> None:
        if schedule is None:
            self._schedules.pop(node_id, None)
        elif node_id in self._nodes:
            self._schedules[node_id] = schedule

    def forget(self, node_id: NodeId) -> None:
        known = self._nodes.pop(node_id, None)
        self._schedules.pop(node_id, None)
        for name in known.candidates if known else ():
            if (node_id, name) in self.fleet:
                self.fleet.remove(node_id, name)

    def forget_all_soon(self) -> None:
        """Something about nodes has changed: everything is read again when its node is next looked at."""
        for known in self._nodes.values():
            known.good_until = 0.0

    def offer(self, node_id: NodeId, names: Iterable[str]) -> None:
        """A call of the node is parked with these slots free. What a node says can only name slots that it has."""
        known = self._nodes.get(node_id)
        if known is None:
            return
        self._nodes.move_to_end(node_id)
        if known.pricing != self._pricing:
            self._reprice(known)
        for name in names:
            candidate = known.candidates.get(SlotName(name))
            if candidate is None:
                continue
            if (node_id, candidate.slot.name) not in self.fleet:
                self.fleet.add(candidate)
            elif not self.fleet.is_free(node_id, candidate.slot.name):
                self.fleet.give(node_id, candidate.slot.name)

    def withdraw(self, node_id: NodeId, names: Iterable[str] | None = None) -> None:
        """The node's slots, or the named ones, take nothing more for now."""
        known = self._nodes.get(node_id)
        if known is None:
            return
        for name in known.candidates if names is None else names:
            key = (node_id, SlotName(name))
            if key in self.fleet and self.fleet.is_free(*key):
                self.fleet.withdraw(*key)

    def _update_reliability(self, node_ids: Iterable[NodeId]) -> None:
        """New evidence about these nodes: their slots move in the order of scores."""
        for node_id in node_ids:
            known = self._nodes.get(node_id)
            if known is None:
                continue
            bounds = {kind: round_reliability(self._evidence.bound(node_id, kind)) for kind in SlotKind}
            for old in list(known.candidates.values()):
                bound = bounds[old.slot.kind]
                if bound != old.reliability:
                    self._replace(known, replace(old, reliability=bound))

    async def reprice(self) -> None:
        """What slots ask may have changed: those that are free move in the order of scores, some at a time so that
        calls go on. Where spot has force most slots are busy: those follow when they are next offered."""
        self._pricing += 1
        looked = 0
        for node_id in {candidate.slot.node_id for candidate in self.fleet}:
            known = self._nodes.get(node_id)
            if known is None or known.pricing == self._pricing:
                continue
            self._reprice(known)
            looked += len(known.candidates)
            if looked >= REPRICED_AT_ONCE:
                looked = 0
                await asyncio.sleep(0)

    def _reprice(self, known: _Known) -> None:
        known.pricing = self._pricing
        for old in list(known.candidates.values()):
            candidate = self._price(old, known.floor)
            if candidate is not old:
                self._replace(known, candidate)

    def _replace(self, known: _Known, candidate: Candidate) -> None:
        slot = candidate.slot
        known.candidates[slot.name] = candidate
        if (slot.node_id, slot.name) in self.fleet:
            self.fleet.update(candidate)
