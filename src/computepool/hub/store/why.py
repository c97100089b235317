"""What the answers to "why" are made of: the fleet in classes, a job's telling slices, the backlog in shapes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from computepool.core.ids import AccountId, AttemptId, JobId, NodeId, ShapeId
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.order import PriorityClass
from computepool.core.jobs.state import AttemptState, SliceState
from computepool.core.market.rate_card import UNIT, Bucket, RateCard
from computepool.core.placement.idleness import Backlog
from computepool.core.placement.price import PRICE_MICROCREDITS_MAX
from computepool.core.placement.scorers import CORE_TFLOPS
from computepool.core.placement.shape import Shape
from computepool.core.placement.slot import Slot
from computepool.core.placement.slot_classes import SlotClass, SpotForce, Standing, Steps
from computepool.core.placement.weights import Weights
from computepool.core.trust.reputation import Reliability
from computepool.hub.store.connect import Connection
from computepool.hub.store.market import to_card_arrays
from computepool.hub.store.nodes import to_slot
from computepool.hub.store.offers import Closed
from computepool.hub.store.queries import load_queries
from computepool.hub.store.shapes import to_shape

_q = load_queries("why")

_NO_NODE = NodeId(UUID(int=0))


@dataclass(frozen=True, slots=True)
class SliceFacts:
    slice_index: int
    state: SliceState
    priority: int
    priority_class: PriorityClass
    account_id: AccountId
    shape_id: ShapeId
    attempt_count: int
    failure_count: int
    # Nodes that went silent while they ran it.
    killed_count: int
    cause: Cause | None
    accepted_attempt_id: AttemptId | None
    queued_at: datetime
    # When it was moved to the front of its account's slices for the sake of its deadline.
    raised_at: datetime | None


@dataclass(frozen=True, slots=True)
class AttemptFacts:
    id: AttemptId
    number: int
    node_id: NodeId
    # None: the viewer may not know it.
    node_name: str | None
    region: str | None
    slot_name: str
    # None: the node was enrolled anew and has no such slot any more.
    slot: Slot | None
    # What its node asks of the submitter today.
    floor_microcredits_per_hour: int
    state: AttemptState
    leased_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    run_seconds: float | None
    exit_code: int | None
    cause: Cause | None
    message: str
    memory_bytes_peak: int | None
    saved_seconds: int
    saved_at: datetime | None


@dataclass(frozen=True, slots=True)
class WaitingAccount:
    account_id: AccountId
    fair_weight: float
    slot_seconds: float
    # The figure stands as of then; None: it has had nothing.
    counted_at: datetime | None


@dataclass(frozen=True, slots=True)
class FittingSlot:
    slot: Slot
    floor_microcredits_per_hour: int
    # What whoever pays spot pays there, as scores take it; 0: spot is no matter there.
    spot_microcredits_per_hour: int
    declared_tflops: float | None
    reliability: Reliability
    busy: bool
    # None: the viewer may not know it.
    node_name: str | None


@dataclass(frozen=True, slots=True)
class Fitting:
    """The first of the slots that pass every gate of a shape."""

    slots: list[FittingSlot]
    # All that pass.
    fit_count: int
    # The fleet was too large to be looked at as a whole.
    is_cut: bool


async def list_slot_classes(
    conn: Connection,
    shape: Shape,
    steps: Steps,
    card: RateCard,
    spots: Mapping[Bucket, int],
    *,
    account_id: AccountId,
    viewer_id: AccountId | None,
    closed: Closed,
    silence_seconds: float,
    fleet_max: int,
    limit: int | None,
) -> list[SlotClass]:
    """As work of this account sees them. `spots` has every bucket of the card: what is paid there at least, 0 where
    nobody else bids. `viewer_id` is whose nodes may be named; None names all. `fleet_max` is how many slots are
    looked at."""
    rows = _q.list_slot_classes(
        conn,
        **closed.to_arrays(),
        **to_card_arrays(card),
        bucket_tiers=[bucket.tier for bucket in spots],
        bucket_regions=[bucket.region for bucket in spots],
        spots=list(spots.values()),
        multipliers=[card.multiplier(bucket) for bucket in spots],
        unit=UNIT,
        # More than anybody can pay.
        beyond=PRICE_MICROCREDITS_MAX + 1,
        account_id=account_id,
        job_kind=shape.job_kind,
        slice_seconds=shape.slice_seconds,
        has_wants=bool(shape.wants),
        isolation=shape.isolation,
        vram_bytes=shape.vram_bytes,
        vram_step=steps.vram_bytes,
        cores=shape.cores,
        cores_step=steps.cores,
        ram_bytes=shape.ram_bytes,
        ram_step=steps.ram_bytes,
        disk_bytes=shape.disk_bytes,
        disk_step=steps.disk_bytes,
        ceiling=shape.ceiling_microcredits_per_hour,
        prices=list(steps.prices),
        base_ceiling=shape.base_ceiling_microcredits_per_hour,
        base_prices=list(steps.base_prices),
        fleet_max=fleet_max,
        silence_seconds=silence_seconds,
        viewer_id=viewer_id,
        limit_count=limit,
    )
    return [
        SlotClass(
            slot=to_slot(row, node_id=_NO_NODE, name=""),
            standing=Standing(row["standing"]),
            slot_count=row["slot_count"],
            busy_count=row["busy_count"],
            price_microcredits_per_hour=row["price_microcredits_per_hour"],
            base_price_microcredits_per_hour=row["base_price_microcredits_per_hour"],
            force=(
                SpotForce(row["spot_tier"], row["spot_region"], row["spot_microcredits_per_hour"])
                if row["spot_tier"] is not None
                else None
            ),
            node_name=row["node_name"],
            last_seen_at=row["last_seen_at"],
            opens_at=row["opens_at"],
        )
        async for row in rows
    ]


async def list_first_slices(conn: Connection, *, job_id: JobId, slice_index: int | None) -> list[SliceFacts]:
    rows = _q.list_first_slices(conn, job_id=job_id, slice_index=slice_index)
    return [
        SliceFacts(
            **{
                **row,
                "state": SliceState(row["state"]),
                "priority_class": PriorityClass(row["priority_class"]),
                "cause": Cause(row["cause"]) if row["cause"] else None,
            }
        )
        async for row in rows
    ]


async def count_own_ahead(conn: Connection, *, job_id: JobId, slice_: SliceFacts, count_max: int) -> int:
    """Queued slices of the same account, class and shape before this one by priority and age; `count_max` at most."""
    counted = await _q.count_own_ahead(
        conn,
        shape_id=slice_.shape_id,
        priority_class=slice_.priority_class,
        account_id=slice_.account_id,
        priority=slice_.priority,
        queued_at=slice_.queued_at,
        job_id=job_id,
        slice_index=slice_.slice_index,
        count_max=count_max,
    )
    return min(int(counted), count_max)


async def count_class_ahead(conn: Connection, *, slice_: SliceFacts, count_max: int) -> int:
    """Queued slices of the same shape and a higher class, whoever's; `count_max` at most."""
    return int(
        await _q.count_class_ahead(
            conn, shape_id=slice_.shape_id, priority_class=slice_.priority_class, count_max=count_max
        )
    )


