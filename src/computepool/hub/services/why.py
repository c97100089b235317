"""Why a job waits, runs or died, and why a node is idle. Looks only: nothing here changes anything."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import msgspec

from computepool import clock
from computepool.core.accounts.roles import Role
from computepool.core.errors import NotFound
from computepool.core.ids import AccountId, JobId, NodeId, SlotName
from computepool.core.jobs.ending import End, Ended, explain_end
from computepool.core.jobs.spec import Requirements
from computepool.core.jobs.state import SliceState
from computepool.core.jobs.wants import list_refused
from computepool.core.market.offers import DEFAULT_KIND, Schedule, is_private
from computepool.core.nodes.state import is_online
from computepool.core.placement.checks import check_price
from computepool.core.placement.choice import Ranked, rank_candidates, say_choice
from computepool.core.placement.explain import Explanation, explain_waiting
from computepool.core.placement.fair_share import fade
from computepool.core.placement.gates import Margin, list_margins
from computepool.core.placement.idleness import Idleness, NodeFacts, explain_idle
from computepool.core.placement.scorers import Candidate, make_candidate, to_speed
from computepool.core.placement.shape import Shape, to_shape
from computepool.core.placement.slot import Slot
from computepool.core.placement.slot_classes import SlotClass, choose_steps
from computepool.core.placement.turn import Counted, Turn, Use, count_less
from computepool.core.placement.weights import Preference, WeightBook
from computepool.core.trust.reputation import reliability_bound, to_job_class
from computepool.hub.config import HubSettings
from computepool.hub.services import jobs as job_service
from computepool.hub.services import nodes as node_service
from computepool.hub.services.callers import AccountCaller
from computepool.hub.services.market import list_buckets
from computepool.hub.services.offers import find_closed
from computepool.hub.services.prices import PriceBook
from computepool.hub.services.runs import explain_run, get_view
from computepool.hub.store import shapes as shape_store
from computepool.hub.store import why as why_store
from computepool.hub.store.connect import Connection, Pool
from computepool.hub.store.jobs import Job
from computepool.hub.store.nodes import Node
from computepool.hub.store.why import AttemptFacts, Fitting, SliceFacts, WaitingAccount
from computepool.wire import jobs as wire

# Counts stop here: whoever has so many before them learns nothing from the exact number.
AHEAD_MAX = 10_000
# More distinct kinds of slots than this are told apart less finely: so many levels below each amount asked for.
CLASSES_MAX = 2_000
CLASS_LEVELS = (None, 16, 1)
BACKLOG_SHAPES_MAX = 500
BACKLOG_SLICES_MAX = 1_000
ATTEMPTS_MAX = 20
# Slots of the fleet that one question looks at, and nodes; more than that and the answer says that it was cut.
FLEET_SLOTS_MAX = 200_000
FLEET_NODES_MAX = 100_000
# Slots that are scored exactly, chosen by a rough order that has the best ones in front.
SCORED_MAX = 500
ACCOUNTS_MAX = 100

# Which slice tells most when none was asked for: what failed, what is tried again, what runs, what is done.
_TELLING = {
    (SliceState.FAILED, True): 0,
    (SliceState.FAILED, False): 1,
    (SliceState.QUEUED, True): 2,
    (SliceState.VERIFYING, True): 3,
    (SliceState.RUNNING, True): 4,
    (SliceState.LEASED, True): 5,
    (SliceState.SUCCEEDED, True): 6,
    (SliceState.CANCELLED, True): 7,
    (SliceState.CANCELLED, False): 8,
}


@dataclass(frozen=True, slots=True)
class Waiting:
    explanation: Explanation
    turn: Turn
    # The fleet has more slots than were looked at.
    fleet_is_more: bool
    # Of a seat: what its run waits for, which is another story than the queue's.
    run_words: str = ""


@dataclass(frozen=True, slots=True)
class AttemptStory:
    attempt: AttemptFacts
    end: End | None
    margins: tuple[Margin, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """Why the newest attempt got its slot, by the figures of this moment."""

    weight_set: str
    prefer: Preference
    ranked: tuple[Ranked, ...]
    # By slot: the names of those nodes that the viewer may know.
    node_names: dict[tuple[NodeId, str], str]
    # By slot: what an hour there would cost this job now, in microcredits.
    rates: dict[tuple[NodeId, str], int]
    fit_count: int
    is_cut: bool
    words: str
    reckoned_at: datetime


@dataclass(frozen=True, slots=True)
class SliceStory:
    slice: SliceFacts
    # Newest first.
    attempts: list[AttemptStory]
    choice: Choice | None


@dataclass(frozen=True, slots=True)
class JobStory:
    job: Job
    waiting: Waiting | None
    story: SliceStory | None


@dataclass(frozen=True, slots=True)
class NodeStory:
    node: Node
    online: bool
    slot_count: int
    idleness: Idleness
    waiting_is_more: bool


async def explain_job(
    pool: Pool,
    settings: HubSettings,
    book: WeightBook,
    prices: PriceBook,
    caller: AccountCaller,
    job_id: JobId,
    *,
    slice_index: int | None,
) -> JobStory:
    job = await job_service.get_job(pool, caller, job_id)
    viewer_id = None if Role.OPERATOR in caller.roles else caller.account_id
    async with pool.acquire() as conn:
        need = _to_requirements(job, (await shape_store.list_shapes(conn, {job.shape_id}))[job.shape_id])
        slices = await why_store.list_first_slices(conn, job_id=job_id, slice_index=slice_index)
    if slice_index is not None and not slices:
        raise NotFound("The job has no such slice.")
    queued = [each for each in slices if each.state is SliceState.QUEUED]
    told = slices[0] if slice_index is not None else find_telling(slices)
    return JobStory(
        job=job,
        waiting=await _explain_queue(pool, settings, prices, job, need, queued, viewer_id) if queued else None,
        story=await _tell_slice(pool, settings, book, prices, job, need, told, viewer_id) if told else None,
    )


async def explain_node(
    pool: Pool, settings: HubSettings, prices: PriceBook, caller: AccountCaller, node_id: NodeId
) -> NodeStory:
    found = await node_service.get_node(pool, caller, node_id)
    node = found.node
    online = is_online(node.last_seen_at, now=clock.now(), silence_seconds_max=settings.lease_seconds)
    offer, now = found.offer, clock.now()
    welcome = {node.account_id, *offer.named} if is_private(offer) else None
    async with pool.acquire() as conn:
        backlog = await why_store.list_backlog(
            conn,
            owner_id=node.account_id,
            welcome=welcome,
            shapes_max=BACKLOG_SHAPES_MAX,
            count_max=BACKLOG_SLICES_MAX,
        )
    closed = offer.schedule is not None and not offer.schedule.is_open(now)
    facts = NodeFacts(
        state=node.state,
        online=online,
        seen=node.last_seen_at is not None,
        slots=[(stored.slot, stored.busy) for stored in found.slots],
        floor_microcredits_per_hour=node.floor_microcredits_per_hour,
        closed=closed,
        opens_at=_find_opening(offer.schedule, now) if closed else None,
    )
    counts: Counter[Shape] = Counter()
    for each in backlog:
        counts[each.shape] += each.slice_count
    full = len(counts) >= BACKLOG_SHAPES_MAX or any(count >= BACKLOG_SLICES_MAX for count in counts.values())
    speeds = {stored.slot.name: to_speed(stored.slot, stored.declared_tflops) for stored in found.slots}

    def by_hour(shape: Shape, slot: Slot) -> Shape:
        return prices.by_hour(shape, prices.find_bucket(slot, speeds[slot.name]))

    # Many shapes against many slots: the loop goes on serving others meanwhile.
    idleness = await asyncio.to_thread(explain_idle, facts, backlog, by_hour)
    return NodeStory(node, online, len(found.slots), idleness, waiting_is_more=full)


def _find_opening(schedule: Schedule | None, now: datetime) -> datetime | None:
    """On the owner's clock."""
    opens_at = schedule.next_open_at(now) if schedule is not None else None
    return opens_at.astimezone(schedule.zone) if schedule is not None and opens_at is not None else None


