"""Runs beyond a job's own: a slice of it as a job by itself, leased to whoever was chosen, on a slot that is free.

Who is chosen, and what for, is for those who ask: inspections.py, comparisons.py, trials.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import msgspec

from computepool import entropy
from computepool.core.errors import InputBlocked
from computepool.core.ids import AccountId, AttemptId, JobId, NodeId
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.spec import Requirements
from computepool.core.jobs.state import SliceEvent
from computepool.core.ledger import verbs
from computepool.core.ledger.refusal import Refusal
from computepool.core.ledger.transfer import Posting
from computepool.core.placement.gates import list_failed
from computepool.core.placement.scorers import Candidate, make_candidate
from computepool.core.placement.shape import Shape, to_shape
from computepool.core.trust.comparators.kinds import Comparator
from computepool.core.trust.comparators.numerics import find_numeric_class, may_judge
from computepool.core.trust.standing import PROBATION_RESULTS, NodeTrust, Standing, is_trusted, may_decide
from computepool.core.trust.validation import Runner
from computepool.hub.services.inspector import Inspector
from computepool.hub.services.job_specs import to_comparator
from computepool.hub.services.prices import PriceBook
from computepool.hub.services.stops import stop_job
from computepool.hub.store import attempts as attempt_store
from computepool.hub.store import hub as hub_store
from computepool.hub.store import ledger
from computepool.hub.store import shapes as shape_store
from computepool.hub.store import validation as store
from computepool.hub.store.attempts import Grant
from computepool.hub.store.connect import Connection
from computepool.hub.store.hub import ChangeKind
from computepool.hub.store.jobs import to_slice_price
from computepool.hub.store.validation import FreeSlot, StoredCheck
from computepool.wire.jobs import Compare, JobSpec

# No slot is of it: only those who ask for further runs give such slices out.
TIER = "check"
SLOTS_LOOKED_AT_MAX = 2_000
EXPECTED_SECONDS = 60.0


class NotLeased(Exception):
    """The slot was just taken, or the slice may not run. The transaction is undone."""


class NotPaid(NotLeased):
    """The submitter cannot pay for another run."""


@dataclass(frozen=True, slots=True)
class Field:
    """Who could run something for a job now: one fitting slot of each node."""

    shape: Shape
    slots: dict[NodeId, Candidate]
    runners: list[Runner]


async def find_field(
    inspector: Inspector, check: StoredCheck, links: Mapping[AccountId, AccountId], *, trusted: bool
) -> Field:
    """Nobody who belongs to the submitter is in it."""
    async with inspector.pool.acquire() as conn:
        free = await store.list_free_slots(
            conn,
            submitter_id=check.submitter_id,
            standings=[Standing.CLEAR],
            trusted=trusted,
            validated_min=PROBATION_RESULTS,
            silence_seconds=inspector.settings.lease_seconds,
            limit=SLOTS_LOOKED_AT_MAX,
        )
        shape = (await shape_store.list_shapes(conn, [check.shape_id]))[check.shape_id]
    fitting = list_fitting(inspector.prices, check, shape, free)
    submitter = links.get(check.submitter_id, check.submitter_id)
    runners = [
        replace(
            to_runner(candidate.slot.node_id, _owner_of(candidate), free.network, free.trust, links, check.now),
            numeric_class=find_class(check, free.hardware, candidate.slot.name),
        )
        for candidate, free in fitting.values()
    ]
    return Field(
        shape,
        {node_id: candidate for node_id, (candidate, _) in fitting.items()},
        [each for each in runners if each.owner_id != submitter],
    )


def to_runner(
    node_id: NodeId,
    owner_id: AccountId,
    network: str | None,
    trust: NodeTrust,
    links: Mapping[AccountId, AccountId],
    now: datetime,
) -> Runner:
    return Runner(
        node_id,
        links.get(owner_id, owner_id),
        # Where a node calls from may not be known: then it is nobody's neighbour.
        network=network or str(node_id),
        is_trusted=is_trusted(trust, now=now),
        may_decide=may_decide(trust, now=now),
        is_vouched=trust.is_vouched,
    )


def find_class(check: StoredCheck, hardware: Mapping[str, Any], slot: str) -> str:
    return find_numeric_class(hardware, slot, uses_gpu=check.spec.get("requirements", {}).get("gpu", False))


def find_comparator(spec: Mapping[str, Any]) -> Comparator:
    return to_comparator(msgspec.convert(spec["compare"], Compare))


def can_be_judged(check: StoredCheck, free: FreeSlot) -> bool:
    """Whether a slot's run of it could be held against anybody."""
    first = check.runs[0]
    ours = find_class(check, first.hardware, first.slot)
    return may_judge(find_comparator(check.spec), ours, find_class(check, free.hardware, free.offered.slot.name))


