"""Runs as their people see them: start, stop, resume, look, watch. Who owns them decides what becomes of them."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec

from computepool import entropy
from computepool.core.accounts.roles import Role
from computepool.core.errors import Conflict, InvalidRequest, NotFound
from computepool.core.ids import AccountId, JobId, NetworkId, NodeId, RunId
from computepool.core.jobs.spec import is_sha256
from computepool.core.networks.allocation import (
    Chosen,
    PNode,
    Question,
    Unplaceable,
    choose_placement,
    count_seats_min,
)
from computepool.core.networks.audit import AuditOutcome
from computepool.core.networks.errors import DataRefused, NoPlacement
from computepool.core.networks.needs import list_links, list_needs
from computepool.core.networks.placement import Location, SeatId
from computepool.core.networks.run import OVER, FeedKind, RunState, Seat, seat_id
from computepool.core.networks.spec import STEPS_MAX, NetworkSpec
from computepool.core.networks.spec_json import from_json
from computepool.core.placement.price import PRICE_MICROCREDITS_MAX
from computepool.hub.blobs.fetch import Fetcher, is_address
from computepool.hub.config import HubSettings
from computepool.hub.services import seats as seat_service
from computepool.hub.services.artifacts import check_room, record_upload
from computepool.hub.services.callers import AccountCaller
from computepool.hub.services.networks import NO_NETWORK, check_key, get_visible
from computepool.hub.services.prices import PriceBook
from computepool.hub.services.seats import HOURS_MAX, SEATS_MAX, FoundPNodes, SeatTerms
from computepool.hub.store import artifacts as artifact_store
from computepool.hub.store import jobs as job_store
from computepool.hub.store import networks as network_store
from computepool.hub.store import run_audits as audit_store
from computepool.hub.store import runs as run_store
from computepool.hub.store.connect import Connection, Pool
from computepool.hub.store.networks import Network
from computepool.hub.store.runs import Checkpoint, DataItem, FeedLine, NewLine, RunRow

DATA_REFS_MAX = 64
DATA_FORMAT = "safetensors"
NODES_NAMED_MAX = 1_000
PAGE_MAX = 200
FEED_PAGE = 500
CHECKPOINTS_LISTED_MAX = 1_000


@dataclass(frozen=True, slots=True)
class DataRef:
    """A content of the hub's by its hash, or an https address that the hub fetches and checks against the hash."""

    sha256: str
    uri: str = ""
    size_bytes: int = 0
    format: str = DATA_FORMAT


@dataclass(frozen=True, slots=True)
class TrainOptions:
    steps: int
    data: tuple[DataRef, ...]
    # None: half as much again as a CPU slot usually costs.
    ceiling_microcredits_per_hour: int | None = None
    hours_max: int = 1
    # 0: as few as the network fits on.
    seats: int = 0
    node_ids: tuple[NodeId, ...] = ()
    # Stay when all steps are made, and answer until it is stopped or its hours are over.
    serves: bool = False


@dataclass(frozen=True, slots=True)
class RunView:
    row: RunRow
    seats: dict[SeatId, Seat]
    locations: tuple[Location, ...]
    # How many came to what.
    audits: Mapping[AuditOutcome, int]


@dataclass(frozen=True, slots=True)
class SeatPlan:
    chosen: Chosen
    found: FoundPNodes
    seats: int


def to_terms(options: Mapping[str, Any]) -> SeatTerms:
    """From the row of a run."""
    return SeatTerms(
        count=options["seats"],
        hours=options["hours_max"],
        ceiling=options["ceiling_microcredits_per_hour"],
        node_ids=tuple(NodeId(UUID(each)) for each in options["node_ids"]),
    )