def find_telling(slices: Sequence[SliceFacts]) -> SliceFacts | None:
    """None when no slice has been tried or has ended: then the queue is the whole story."""
    known = [each for each in slices if (each.state, each.attempt_count > 0) in _TELLING]
    return min(known, key=lambda each: _TELLING[(each.state, each.attempt_count > 0)], default=None)


async def _explain_queue(
    pool: Pool,
    settings: HubSettings,
    prices: PriceBook,
    job: Job,
    need: Requirements,
    queued: Sequence[SliceFacts],
    viewer_id: AccountId | None,
) -> Waiting:
    first = min(queued, key=lambda each: (-each.priority, each.queued_at))
    async with pool.acquire() as conn:
        if job.run_id is not None:
            # Seats wait for nothing that the queue knows of: their run's owner gives them out.
            words = explain_run(await get_view(conn, job.run_id))
            return Waiting(explain_waiting(need, ()), await _find_turn(conn, job, first), False, " ".join(words))
        classes = await _list_classes(conn, settings, prices, to_shape(need), job.account_id, viewer_id)
        turn = await _find_turn(conn, job, first)
    explanation = await asyncio.to_thread(explain_waiting, need, classes)
    looked_at = sum(each.slot_count for each in classes)
    return Waiting(explanation, turn, fleet_is_more=looked_at >= FLEET_SLOTS_MAX)


