"""Seats of runs: one slice each of a job that pays for them. Held, leased, metered and paid like any other slice.

Only the owner of a run gives them out: no slot has the tier that their shape asks for, so no round ever does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import inf
from uuid import UUID

import msgspec

from computepool import clock, entropy
from computepool.core.errors import Conflict, IdempotencyMismatch, InvalidSpec, LimitExceeded, StaleLease
from computepool.core.ids import AccountId, AttemptId, JobId, NodeId, SlotName
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.lease import Attempt, Decision, Refusal, Slice, decide_stop
from computepool.core.jobs.order import PriorityClass
from computepool.core.jobs.spec import RETRIES_MAX, Requirements
from computepool.core.jobs.state import SliceEvent
from computepool.core.ledger import verbs
from computepool.core.ledger.amount import AMOUNT_MAX
from computepool.core.ledger.refusal import InsufficientCredits
from computepool.core.ledger.refusal import Refusal as PostingRefusal
from computepool.core.ledger.transfer import Posting
from computepool.core.networks.allocation import PNode
from computepool.core.networks.audit import VALIDATED_MIN
from computepool.core.networks.pace import recall_pace
from computepool.core.networks.placement import SeatId
from computepool.core.networks.run import OVER, RunState, SeatFill
from computepool.core.networks.seat_ends import decide_concluding, decide_vacating
from computepool.core.payments.errors import AccountFrozen
from computepool.core.placement.price import format_credits
from computepool.core.placement.scorers import Candidate, make_candidate
from computepool.core.placement.shape import Shape, to_shape
from computepool.core.placement.weights import Preference
from computepool.core.trust.reputation import reliability_bound
from computepool.hub.services.offers import find_closed
from computepool.hub.services.prices import PriceBook
from computepool.hub.services.transitions import EndedAttempt, Snapshot, lock_open_snapshot, lock_snapshot
from computepool.hub.store import accounts as account_store
from computepool.hub.store import attempts as attempt_store
from computepool.hub.store import hub as hub_store
from computepool.hub.store import jobs as job_store
from computepool.hub.store import ledger
from computepool.hub.store import networks as network_store
from computepool.hub.store import run_audits as audit_store
from computepool.hub.store import runs as run_store
from computepool.hub.store import shapes as shape_store
from computepool.hub.store import slices as slice_store
from computepool.hub.store.attempts import Grant
from computepool.hub.store.connect import Connection, Pool
from computepool.hub.store.hub import ChangeKind
from computepool.hub.store.jobs import NewJob
from computepool.hub.store.networks import FreePNode
from computepool.hub.store.runs import SeatRow
from computepool.wire.jobs import JobSpec
from computepool.wire.jobs import Requirements as WireRequirements

SECONDS_PER_HOUR = 3_600
SEATS_MAX = 256
HOURS_MAX = 14 * 24
# No slot is of it.
TIER = "network"
# The job expires so long after its hours, should nobody have ended its run by then.
EXPIRY_SLACK_SECONDS = 300
PNODES_LOOKED_AT_MAX = 2_000
# What fair shares are charged until a seat has ended.
EXPECTED_SECONDS_MAX = 3_600.0


# What owners who choose by kind take a seat for.
SEAT_JOB_KIND = "ml"


@dataclass(frozen=True, slots=True)
class SeatTerms:
    """What a run asks of its seats."""

    count: int
    hours: int
    # Microcredits per hour and seat; None: half as much again as a CPU slot usually costs.
    ceiling: int | None
    # These nodes alone; empty: any.
    node_ids: tuple[NodeId, ...] = ()


@dataclass(frozen=True, slots=True)
class FoundPNodes:
    pnodes: list[PNode]
    candidates: dict[tuple[NodeId, SlotName], Candidate]
    names: dict[NodeId, tuple[AccountId, str]]
    boots: dict[NodeId, UUID | None]


def find_shape(prices: PriceBook, ceiling: int | None) -> Shape:
    """The same for all seats of one price: what ordinary slots never pass."""
    if ceiling is None:
        ceiling = prices.fill_ceiling(Requirements()).ceiling_microcredits_per_hour
    return to_shape(Requirements(tiers=(TIER,), ceiling_microcredits_per_hour=ceiling))


def price_hold(prices: PriceBook, terms: SeatTerms) -> int:
    """Ceiling times seats times hours: the most that a run can cost."""
    return terms.count * prices.reserve(find_shape(prices, terms.ceiling), terms.hours * SECONDS_PER_HOUR)


async def submit_seats(
    conn: Connection,
    prices: PriceBook,
    terms: SeatTerms,
    *,
    account_id: AccountId,
    name: str,
    key: str | None = None,
    request_sha256: bytes | None = None,
) -> tuple[JobId, bool]:
    """The job with its hold, in the caller's transaction. False: this very request made it before."""
    if key is not None and (twin := await _find_twin(conn, account_id, key, request_sha256)) is not None:
        # Also where the limits would refuse it by now.
        return twin, False
    shape = find_shape(prices, terms.ceiling)
    wall_seconds = terms.hours * SECONDS_PER_HOUR
    reserve = prices.reserve(shape, wall_seconds)
    await _check_account(conn, account_id, terms, terms.count * reserve)
    shape_ids = await shape_store.get_or_insert_shapes(conn, {shape})
    job = NewJob(
        id=JobId(entropy.new_id()),
        account_id=account_id,
        name=name,
        spec=_word_spec(name, shape, terms, wall_seconds),
        shape_id=shape_ids[shape],
        priority=0,
        priority_class=PriorityClass.NORMAL,
        prefer=Preference.VALUE,
        weight_set="default",
        slice_count=terms.count,
        retries=RETRIES_MAX,
        wall_seconds=wall_seconds,
        deadline_at=None,
        expires_at=clock.now() + timedelta(seconds=wall_seconds + EXPIRY_SLACK_SECONDS),
        key=key,
        request_sha256=request_sha256,
        reserve_microcredits=reserve,
    )
    inserted = await job_store.insert_jobs(conn, [job], [], rate_card_version=prices.card.version, lease_seconds=0.0)
    if job.id not in inserted.created_at:
        # Its twin was written at this very moment.
        twin = await _find_twin(conn, account_id, key or "", request_sha256)
        assert twin is not None
        return twin, False
    hold = verbs.hold(job_id=job.id, submitter_id=account_id, amount=job.hold_microcredits)
    if isinstance(hold, Posting):
        [outcome] = await ledger.post(conn, [hold], writes_jobs=False)
        if isinstance(outcome, PostingRefusal):
            raise _to_credit_refusal(job.hold_microcredits)
    return job.id, True