async def list_waiting_accounts(conn: Connection, *, slice_: SliceFacts, limit: int) -> list[WaitingAccount]:
    """The slice's own account, and up to `limit` that have slices of the same shape and class waiting."""
    rows = _q.list_waiting_accounts(
        conn,
        shape_id=slice_.shape_id,
        priority_class=slice_.priority_class,
        account_id=slice_.account_id,
        limit_count=limit,
    )
    return [WaitingAccount(**row) async for row in rows]


async def list_fitting(
    conn: Connection,
    shape: Shape,
    weights: Weights,
    card: RateCard,
    spots: Mapping[Bucket, int],
    *,
    job_class: str,
    chosen: tuple[NodeId, str],
    account_id: AccountId,
    viewer_id: AccountId | None,
    closed: Closed,
    silence_seconds: float,
    fleet_max: int,
    limit: int,
) -> Fitting:
    """The chosen slot first, then roughly by score. `spots` has what slots of every bucket of the card are scored by.
    Only names of the viewer's own nodes; None names all."""
    rows = [
        row
        async for row in _q.list_fitting(
            conn,
            **closed.to_arrays(),
            account_id=account_id,
            job_kind=shape.job_kind,
            slice_seconds=shape.slice_seconds,
            node_id=chosen[0],
            slot=chosen[1],
            job_class=job_class,
            gpu=shape.gpu,
            vram_bytes=shape.vram_bytes,
            cores=shape.cores,
            ram_bytes=shape.ram_bytes,
            disk_bytes=shape.disk_bytes,
            isolation=shape.isolation,
            tiers=list(shape.tiers),
            regions=list(shape.regions),
            ceiling=shape.ceiling_microcredits_per_hour,
            **to_card_arrays(card),
            bucket_tiers=[bucket.tier for bucket in spots],
            bucket_regions=[bucket.region for bucket in spots],
            spots=list(spots.values()),
            core_tflops=CORE_TFLOPS,
            price_weight=weights.price,
            speed_weight=weights.speed,
            reliability_weight=weights.reliability,
            viewer_id=viewer_id,
            silence_seconds=silence_seconds,
            fleet_max=fleet_max,
            limit_count=limit,
        )
    ]
    found = [_to_fitting(row) for row in rows]
    return Fitting(found, rows[0]["fit_count"], rows[0]["is_cut"]) if rows else Fitting([], 0, is_cut=False)