async def _find_turn(conn: Connection, job: Job, slice_: SliceFacts) -> Turn:
    own = await why_store.count_own_ahead(conn, job_id=job.id, slice_=slice_, count_max=AHEAD_MAX + 1)
    above = await why_store.count_class_ahead(conn, slice_=slice_, count_max=AHEAD_MAX + 1)
    # One more than are told, and the account itself.
    accounts = await why_store.list_waiting_accounts(conn, slice_=slice_, limit=ACCOUNTS_MAX + 2)
    now = clock.now()
    uses = {each.account_id: _to_use(each, now) for each in accounts}
    use = uses.pop(slice_.account_id)
    others = list(uses.values())[:ACCOUNTS_MAX]
    return Turn(
        priority_class=slice_.priority_class,
        priority=slice_.priority,
        class_ahead=_cut(above, AHEAD_MAX),
        own_ahead=_cut(own, AHEAD_MAX),
        use=use,
        others=Counted(len(others), is_more=len(uses) > len(others)),
        others_less_count=count_less(use, others),
        deadline_at=job.deadline_at,
        raised_at=slice_.raised_at,
    )


def _to_use(account: WaitingAccount, now: datetime) -> Use:
    age_seconds = (now - account.counted_at).total_seconds() if account.counted_at else 0.0
    return Use(max(0.0, fade(account.slot_seconds, age_seconds)), account.fair_weight)


def _cut(count: int, most: int) -> Counted:
    return Counted(min(count, most), is_more=count > most)


async def _list_classes(
    conn: Connection,
    settings: HubSettings,
    prices: PriceBook,
    shape: Shape,
    account_id: AccountId,
    viewer_id: AccountId | None,
) -> list[SlotClass]:
    """In exact steps, unless the fleet is so varied and the request so large that this would be a long list."""
    closed = await find_closed(conn, clock.now())
    found: list[SlotClass] = []
    spots = {bucket: prices.find_force(bucket) for bucket in list_buckets(prices.card)}
    for levels in CLASS_LEVELS:
        found = await why_store.list_slot_classes(
            conn,
            shape,
            choose_steps(shape, levels),
            prices.card,
            spots,
            account_id=account_id,
            viewer_id=viewer_id,
            closed=closed,
            silence_seconds=settings.lease_seconds,
            fleet_max=FLEET_SLOTS_MAX,
            limit=None if levels == CLASS_LEVELS[-1] else CLASSES_MAX + 1,
        )
        if len(found) <= CLASSES_MAX:
            break
    return found


async def _tell_slice(
    pool: Pool,
    settings: HubSettings,
    book: WeightBook,
    prices: PriceBook,
    job: Job,
    need: Requirements,
    slice_: SliceFacts,
    viewer_id: AccountId | None,
) -> SliceStory:
    async with pool.acquire() as conn:
        attempts = await why_store.list_attempts(
            conn,
            job_id=job.id,
            slice_index=slice_.slice_index,
            account_id=job.account_id,
            viewer_id=viewer_id,
            limit=ATTEMPTS_MAX,
        )
        choice = None
        # Where an attempt died nobody asks why it was there; where it runs or ran well, the table tells.
        if attempts and attempts[0].cause is None:
            choice = await _explain_choice(conn, settings, book, prices, job, to_shape(need), attempts[0], viewer_id)
    is_saved = any(attempt.saved_at is not None for attempt in attempts)
    told = [_tell_attempt(job, need, slice_, attempt, is_saved=is_saved) for attempt in attempts]
    return SliceStory(slice_, told, choice)