async def start_run(
    pool: Pool,
    prices: PriceBook,
    settings: HubSettings,
    fetcher: Fetcher,
    caller: AccountCaller,
    network_id: NetworkId,
    options: TrainOptions,
    *,
    idempotency_key: str | None = None,
) -> RunView:
    """Holds what it may cost, and leaves the rest to whoever owns the run a moment later."""
    check_key(idempotency_key)
    network = await _get_own(pool, caller, network_id)
    spec = from_json(network.spec)
    _check_options(options, spec)
    data = await _bring_data(pool, fetcher, caller, options.data, size_bytes_max=settings.upload_bytes_max)
    seats = options.seats or await _count_seats(pool, prices, settings, spec, options, caller.account_id)
    stored = _to_stored(options, seats)
    run_id = RunId(entropy.new_id())
    async with pool.acquire() as conn, conn.transaction():
        if await network_store.lock_network(conn, network_id) is None:
            raise NotFound(NO_NETWORK)
        job_id, is_new = await seat_service.submit_seats(
            conn,
            prices,
            to_terms(stored),
            account_id=caller.account_id,
            name=f"network {network.name}"[:200],
            key=idempotency_key,
            request_sha256=_digest(network_id, options),
        )
        if is_new:
            await run_store.insert_run(
                conn,
                id=run_id,
                network_id=network_id,
                account_id=caller.account_id,
                job_id=job_id,
                steps=options.steps,
                inexact_from_step=0 if spec.promises_exactness else 1,
                options=stored,
                data=data,
                seconds=options.hours_max * seat_service.SECONDS_PER_HOUR,
                seats=[seat_id(index) for index in range(seats)],
            )
            line = NewLine(FeedKind.STATE, 0, 0, f"waits for an owner; {seats} seats, {options.steps} steps")
            await run_store.insert_lines(conn, run_id, [line])
        else:
            run_id = await _find_twin(conn, job_id)
        return await get_view(conn, run_id)


async def stop_run(pool: Pool, caller: AccountCaller, run_id: RunId) -> RunView:
    """Its owner stops it after the next step that every VNode can store; what is stopped can be resumed."""
    async with pool.acquire() as conn, conn.transaction():
        await _get_visible(conn, caller, run_id)
        await run_store.ask_stop(conn, run_id)
        return await get_view(conn, run_id)


async def resume_run(
    pool: Pool, prices: PriceBook, caller: AccountCaller, run_id: RunId, *, steps: int = 0, serves: bool = False
) -> RunView:
    """From its last checkpoint, to so many steps in all; under the terms that it was started with.

    With `serves` it answers once they are made, and there need be none to make.
    """
    async with pool.acquire() as conn, conn.transaction():
        await _get_visible(conn, caller, run_id)
        row = await run_store.lock_run(conn, run_id)
        assert row is not None
        if row.account_id != caller.account_id:
            raise NotFound("There is no such run.")
        if row.state not in OVER:
            raise Conflict(f"The run is {row.state.value}. Stop it first, or let it go on.")
        steps = steps or row.steps
        if not row.checkpoint_step < steps + serves <= STEPS_MAX:
            raise InvalidRequest(f"The run has made {row.checkpoint_step} steps. Give a larger number to go on to.")
        await get_visible(conn, caller, row.network_id)
        terms = to_terms(row.options)
        job_id, _ = await seat_service.submit_seats(
            conn, prices, terms, account_id=row.account_id, name=f"network {row.network_name}"[:200]
        )
        seconds = terms.hours * seat_service.SECONDS_PER_HOUR
        options = {**row.options, "serves": serves}
        await run_store.resume_run(conn, id=run_id, job_id=job_id, steps=steps, options=options, seconds=seconds)
        vacant = [Seat(id) for id in await run_store.list_seats(conn, run_id)]
        await run_store.set_seats(conn, run_id, vacant)
        words = f"resumed from step {row.checkpoint_step}, to {steps} steps"
        line = NewLine(FeedKind.STATE, row.epoch, row.checkpoint_step, words)
        await run_store.insert_lines(conn, run_id, [line])
        return await get_view(conn, run_id)


async def get_run(pool: Pool, caller: AccountCaller, run_id: RunId) -> RunView:
    async with pool.acquire() as conn:
        await _get_visible(conn, caller, run_id)
        return await get_view(conn, run_id)


async def locate(pool: Pool, run_id: RunId) -> RunView:
    """For a host of the run, which has proven that it is one."""
    async with pool.acquire() as conn:
        return await get_view(conn, run_id)


async def list_runs(
    pool: Pool, caller: AccountCaller, *, network_id: NetworkId | None, before: UUID | None, limit: int
) -> list[RunRow]:
    account_id = None if Role.OPERATOR in caller.roles else caller.account_id
    async with pool.acquire() as conn:
        return await run_store.list_runs(
            conn,
            account_id=account_id,
            network_id=network_id,
            before=before,
            limit=max(1, min(limit or PAGE_MAX, PAGE_MAX)),
        )


async def read_feed(
    pool: Pool, caller: AccountCaller, run_id: RunId, *, after: int
) -> tuple[list[FeedLine], RunState]:
    """What happened since, oldest first, and the state of the run before it was read."""
    async with pool.acquire() as conn:
        row = await _get_visible(conn, caller, run_id)
        return await run_store.list_feed(conn, run_id, after=after, limit=FEED_PAGE), row.state


