"""What other hub processes have free, told many times a second while work flows, so that a slice is not given a worse
slot here while a better one waits there. A hint, never a promise: a slice waits for it a moment only."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any
from uuid import UUID

from computepool import clock
from computepool.core.ids import AccountId, NodeId, SlotName
from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.jobs.spec import Requirements
from computepool.core.market.offers import DEFAULT_KIND, SECONDS_MIN_STEPS
from computepool.core.placement.checks import find_refusal
from computepool.core.placement.pools import Fleet, Welcome, to_own
from computepool.core.placement.scorers import Candidate, score
from computepool.core.placement.shape import Shape, to_shape
from computepool.core.placement.slot import Slot, SlotKind
from computepool.core.placement.weights import Preference, Weights
from computepool.hub.store import hub as hub_store
from computepool.hub.store.connect import Pool

log = logging.getLogger("computepool.dispatch")

# How often hubs tell each other: as often as a part of their time allows.
TOLD_SECONDS_MIN = 0.05
TOLD_SECONDS_MAX = 0.25
TOLD_SHARE = 0.2
ALONE_SECONDS = 1.0
# A hub process that was not heard for this long is gone, or as good as gone.
SILENT_SECONDS = 4.0
# A score must be better by this much to be worth waiting for: one part in a hundred of price or speed.
MARGIN = 0.01
SCARCE_GAP = 1.0
# Of each kind and tier, so many of the best free slots are told, for each preference.
TOLD_PER_TIER = 16
TIERS_MAX = 32
# And so many free slots of so many private pools, which few can use.
POOLS_MAX = 32
TOLD_PER_POOL = 4


@dataclass(slots=True)
class _Told:
    """A slot that another hub process had free when it last told."""

    candidate: Candidate
    # The slice that was left to it, if one was: two are not left to the same slot.
    awaited_by: Hashable = None


class Elsewhere:
    def __init__(self, pool: Pool, fleet: Fleet, weights: Weights, hub_process_id: UUID) -> None:
        self._pool = pool
        self._fleet = fleet
        self._weights = weights
        self._hub_process_id = hub_process_id
        self._others: dict[UUID, list[_Told]] = {}

    @property
    def alone(self) -> bool:
        return not self._others

    async def run(self) -> None:
        while True:
            started = clock.seconds()
            try:
                await self.exchange()
            except Exception as error:
                log.warning("summaries_not_exchanged error=%r", error)
            await asyncio.sleep(self._plan_pause(clock.seconds() - started))

    def _plan_pause(self, took_seconds: float) -> float:
        if self.alone:
            return ALONE_SECONDS
        return min(max(took_seconds / TOLD_SHARE, TOLD_SECONDS_MIN), TOLD_SECONDS_MAX)

    async def exchange(self) -> None:
        """One statement that tells and hears."""
        free = _to_message(list_best(self._fleet), self._fleet.list_pools(POOLS_MAX, TOLD_PER_POOL))
        async with self._pool.acquire() as conn:
            heard = await hub_store.exchange_summaries(
                conn,
                hub_process_id=self._hub_process_id,
                free=free,
                seconds=SILENT_SECONDS,
            )
        self._others = {id: [_Told(each) for each in _from_message(free)] for id, free in heard.items()}

    async def leave(self) -> None:
        """On shutdown: nobody should wait for slots that are here no more."""
        async with self._pool.acquire() as conn:
            await hub_store.delete_summary(conn, self._hub_process_id)

    def find_gap(
        self,
        shape: Shape,
        prefer: Preference,
        candidate: Candidate,
        slice_: Hashable = None,
        account_id: AccountId | None = None,
    ) -> float:
        """How much better a slot another hub has for this slice, in points of score; 0: none worth waiting for.

        With `slice_`, no other is left to the same slot there. What is the account's own costs it nothing there too.
        """
        if not self._others:
            return 0.0
        here = score(candidate, shape, self._weights, prefer)
        best, best_score = None, here + MARGIN
        for told, offered in self._list_fitting(shape, account_id):
            if told.awaited_by is not None and told.awaited_by != slice_:
                continue
            there = score(offered, shape, self._weights, prefer)
            if there > best_score:
                best, best_score = told, there
        if best is not None:
            best.awaited_by = slice_
            return best_score - here
        # A card is not spent on plain work while another hub may have a slot for it that it has not told of yet.
        return SCARCE_GAP if candidate.slot.kind is SlotKind.GPU and not shape.gpu else 0.0

    def _list_fitting(self, shape: Shape, account_id: AccountId | None) -> Iterable[tuple[_Told, Candidate]]:
        """Each with what it is to this account."""
        for slots in self._others.values():
            for told in slots:
                owner_id = told.candidate.owner_id
                is_own = owner_id is not None and owner_id == account_id
                offered = to_own(told.candidate) if is_own else told.candidate
                if _find_refusal(shape, offered, account_id) is None:
                    yield told, offered


def _find_refusal(shape: Shape, candidate: Candidate, account_id: AccountId | None) -> str | None:
    return find_refusal(
        shape,
        candidate.slot,
        price_microcredits_per_hour=candidate.price_microcredits_per_hour,
        base_price_microcredits_per_hour=candidate.base_price_microcredits_per_hour,
        account_id=account_id,
    )


def list_best(fleet: Fleet) -> list[Candidate]:
    """The best free public slots of each kind and tier, by every preference and for every kind of job."""
    found: dict[tuple[NodeId, SlotName], Candidate] = {}
    asked = {(root.gpu, root.tier, min(root.job_kinds, default=DEFAULT_KIND)) for root in fleet.list_roots()}
    for gpu, tier, job_kind in sorted(asked)[:TIERS_MAX]:
        shape = to_shape(
            Requirements(
                gpu=gpu,
                tiers=(tier,),
                cores=0,
                ram_bytes=0,
                disk_bytes=0,
                job_kind=job_kind,
                slice_seconds=SECONDS_MIN_STEPS[-1],
            )
        )
        for prefer in Preference:
            for candidate in fleet.ranked(shape, prefer, TOLD_PER_TIER, weights=fleet.first_weights):
                found[candidate.slot.node_id, candidate.slot.name] = candidate
    return list(found.values())


def _to_message(slots: list[Candidate], pools: list[tuple[Welcome, list[Candidate]]]) -> dict[str, Any]:
    """What came later stands beside the rows, so that a hub of before reads those as it did."""
    return {
        "slots": [_to_row(candidate) for candidate in slots],
        "more": [_to_more(candidate) for candidate in slots],
        "references": [candidate.reference_microcredits_per_hour for candidate in slots],
        "allows": [sorted(candidate.slot.allows) for candidate in slots],
        "pools": [
            [sorted(map(str, welcome)), [[_to_row(each), _to_more(each)] for each in candidates]]
            for welcome, candidates in pools
        ],
    }


# What stands beside the rows, and what it is where a hub of before told nothing of it.
_LATER: tuple[tuple[str, Any], ...] = (("more", ()), ("references", 0), ("allows", ()))


def _from_message(free: dict[str, Any]) -> Iterable[Candidate]:
    more, references, allowed = (free.get(name, repeat(none)) for name, none in _LATER)
    for row, rest, reference, allows in zip(free["slots"], more, references, allowed, strict=False):
        candidate = _from_row(row, *rest)
        slot = replace(candidate.slot, allows=frozenset(allows)) if allows else candidate.slot
        yield replace(candidate, slot=slot, reference_microcredits_per_hour=reference)
    for accounts, rows in free.get("pools", ()):
        welcome = frozenset(AccountId(UUID(each)) for each in accounts)
        for row, more in rows:
            candidate = _from_row(row, *more)
            yield replace(candidate, slot=replace(candidate.slot, welcome=welcome))


def _to_more(candidate: Candidate) -> list[Any]:
    owner_id = candidate.owner_id
    return [
        candidate.base_price_microcredits_per_hour,
        candidate.spot_microcredits_per_hour,
        None if owner_id is None else str(owner_id),
    ]


def _to_row(candidate: Candidate) -> list[Any]:
    slot = candidate.slot
    return [
        slot.kind.value,
        slot.tier,
        slot.vram_bytes,
        slot.cores,
        slot.ram_bytes,
        slot.disk_bytes,
        slot.region,
        slot.isolation.value,
        candidate.speed_tflops,
        candidate.price_microcredits_per_hour,
        candidate.reliability,
        # Told where there are some: a hub of before offers had conditions reads all other rows as it did.
        *([slot.slice_seconds_min, sorted(slot.job_kinds)] if slot.slice_seconds_min or slot.job_kinds else []),
    ]


def _from_row(row: list[Any], base_price: int = 0, spot: int = 0, owner: str | None = None) -> Candidate:
    kind, tier, vram, cores, ram, disk, region, isolation, speed, price, reliability, *conditions = row
    slice_seconds_min, job_kinds = conditions or (0, ())
    slot = Slot(
        # Which node it is does not matter to a score.
        node_id=_NOBODY,
        name=SlotName(""),
        kind=SlotKind(kind),
        tier=tier,
        vram_bytes=vram,
        cores=cores,
        ram_bytes=ram,
        disk_bytes=disk,
        region=region,
        isolation=IsolationLevel(isolation),
        slice_seconds_min=slice_seconds_min,
        job_kinds=frozenset(job_kinds),
    )
    owner_id = None if owner is None else AccountId(UUID(owner))
    return Candidate(slot, speed, price, reliability, base_price, owner_id, spot)


_NOBODY = NodeId(UUID(int=0))