def _word_spec(name: str, shape: Shape, terms: SeatTerms, wall_seconds: int) -> str:
    spec = JobSpec(
        name=name,
        command=("host",),
        requirements=WireRequirements(
            tiers=(TIER,), ceiling_microcredits_per_hour=shape.ceiling_microcredits_per_hour
        ),
        slice_count=terms.count,
        retries=RETRIES_MAX,
        wall_seconds=wall_seconds,
    )
    return msgspec.json.encode(spec).decode()


async def _check_account(conn: Connection, account_id: AccountId, terms: SeatTerms, hold: int) -> None:
    if hold > AMOUNT_MAX:
        raise InvalidSpec(
            f"The run could cost {format_credits(hold)} credits, more than any job may. Set a lower ceiling, fewer "
            "hours or fewer seats."
        )
    [usage] = (await account_store.list_usage(conn, {account_id})).values()
    if usage.frozen and hold:
        raise AccountFrozen("This account is frozen: a payment was taken back after it was spent. Ask the operator.")
    if hold > usage.available:
        raise _to_credit_refusal(hold, available=usage.available)
    if usage.open_slices + terms.count > usage.queued_slices_max:
        raise LimitExceeded(
            f"You have {usage.open_slices:,} unfinished slices; {terms.count} seats more would pass your limit of "
            f"{usage.queued_slices_max:,}. Wait for some to finish, or ask the operator for more.",
            retry_after_seconds=30,
        )


async def _find_twin(conn: Connection, account_id: AccountId, key: str, request_sha256: bytes | None) -> JobId | None:
    known = (await job_store.list_idempotent(conn, [(account_id, key)])).get((account_id, key))
    if known is not None and known.request_sha256 != request_sha256:
        raise IdempotencyMismatch(
            "This idempotency key was used for something else. Use a new key for a new run.", job_id=str(known.job_id)
        )
    return known.job_id if known is not None else None


def _to_credit_refusal(hold: int, *, available: int | None = None) -> InsufficientCredits:
    have = "" if available is None else f" You have {format_credits(max(0, available))}."
    return InsufficientCredits(
        f"This run may cost up to {format_credits(hold)} credits, which are set aside until it ends.{have} Top up, "
        "or set a lower ceiling, fewer hours or fewer seats.",
        hold_microcredits=hold,
    )