async def list_checkpoints(pool: Pool, caller: AccountCaller, run_id: RunId) -> list[Checkpoint]:
    async with pool.acquire() as conn:
        await _get_visible(conn, caller, run_id)
        return await run_store.list_checkpoints(conn, run_id, limit=CHECKPOINTS_LISTED_MAX)


async def list_state(
    pool: Pool, caller: AccountCaller, run_id: RunId, *, checkpoint_step: int = 0
) -> tuple[int, list[run_store.Part]]:
    """The parts of a complete checkpoint, the newest if none is named."""
    async with pool.acquire() as conn:
        row = await _get_visible(conn, caller, run_id)
        step = checkpoint_step or row.checkpoint_step
        known = await run_store.list_checkpoints(conn, run_id, limit=CHECKPOINTS_LISTED_MAX)
        complete = sorted(each.step for each in known if each.complete_at is not None)
        if step not in complete:
            have = ", ".join(str(each) for each in complete) or "none yet"
            raise NotFound(f"Checkpoint {step} is not there. Complete ones: {have}.")
        return step, await run_store.list_parts(conn, run_id, step)


def explain_run(view: RunView) -> list[str]:
    """Why it is where it is, one line for each thing that it waits for."""
    row = view.row
    lines = [f"The run is {row.state.value}" + (f": {row.message}." if row.message else ".")]
    if row.state in OVER:
        return lines
    vacant = [seat.id for seat in view.seats.values() if seat.is_vacant]
    if vacant:
        lines.append(f"{len(vacant)} of {len(view.seats)} seats have no PNode: {', '.join(vacant[:8])}.")
    if row.owner_until is None:
        lines.append("No hub has taken it up yet; one that serves gRPC does so within seconds.")
    return lines


async def plan_seats(
    conn: Connection,
    prices: PriceBook,
    settings: HubSettings,
    spec: NetworkSpec,
    options: TrainOptions,
    account_id: AccountId,
) -> SeatPlan | Unplaceable:
    """Where the VNodes would go now: on as many seats as asked for, or on as few as they fit."""
    terms = SeatTerms(1, options.hours_max, options.ceiling_microcredits_per_hour, options.node_ids)
    found = await seat_service.find_pnodes(
        conn,
        prices,
        terms,
        account_id=account_id,
        avoided={},
        data_bytes={bytes.fromhex(ref.sha256): ref.size_bytes for ref in options.data},
        asks_trust=spec.trusts_first,
        silence_seconds=settings.lease_seconds,
    )
    # A large network takes a while to cut: others are heard meanwhile.
    answer = await asyncio.to_thread(_choose_seats, spec, found.pnodes, options.seats)
    return answer if isinstance(answer, Unplaceable) else SeatPlan(answer, found, len(answer.pnodes))


def _choose_seats(spec: NetworkSpec, pnodes: Sequence[PNode], seats: int) -> Chosen | Unplaceable:
    needs, links = list_needs(spec), list_links(spec)
    least = min(count_seats_min(needs, pnodes), len(needs), SEATS_MAX)
    most = max(least, min(len(needs), len(pnodes), SEATS_MAX))
    answer: Chosen | Unplaceable = Unplaceable(())
    for count in [seats] if seats else range(least, most + 1):
        vacant: dict[SeatId, Sequence[tuple[str, int]]] = {seat_id(index): () for index in range(count)}
        question = Question(needs, vacant, spec.exact, links=links, trusted_first=spec.trusts_first)
        answer = choose_placement(question, pnodes)
        if isinstance(answer, Chosen):
            break
    return answer


async def _count_seats(
    pool: Pool,
    prices: PriceBook,
    settings: HubSettings,
    spec: NetworkSpec,
    options: TrainOptions,
    account_id: AccountId,
) -> int:
    async with pool.acquire() as conn:
        plan = await plan_seats(conn, prices, settings, spec, options, account_id)
    if isinstance(plan, Unplaceable):
        raise NoPlacement(
            f"The network fits nowhere now: {'; '.join(plan.reasons)}. Say how many seats it shall have, and it "
            "waits for them.",
            reasons=list(plan.reasons),
        )
    return plan.seats