def list_fitting(
    prices: PriceBook, check: StoredCheck, shape: Shape, free: Sequence[FreeSlot]
) -> dict[NodeId, tuple[Candidate, FreeSlot]]:
    """By node one slot that passes every gate of the job, of those that are lent at this hour."""
    found = {}
    for each in free:
        offered = each.offered
        if offered.schedule is not None and not offered.schedule.is_open(check.now):
            continue
        candidate = _to_candidate(prices, each)
        if not list_failed(
            shape,
            offered.slot,
            candidate.price_microcredits_per_hour,
            candidate.base_price_microcredits_per_hour,
            account_id=check.submitter_id,
        ):
            found[offered.slot.node_id] = (candidate, each)
    return found


def _to_candidate(prices: PriceBook, free: FreeSlot) -> Candidate:
    offered = free.offered
    plain = make_candidate(
        offered.slot,
        price_microcredits_per_hour=offered.floor_microcredits_per_hour,
        reliability=0.0,
        declared_tflops=offered.declared_tflops,
        owner_id=offered.owner_id,
    )
    asked = prices.ask(offered.slot, plain.speed_tflops, offered.floor_microcredits_per_hour)
    return make_candidate(
        offered.slot,
        price_microcredits_per_hour=asked.price,
        reliability=0.0,
        declared_tflops=offered.declared_tflops,
        base_price_microcredits_per_hour=asked.base_price,
        owner_id=offered.owner_id,
        spot_microcredits_per_hour=asked.spot,
        reference_microcredits_per_hour=asked.reference,
        serving_since=offered.serving_since,
    )


def _owner_of(candidate: Candidate) -> AccountId:
    assert candidate.owner_id is not None
    return candidate.owner_id


async def lease_paid(
    conn: Connection,
    inspector: Inspector,
    check: StoredCheck,
    shape: Shape,
    candidate: Candidate,
    *,
    job_id: JobId,
    spec: dict[str, Any] | None = None,
) -> None:
    """On the terms of the job's own slices, with as much held. With a spec: something else, for the slice."""
    fixed = to_slice_price(check.slice_base_microcredits, check.reserve_microcredits, check.wall_seconds)
    rate = slice_price = None
    if fixed is None:
        rate = inspector.prices.rate(candidate, shape.ceiling_microcredits_per_hour, check.submitter_id)
    else:
        slice_price = inspector.prices.price_slice(candidate, fixed, check.submitter_id)
    await lease_once_more(
        conn,
        inspector,
        check,
        candidate,
        job_id=job_id,
        rate=rate,
        slice_price=slice_price,
        reserve_microcredits=check.reserve_microcredits,
        spec=spec,
    )


async def lease_once_more(
    conn: Connection,
    inspector: Inspector,
    check: StoredCheck,
    candidate: Candidate,
    *,
    job_id: JobId,
    rate: int | None,
    slice_price: int | None,
    reserve_microcredits: int,
    spec: dict[str, Any] | None = None,
) -> None:
    """One slice of a job as a job of its own, on that very slot, paid by the same submitter."""
    try:
        inspector.blocked_inputs.check(msgspec.convert(spec or check.spec, JobSpec))
    except InputBlocked as error:
        raise NotLeased(error.message) from None
    shape = to_shape(Requirements(tiers=(TIER,)))
    shape_ids = await shape_store.get_or_insert_shapes(conn, {shape})
    await store.insert_check_job(
        conn, check, id=job_id, shape_id=shape_ids[shape], reserve_microcredits=reserve_microcredits, spec=spec
    )
    hold = verbs.hold(job_id=job_id, submitter_id=check.submitter_id, amount=reserve_microcredits)
    if isinstance(hold, Posting):
        [outcome] = await ledger.post(conn, [hold], writes_jobs=False)
        if isinstance(outcome, Refusal):
            raise NotPaid("the submitter cannot pay for another run")
    grant = Grant(
        id=AttemptId(entropy.new_id()),
        account_id=check.submitter_id,
        job_id=job_id,
        slice_index=check.slice_index,
        number=1,
        node_id=candidate.slot.node_id,
        slot=candidate.slot.name,
        expected_seconds=min(EXPECTED_SECONDS, float(check.wall_seconds)),
        rate_microcredits_per_hour=rate,
        terms=inspector.prices.agree(candidate),
        slice_price_microcredits=slice_price,
        pooled=candidate.slot.welcome is not None,
    )
    inserted = await attempt_store.insert_leases(
        conn,
        [grant],
        rate_card_version=inspector.prices.card.version,
        lease_seconds=inspector.settings.lease_seconds,
    )
    if grant.id not in inserted:
        raise NotLeased("the slot was just taken")
    # The hub at which the node is parked delivers what is in the record.
    await hub_store.record_change(conn, ChangeKind.LEASE, grant.node_id)


async def stop_run(inspector: Inspector, job_id: JobId) -> None:
    """One whose machine vanished is not left to whoever comes: it would be chosen by nobody."""
    await stop_job(inspector.pool, job_id, SliceEvent.CANCELLED, Cause.CANCELLED, on_end=inspector.on_end)