async def _explain_choice(
    conn: Connection,
    settings: HubSettings,
    book: WeightBook,
    prices: PriceBook,
    job: Job,
    shape: Shape,
    attempt: AttemptFacts,
    viewer_id: AccountId | None,
) -> Choice:
    # The set may be gone from the file since the job was given it: then it is placed by the first of the split.
    weight_set = job.weight_set if job.weight_set in book.sets else book.split.first
    weights, now = book.sets[weight_set], clock.now()
    # Those who pay a fixed price compare slots by their reference, all others by spot.
    fixed = shape.base_ceiling_microcredits_per_hour is not None
    level_of = prices.card.reference if fixed else prices.score_spot
    fitting = await why_store.list_fitting(
        conn,
        shape,
        weights.under(job.prefer),
        prices.card,
        {bucket: level_of(bucket) for bucket in list_buckets(prices.card)},
        job_class=to_job_class(gpu=shape.gpu),
        chosen=(attempt.node_id, attempt.slot_name),
        account_id=job.account_id,
        viewer_id=viewer_id,
        closed=await find_closed(conn, now),
        silence_seconds=settings.lease_seconds,
        fleet_max=FLEET_NODES_MAX,
        limit=SCORED_MAX,
    )
    fitting = _leave_out(fitting, shape, prices)
    ranked = rank_candidates(
        [
            make_candidate(
                each.slot,
                price_microcredits_per_hour=each.floor_microcredits_per_hour,
                spot_microcredits_per_hour=0 if fixed else each.spot_microcredits_per_hour,
                reference_microcredits_per_hour=each.spot_microcredits_per_hour if fixed else 0,
                reliability=reliability_bound(each.reliability, now=now),
                declared_tflops=each.declared_tflops,
            )
            for each in fitting.slots
        ],
        shape,
        weights,
        job.prefer,
        chosen=(attempt.node_id, SlotName(attempt.slot_name)),
        busy={(each.slot.node_id, each.slot.name) for each in fitting.slots if each.busy},
    )
    return Choice(
        weight_set=weight_set,
        prefer=job.prefer,
        ranked=ranked,
        node_names=_list_names(fitting),
        rates={
            (slot.node_id, slot.name): _rate(each.candidate, shape, prices, job.account_id)
            for each in ranked
            for slot in [each.candidate.slot]
        },
        fit_count=fitting.fit_count,
        is_cut=fitting.is_cut,
        words=say_choice(ranked, scored_count=len(fitting.slots), fit_count=fitting.fit_count, is_cut=fitting.is_cut),
        reckoned_at=now,
    )


def _rate(candidate: Candidate, shape: Shape, prices: PriceBook, account_id: AccountId) -> int:
    """What an hour costs, not what its owner asks at least: floors are often zero, and nobody pays that."""
    if not (candidate.spot_microcredits_per_hour or candidate.reference_microcredits_per_hour):
        # The submitter's own, or a private pool at its owner's price.
        return candidate.price_microcredits_per_hour
    by_hour = prices.by_hour(shape, prices.find_bucket(candidate.slot, candidate.speed_tflops))
    if by_hour is not shape:
        return by_hour.ceiling_microcredits_per_hour or 0
    return prices.rate(candidate, shape.ceiling_microcredits_per_hour, account_id)


def _leave_out(fitting: Fitting, shape: Shape, prices: PriceBook) -> Fitting:
    """What the database does not look at: what a fixed price comes to differs from slot to slot, and what owners
    allow is said in patterns."""
    if shape.base_ceiling_microcredits_per_hour is None and not shape.wants:
        return fitting
    left = []
    for each in fitting.slots:
        bucket = prices.find_bucket(each.slot, to_speed(each.slot, each.declared_tflops))
        is_paid = check_price(prices.by_hour(shape, bucket), each.floor_microcredits_per_hour) is None
        if is_paid and not list_refused(shape.wants, each.slot.allows):
            left.append(each)
    return replace(fitting, slots=left, fit_count=fitting.fit_count - len(fitting.slots) + len(left))


def _list_names(fitting: Fitting) -> dict[tuple[NodeId, str], str]:
    return {
        (each.slot.node_id, each.slot.name): each.node_name for each in fitting.slots if each.node_name is not None
    }


def _tell_attempt(
    job: Job, need: Requirements, slice_: SliceFacts, attempt: AttemptFacts, *, is_saved: bool
) -> AttemptStory:
    end = None
    if attempt.cause is not None:
        end = explain_end(
            Ended(
                cause=attempt.cause,
                exit_code=attempt.exit_code,
                state=attempt.state,
                slice_state=slice_.state,
                slice_cause=slice_.cause,
                failure_count=slice_.failure_count,
                attempt_count=slice_.attempt_count,
                retries=job.retries,
                ram_bytes=need.ram_bytes,
                memory_bytes_peak=attempt.memory_bytes_peak,
                wall_seconds=job.wall_seconds,
                is_saved=is_saved,
            )
        )
    margins: tuple[Margin, ...] = ()
    if attempt.slot is not None:
        margins = list_margins(need, attempt.slot, attempt.floor_microcredits_per_hour, account_id=job.account_id)
    return AttemptStory(attempt, end, margins)


def _to_requirements(job: Job, shape: Shape) -> Requirements:
    """With the ceiling that it has been given, if it asked for none."""
    asked = msgspec.convert(job.spec.get("requirements", {}), wire.Requirements)
    need = Requirements(
        **{name: getattr(asked, name) for name in asked.__struct_fields__},
        job_kind=job.spec.get("kind", DEFAULT_KIND),
        slice_seconds=job.wall_seconds,
        slice_price=job.slice_price,
        wants=shape.wants,
    )
    if job.slice_price is None and need.ceiling_microcredits_per_hour is None:
        return replace(need, ceiling_microcredits_per_hour=shape.ceiling_microcredits_per_hour)
    return need