async def list_attempts(
    conn: Connection,
    *,
    job_id: JobId,
    slice_index: int,
    account_id: AccountId,
    viewer_id: AccountId | None,
    limit: int,
) -> list[AttemptFacts]:
    """`account_id` is whose job it is."""
    rows = _q.list_attempts(
        conn,
        job_id=job_id,
        slice_index=slice_index,
        account_id=account_id,
        viewer_id=viewer_id,
        limit_count=limit,
    )
    return [_to_attempt(row) async for row in rows]


async def list_backlog(
    conn: Connection, *, owner_id: AccountId, welcome: Collection[AccountId] | None, shapes_max: int, count_max: int
) -> list[Backlog]:
    """What waits, by shape: the owner's own, and, where a node is for some accounts only, theirs apart."""
    rows = _q.list_backlog(
        conn, owner_id=owner_id, account_ids=sorted(welcome or ()), shapes_max=shapes_max, count_max=count_max
    )
    found = []
    async for row in rows:
        shape, count = to_shape(row), row["slice_count"]
        own = min(count, row["own_count"])
        named = (count if welcome is None else min(count, max(own, row["named_count"]))) - own
        others = count - own - named
        found += [Backlog(shape, own, is_own=True)] if own else []
        found += [Backlog(shape, named)] if named else []
        found += [Backlog(shape, others, is_welcome=False)] if others else []
    return found


def _to_fitting(row: Any) -> FittingSlot:
    return FittingSlot(
        slot=to_slot(row, node_id=row["node_id"], name=row["name"]),
        floor_microcredits_per_hour=row["floor_microcredits_per_hour"],
        spot_microcredits_per_hour=row["spot_microcredits_per_hour"],
        declared_tflops=row["speed_tflops"],
        reliability=(
            Reliability()
            if row["counted_at"] is None
            else Reliability(row["finished"], row["failed"], row["faults_running"], row["counted_at"])
        ),
        busy=row["busy"],
        node_name=row["node_name"],
    )


def _to_attempt(row: Any) -> AttemptFacts:
    return AttemptFacts(
        id=row["id"],
        number=row["number"],
        node_id=row["node_id"],
        node_name=row["node_name"],
        region=row["region"],
        slot_name=row["slot"],
        slot=to_slot(row, node_id=row["node_id"], name=row["slot"]) if row["kind"] else None,
        floor_microcredits_per_hour=row["floor_microcredits_per_hour"],
        state=AttemptState(row["state"]),
        leased_at=row["leased_at"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        run_seconds=row["run_seconds"],
        exit_code=row["exit_code"],
        cause=Cause(row["cause"]) if row["cause"] else None,
        message=row["message"],
        memory_bytes_peak=row["memory_bytes_peak"],
        saved_seconds=row["saved_seconds"],
        saved_at=row["saved_at"],
    )