# PNodes


async def find_pnodes(
    conn: Connection,
    prices: PriceBook,
    terms: SeatTerms,
    *,
    account_id: AccountId,
    avoided: Mapping[NodeId, UUID | None],
    data_bytes: Mapping[bytes, int],
    asks_trust: bool,
    silence_seconds: float,
) -> FoundPNodes:
    """Free slots that may take a seat now, with what they are chosen by. Of a node that is avoided, this start."""
    ceiling = find_shape(prices, terms.ceiling).ceiling_microcredits_per_hour or 0
    now = clock.now()
    found = await network_store.list_free_pnodes(
        conn,
        account_id=account_id,
        job_kind=SEAT_JOB_KIND,
        wall_seconds=terms.hours * 3_600,
        closed=await find_closed(conn, now),
        ceiling=ceiling,
        node_ids=terms.node_ids,
        avoided=avoided,
        data_bytes=data_bytes,
        silence_seconds=silence_seconds,
        limit=PNODES_LOOKED_AT_MAX,
    )
    candidates = {(each.slot.node_id, each.slot.name): _to_candidate(each, now) for each in found}
    trusted = await _list_trusted(conn, found, account_id) if asks_trust else frozenset[NodeId]()
    return FoundPNodes(
        pnodes=[_to_pnode(each, candidates[each.slot.node_id, each.slot.name], trusted, now) for each in found],
        candidates=candidates,
        names={each.slot.node_id: (each.account_id, each.node_name) for each in found},
        boots={each.slot.node_id: each.boot_id for each in found},
    )


def _to_candidate(free: FreePNode, now: datetime) -> Candidate:
    return make_candidate(
        free.slot,
        price_microcredits_per_hour=free.floor_microcredits_per_hour,
        reliability=reliability_bound(free.reliability, now=now),
        declared_tflops=free.declared_tflops,
        serving_since=free.serving_since,
    )


async def _list_trusted(conn: Connection, found: Sequence[FreePNode], account_id: AccountId) -> frozenset[NodeId]:
    """Nodes of the submitter's own, and those that audits have found right often enough."""
    own = {each.slot.node_id for each in found if each.account_id == account_id}
    standings = await audit_store.list_standings(conn, {each.slot.node_id for each in found} - own)
    return frozenset({*own, *(id for id, (_, validated) in standings.items() if validated >= VALIDATED_MIN)})


def _to_pnode(free: FreePNode, candidate: Candidate, trusted: Collection[NodeId], now: datetime) -> PNode:
    return PNode(
        node_id=free.slot.node_id,
        slot=free.slot.name,
        memory_bytes=free.memory_bytes,
        numeric_class=free.numeric_class,
        flops_per_second=free.flops_per_second,
        bytes_per_second=free.bytes_per_second or inf,
        latency_seconds=free.latency_seconds or 0.0,
        pace_ratio=recall_pace(free.pace_ratio, free.paced_at, now=now) or 1.0,
        reliability=candidate.reliability,
        price_microcredits_per_hour=free.floor_microcredits_per_hour,
        reachable=bool(free.address),
        held_bytes=free.held_bytes,
        trusted=free.slot.node_id in trusted,
    )