def _check_options(options: TrainOptions, spec: NetworkSpec) -> None:
    faults = []
    if not 1 <= options.steps <= STEPS_MAX:
        faults.append(f"steps is {options.steps}; 1 to {STEPS_MAX:,} are allowed")
    if not 1 <= options.hours_max <= HOURS_MAX:
        faults.append(f"hours_max is {options.hours_max}; 1 to {HOURS_MAX} are allowed")
    most = min(SEATS_MAX, len(spec.vnodes) * spec.replicas)
    if not 0 <= options.seats <= most:
        faults.append(f"seats is {options.seats}; this network has VNodes for {most} at most")
    ceiling = options.ceiling_microcredits_per_hour
    if ceiling is not None and not 1 <= ceiling <= PRICE_MICROCREDITS_MAX:
        faults.append(f"the ceiling is {ceiling}; it must be above 0, in microcredits per hour")
    if len(options.node_ids) > NODES_NAMED_MAX:
        faults.append(f"{len(options.node_ids)} nodes are named; {NODES_NAMED_MAX:,} are allowed")
    if not 1 <= len(options.data) <= DATA_REFS_MAX:
        faults.append(f"{len(options.data)} data references are given; 1 to {DATA_REFS_MAX} are allowed")
    for number, ref in enumerate(options.data):
        if not is_sha256(ref.sha256):
            faults.append(f"data[{number}] needs its sha256 as 64 lower-case hex digits")
        if ref.format != DATA_FORMAT:
            faults.append(f"data[{number}] is {ref.format!r}; only {DATA_FORMAT} is read")
        if ref.uri and not is_address(ref.uri):
            faults.append(f"data[{number}] is at {ref.uri!r}; give an https address, or upload it and give its hash")
    if faults:
        raise InvalidRequest("The run cannot be started: " + "; ".join(faults) + ".", faults=faults)


async def _bring_data(
    pool: Pool, fetcher: Fetcher, caller: AccountCaller, refs: Sequence[DataRef], *, size_bytes_max: int
) -> list[DataItem]:
    """After this every content is a file of the account's. What comes from elsewhere is fetched once."""
    found = []
    for ref in refs:
        raw = bytes.fromhex(ref.sha256)
        async with pool.acquire() as conn:
            size_bytes = await artifact_store.find_size(conn, account_id=caller.account_id, sha256=raw)
        if size_bytes is None and not ref.uri:
            raise DataRefused(
                f"You have no file {ref.sha256}. Upload it first (PUT /v1/artifacts/{ref.sha256}), or give an https "
                "address."
            )
        if size_bytes is None:
            await check_room(pool, caller, size_bytes=ref.size_bytes)
            size_bytes = await fetcher.fetch(ref.uri, ref.sha256, size_bytes_max=size_bytes_max)
            await record_upload(pool, caller, sha256=ref.sha256, size_bytes=size_bytes)
        found.append(DataItem(ref.sha256, size_bytes, ref.format))
    return found


def _to_stored(options: TrainOptions, seats: int) -> dict[str, Any]:
    return {
        "seats": seats,
        "hours_max": options.hours_max,
        "ceiling_microcredits_per_hour": options.ceiling_microcredits_per_hour,
        "node_ids": [str(each) for each in options.node_ids],
        "serves": options.serves,
    }


def _digest(network_id: NetworkId, options: TrainOptions) -> bytes:
    return hashlib.sha256(msgspec.json.encode([str(network_id), msgspec.to_builtins(options)])).digest()


async def _find_twin(conn: Connection, job_id: JobId) -> RunId:
    job = await job_store.find_job(conn, job_id)
    if job is None or job.run_id is None:
        raise Conflict("This idempotency key was used for an ordinary job. Use a new key for a run.")
    return job.run_id


async def get_view(conn: Connection, run_id: RunId) -> RunView:
    row = await run_store.find_run(conn, run_id)
    assert row is not None
    seats = await run_store.list_seats(conn, run_id)
    locations = await run_store.list_locations(conn, run_id)
    audits = await audit_store.count_outcomes(conn, run_id)
    return RunView(row, seats, _fill_in(locations, seats), audits)


def _fill_in(locations: Sequence[Location], seats: Mapping[SeatId, Seat]) -> tuple[Location, ...]:
    return tuple(
        Location(
            each.vnode_id,
            each.seat,
            each.replica,
            each.incarnation,
            str(seats[each.seat].node_id or ""),
            seats[each.seat].address,
        )
        for each in locations
    )


async def _get_own(pool: Pool, caller: AccountCaller, network_id: NetworkId) -> Network:
    """Who trains a network pays for it: an operator sees others' networks, and trains none of them."""
    async with pool.acquire() as conn:
        network = await get_visible(conn, caller, network_id)
    if network.account_id != caller.account_id:
        raise NotFound(NO_NETWORK)
    return network


async def _get_visible(conn: Connection, caller: AccountCaller, run_id: RunId) -> RunRow:
    row = await run_store.find_run(conn, run_id)
    if row is None or (row.account_id != caller.account_id and Role.OPERATOR not in caller.roles):
        raise NotFound("There is no such run.")
    return row
