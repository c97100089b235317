"""Why a job waits, runs or died, and why a node is idle. Looks only: nothing here changes anything."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from computepool import clock
from computepool.core.accounts.roles import Role
from computepool.core.errors import NotFound
from computepool.core.ids import AccountId, JobId, NodeId
from computepool.core.jobs.ending import End, Ended, explain_end
from computepool.core.jobs.spec import Requirements
from computepool.core.jobs.state import SliceState
from computepool.core.nodes.state import is_online
from computepool.core.placement.explain import (
    Explanation,
    Margin,
    SlotClass,
    choose_steps,
    explain_waiting,
    list_margins,
)
from computepool.core.placement.idleness import Idleness, NodeFacts, explain_idle
from computepool.core.placement.shape import Shape, to_shape
from computepool.hub.config import HubSettings
from computepool.hub.services import jobs as job_service
from computepool.hub.services import nodes as node_service
from computepool.hub.services.callers import AccountCaller
from computepool.hub.store import why as why_store
from computepool.hub.store.connect import Connection, Pool
from computepool.hub.store.jobs import Job
from computepool.hub.store.nodes import Node
from computepool.hub.store.why import AttemptFacts, SliceFacts
from computepool.wire import jobs as wire

# Counts stop here: whoever has so many before them learns nothing from the exact number.
AHEAD_MAX = 10_000
# More distinct kinds of slots than this are told apart less finely: so many levels below each amount asked for.
CLASSES_MAX = 2_000
CLASS_LEVELS = (None, 16, 1)
BACKLOG_SHAPES_MAX = 500
BACKLOG_SLICES_MAX = 1_000
ATTEMPTS_MAX = 20

# Which slice tells most when none was asked for: what failed, what is tried again, what runs, what is done.
_TELLING = {
    (SliceState.FAILED, True): 0,
    (SliceState.FAILED, False): 1,
    (SliceState.QUEUED, True): 2,
    (SliceState.RUNNING, True): 3,
    (SliceState.LEASED, True): 4,
    (SliceState.SUCCEEDED, True): 5,
    (SliceState.CANCELLED, True): 6,
    (SliceState.CANCELLED, False): 7,
}


@dataclass(frozen=True, slots=True)
class Waiting:
    explanation: Explanation
    ahead_count: int
    ahead_is_more: bool


@dataclass(frozen=True, slots=True)
class AttemptStory:
    attempt: AttemptFacts
    end: End | None
    margins: tuple[Margin, ...]


@dataclass(frozen=True, slots=True)
class SliceStory:
    slice: SliceFacts
    # Newest first.
    attempts: list[AttemptStory]


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
    pool: Pool, settings: HubSettings, caller: AccountCaller, job_id: JobId, *, slice_index: int | None
) -> JobStory:
    job = await job_service.get_job(pool, caller, job_id)
    need = _to_requirements(job)
    viewer_id = None if Role.OPERATOR in caller.roles else caller.account_id
    async with pool.acquire() as conn:
        slices = await why_store.list_first_slices(conn, job_id=job_id, slice_index=slice_index)
    if slice_index is not None and not slices:
        raise NotFound("The job has no such slice.")
    queued = [each for each in slices if each.state is SliceState.QUEUED]
    told = slices[0] if slice_index is not None else find_telling(slices)
    return JobStory(
        job=job,
        waiting=await _explain_queue(pool, settings, job, need, queued, viewer_id) if queued else None,
        story=await _tell_slice(pool, job, need, told, viewer_id) if told else None,
    )


async def explain_node(pool: Pool, settings: HubSettings, caller: AccountCaller, node_id: NodeId) -> NodeStory:
    found = await node_service.get_node(pool, caller, node_id)
    node = found.node
    online = is_online(node.last_seen_at, now=clock.now(), silence_seconds_max=settings.lease_seconds)
    async with pool.acquire() as conn:
        backlog = await why_store.list_backlog(conn, shapes_max=BACKLOG_SHAPES_MAX, count_max=BACKLOG_SLICES_MAX)
    facts = NodeFacts(
        state=node.state,
        online=online,
        seen=node.last_seen_at is not None,
        slots=[(stored.slot, stored.busy) for stored in found.slots],
    )
    full = len(backlog) >= BACKLOG_SHAPES_MAX or any(each.slice_count >= BACKLOG_SLICES_MAX for each in backlog)
    # Many shapes against many slots: the loop goes on serving others meanwhile.
    idleness = await asyncio.to_thread(explain_idle, facts, backlog)
    return NodeStory(node, online, len(found.slots), idleness, waiting_is_more=full)


def find_telling(slices: Sequence[SliceFacts]) -> SliceFacts | None:
    """None when no slice has been tried or has ended: then the queue is the whole story."""
    known = [each for each in slices if (each.state, each.attempt_count > 0) in _TELLING]
    return min(known, key=lambda each: _TELLING[(each.state, each.attempt_count > 0)], default=None)


async def _explain_queue(
    pool: Pool,
    settings: HubSettings,
    job: Job,
    need: Requirements,
    queued: Sequence[SliceFacts],
    viewer_id: AccountId | None,
) -> Waiting:
    first = min(queued, key=lambda each: each.queued_at)
    async with pool.acquire() as conn:
        classes = await _list_classes(conn, settings, to_shape(need), viewer_id)
        ahead_count = await why_store.count_ahead(conn, job_id=job.id, slice_=first, count_max=AHEAD_MAX + 1)
    explanation = await asyncio.to_thread(explain_waiting, need, classes)
    return Waiting(explanation, min(ahead_count, AHEAD_MAX), ahead_is_more=ahead_count > AHEAD_MAX)


async def _list_classes(
    conn: Connection, settings: HubSettings, shape: Shape, viewer_id: AccountId | None
) -> list[SlotClass]:
    """In exact steps, unless the fleet is so varied and the request so large that this would be a long list."""
    found: list[SlotClass] = []
    for levels in CLASS_LEVELS:
        found = await why_store.list_slot_classes(
            conn,
            shape,
            choose_steps(shape, levels),
            viewer_id=viewer_id,
            silence_seconds=settings.lease_seconds,
            limit=None if levels == CLASS_LEVELS[-1] else CLASSES_MAX + 1,
        )
        if len(found) <= CLASSES_MAX:
            break
    return found


async def _tell_slice(
    pool: Pool, job: Job, need: Requirements, slice_: SliceFacts, viewer_id: AccountId | None
) -> SliceStory:
    async with pool.acquire() as conn:
        attempts = await why_store.list_attempts(
            conn, job_id=job.id, slice_index=slice_.slice_index, viewer_id=viewer_id, limit=ATTEMPTS_MAX
        )
    return SliceStory(slice_, [_tell_attempt(job, need, slice_, attempt) for attempt in attempts])


def _tell_attempt(job: Job, need: Requirements, slice_: SliceFacts, attempt: AttemptFacts) -> AttemptStory:
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
            )
        )
    return AttemptStory(attempt, end, list_margins(need, attempt.slot) if attempt.slot else ())


def _to_requirements(job: Job) -> Requirements:
    asked = msgspec.convert(job.spec.get("requirements", {}), wire.Requirements)
    return Requirements(**{name: getattr(asked, name) for name in asked.__struct_fields__})