async def lease_seats(
    conn: Connection,
    prices: PriceBook,
    terms: SeatTerms,
    *,
    account_id: AccountId,
    job_id: JobId,
    slice_indexes: Mapping[SeatId, int],
    chosen: Mapping[SeatId, PNode],
    candidates: Mapping[tuple[NodeId, SlotName], Candidate],
    boots: Mapping[NodeId, UUID | None],
    lease_seconds: float,
) -> list[SeatFill]:
    """A lease on that very slot for each seat. A slot that somebody else has just filled is left out."""
    heads = await run_store.list_heads(conn, job_id=job_id, slice_indexes=[slice_indexes[seat] for seat in chosen])
    ceiling = find_shape(prices, terms.ceiling).ceiling_microcredits_per_hour
    planned = {
        seat: Grant(
            id=AttemptId(entropy.new_id()),
            account_id=account_id,
            job_id=job_id,
            slice_index=slice_indexes[seat],
            number=heads[slice_indexes[seat]] + 1,
            node_id=pnode.node_id,
            slot=pnode.slot,
            expected_seconds=min(EXPECTED_SECONDS_MAX, float(terms.hours * SECONDS_PER_HOUR)),
            rate_microcredits_per_hour=prices.rate(candidates[pnode.node_id, pnode.slot], ceiling, account_id),
            terms=prices.agree(candidates[pnode.node_id, pnode.slot]),
            pooled=candidates[pnode.node_id, pnode.slot].slot.welcome is not None,
        )
        for seat, pnode in chosen.items()
        if slice_indexes[seat] in heads
    }
    inserted = await attempt_store.insert_leases(
        conn, list(planned.values()), rate_card_version=prices.card.version, lease_seconds=lease_seconds
    )
    await run_store.mark_seats(conn, inserted)
    given = {seat: grant for seat, grant in planned.items() if grant.id in inserted}
    for node_id in sorted({grant.node_id for grant in given.values()}):
        # The hub at which the node is parked delivers what is in the record.
        await hub_store.record_change(conn, ChangeKind.LEASE, node_id)
    return [
        SeatFill(seat, grant.id, grant.node_id, chosen[seat].numeric_class, boots.get(grant.node_id))
        for seat, grant in given.items()
    ]


async def get_seat(pool: Pool, attempt_id: AttemptId) -> SeatRow:
    """Of whoever holds this attempt, while its run goes on."""
    async with pool.acquire() as conn:
        seat = await run_store.find_seat(conn, attempt_id)
    if seat is None or seat.state in OVER:
        raise StaleLease("This attempt fills no seat of a run that goes on. Forget it.")
    return seat


async def check_class(pool: Pool, seat: SeatRow, numeric_class: str) -> None:
    """A PNode that computes otherwise than it did when it was chosen would change the curve without a word."""
    if numeric_class == seat.numeric_class:
        return
    if 1 <= len(numeric_class) <= 200 and numeric_class.isprintable():
        async with pool.acquire() as conn:
            await network_store.set_class(conn, node_id=seat.node_id, numeric_class=numeric_class)
    raise Conflict(
        f"This PNode is of numeric class {numeric_class[:80]!r}; {seat.seat} was given to one of "
        f"{seat.numeric_class!r}. Another PNode gets the seat."
    )


# How seats end


async def lock_seats(conn: Connection, attempt_ids: Iterable[AttemptId]) -> None:
    """Slices come before attempts in the order of locks: whoever pays attempts and ends some locks these first."""
    await slice_store.lock_slices_of_attempts(conn, attempt_ids)


async def vacate_seats(conn: Connection, causes: Mapping[AttemptId, Cause]) -> list[EndedAttempt]:
    """Paid to the last complete checkpoint. Their slices wait for another PNode; their nodes are told to let go."""
    snapshot = await lock_snapshot(conn, causes)
    for attempt_id, cause in causes.items():
        attempt = snapshot.attempts.get(attempt_id)
        if attempt is not None:
            slice_ = snapshot.slices[attempt.job_id, attempt.slice_index]
            _take(snapshot, decide_vacating(slice_, attempt, cause))
    await snapshot.write(conn)
    await hub_store.record_change(conn, ChangeKind.CONTROLS)
    return snapshot.list_ended()


async def conclude_seats(conn: Connection, job_id: JobId, state: RunState) -> list[EndedAttempt]:
    """The end of a run ends its job: hosts are paid, and the rest goes back, with the run's own row or not at all."""
    snapshot = await lock_open_snapshot(conn, job_id, limit=SEATS_MAX)
    for key, slice_ in list(snapshot.slices.items()):
        _take(snapshot, _conclude(slice_, snapshot.list_live(key), state))
    await snapshot.write(conn)
    await hub_store.record_change(conn, ChangeKind.CONTROLS)
    return snapshot.list_ended()


def _conclude(slice_: Slice, live: Sequence[Attempt], state: RunState) -> Decision | Refusal:
    if state is RunState.SUCCEEDED and live:
        return decide_concluding(slice_, live[0])
    if state is RunState.FAILED:
        return decide_stop(slice_, live, SliceEvent.EXPIRED, Cause.EXIT_CODE)
    return decide_stop(slice_, live, SliceEvent.CANCELLED, Cause.CANCELLED)


def _take(snapshot: Snapshot, decision: Decision | Refusal) -> None:
    if isinstance(decision, Decision):
        snapshot.take(decision)
