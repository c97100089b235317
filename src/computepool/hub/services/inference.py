"""Answers of networks, computed where their runs sit: checkpoints are opened at hosts, requests sent and awaited.

A request is pinned to one complete checkpoint. If hosts are lost on the way it is asked again in the next epoch, at
the same checkpoint, for as long as whoever asked waits. All of it is this process's memory: a request that is under
way when the run changes its owner is asked again by the caller, of the new one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from computepool import clock
from computepool.core.errors import (
    ComputePoolError,
    HubUnavailable,
    InvalidRequest,
    LimitExceeded,
    NotFound,
)
from computepool.core.ids import AttemptId, NetworkId, RunId
from computepool.core.networks.course import AT_WORK
from computepool.core.networks.detection import ANSWER_SECONDS
from computepool.core.networks.epochs import list_locations
from computepool.core.networks.errors import InferenceFailed, NoLiveRun, RunElsewhere
from computepool.core.networks.placement import Placement, SeatId
from computepool.core.networks.requests import Given, RequestForm
from computepool.core.networks.run import OVER, AnswerMissed, Run
from computepool.hub.services.callers import AccountCaller
from computepool.hub.services.networks import NO_NETWORK, get_visible
from computepool.hub.services.owners import Heard, RunOwner
from computepool.hub.store import runs as run_store
from computepool.hub.store.connect import Pool
from computepool.hub.store.runs import Part, RunRow

log = logging.getLogger("computepool.networks")

# Requests of one run that are under way, and the bytes of all of them in this process.
REQUESTS_MAX = 32
BYTES_MAX = 256 << 20
# Checkpoints that a run's hosts keep open at a time.
OPEN_MAX = 4
# How long an answer is awaited before it is asked for once more: an order or an answer may be lost with a session.
TRY_SECONDS = 5.0
TRY_SECONDS_MAX = 20.0
# A host without a session, or one whose orders pile up, is looked at again after this.
PAUSE_SECONDS = 0.1
CHECKPOINTS_LISTED_MAX = 1_000
# What a host says when it has closed the checkpoint, or never opened it.
NOT_OPEN = "not_open"


@dataclass(frozen=True, slots=True)
class TensorBytes:
    dtype: str
    shape: tuple[int, ...]
    content: bytes

    @property
    def given(self) -> Given:
        return Given(self.dtype, self.shape, len(self.content))


@dataclass(frozen=True, slots=True)
class Answer:
    output: TensorBytes
    checkpoint_step: int


@dataclass(frozen=True, slots=True)
class OpenOrder:
    """For a host that takes part: have this checkpoint's weights at hand."""

    epoch: int
    step: int
    parts: tuple[Part, ...]
    kept_steps: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AskOrder:
    """For a host at which inputs enter the network."""

    epoch: int
    step: int
    number: int
    replica: int
    inputs: Mapping[str, TensorBytes]


class Post(Protocol):
    def offer(self, attempt_id: AttemptId, order: OpenOrder | AskOrder) -> bool:
        """False: its session is not open here, or has much to read already."""


@dataclass(frozen=True, slots=True)
class Opened:
    epoch: int
    step: int
    code: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Answered:
    epoch: int
    number: int
    output: TensorBytes | None = None
    code: str = ""
    message: str = ""
    vnode_id: str = ""


@dataclass(slots=True, eq=False)
class _Request:
    """One person's question, over all its tries."""

    samples: int
    found: asyncio.Future[TensorBytes]
    # Set when it is no use to wait any longer for the try that is under way.
    again: asyncio.Event = field(default_factory=asyncio.Event)

    def fail(self, error: ComputePoolError) -> None:
        if not self.found.done():
            self.found.set_exception(error)


@dataclass(slots=True, eq=False)
class _Opening:
    missing: set[SeatId]
    done: asyncio.Event = field(default_factory=asyncio.Event)
    error: ComputePoolError | None = None

    @property
    def is_open(self) -> bool:
        return not self.missing and self.error is None


@dataclass(slots=True, eq=False)
class _Service:
    """What a run's hosts do for requests in one epoch."""

    epoch: int
    placement: Placement
    form: RequestForm
    seats: tuple[SeatId, ...]
    last_number: int = 0
    # By step, the one that was used last at the end.
    openings: OrderedDict[int, _Opening] = field(default_factory=OrderedDict)
    # Tries that are under way: the request, its step and replica.
    tries: dict[int, tuple[_Request, int, int]] = field(default_factory=dict)

    def list_missing(self, step: int) -> list[SeatId]:
        """Who has not said that it has this checkpoint at hand."""
        opening = self.openings.get(step)
        return [seat for seat in self.seats if opening is not None and seat in opening.missing]

    def end(self) -> None:
        """The epoch is over: everybody asks again."""
        for opening in self.openings.values():
            opening.done.set()
        for request, _, _ in self.tries.values():
            request.again.set()


class InferenceDesk:
    def __init__(self, pool: Pool, owner: RunOwner, post: Post) -> None:
        self._pool = pool
        self._owner = owner
        self._post = post
        self._services: dict[RunId, _Service] = {}
        self._forms: dict[RunId, RequestForm] = {}
        self._changes: dict[RunId, asyncio.Event] = {}
        self._pins: dict[RunId, Counter[int]] = {}
        self._under_way: Counter[RunId] = Counter()
        self._bytes = 0
        owner.on_change = self.note_change
        owner.list_pinned = self.list_pinned

    # For people

    async def find_run(self, caller: AccountCaller, *, run_id: RunId | None, network_id: NetworkId | None) -> RunId:
        """The run that is to answer: the caller's own. A run that nobody owns becomes this process's."""
        row = await self._find_row(caller, run_id, network_id)
        if row.state in OVER:
            raise NoLiveRun(
                f"The run is {row.state.value}: no PNode holds its weights. Let it answer (computepool net resume "
                f"{row.id} --serve), or compute in your own process with what computepool net export gives."
            )
        if self._owner.find(row.id) is None:
            await self._owner.claim(row.id)
        if self._owner.find(row.id) is None:
            raise RunElsewhere("Another hub owns this run: ask that one.", owner_address=row.owner_address)
        return row.id

    async def find_step(self, run_id: RunId, step: int) -> int:
        """0 means the newest complete checkpoint; before there is one, what follows from the seed."""
        run = self._get_run(run_id)
        if not step or step == run.checkpoint_step:
            return run.checkpoint_step
        async with self._pool.acquire() as conn:
            known = await run_store.list_checkpoints(conn, run_id, limit=CHECKPOINTS_LISTED_MAX)
        complete = sorted(each.step for each in known if each.complete_at is not None)
        if step not in complete:
            have = ", ".join(str(each) for each in complete) or "none yet"
            raise NotFound(f"Checkpoint {step} is not there. Complete ones: {have}.")
        return step

    @contextmanager
    def pin(self, run_id: RunId, step: int) -> Iterator[None]:
        """As long as somebody wants answers of this checkpoint it is not thrown away."""
        pins = self._pins.setdefault(run_id, Counter())
        pins[step] += 1
        try:
            yield
        finally:
            pins[step] -= 1
            if not pins[step]:
                del pins[step]
            if not pins:
                self._pins.pop(run_id, None)

    def list_pinned(self, run_id: RunId) -> Collection[int]:
        return list(self._pins.get(run_id, ()))

    async def answer(self, run_id: RunId, step: int, inputs: Mapping[str, TensorBytes], *, seconds: float) -> Answer:
        """At this very checkpoint. Raises what is wrong with the request, or why nobody answers it."""
        run = self._get_run(run_id)
        given = {name: tensor.given for name, tensor in inputs.items()}
        form = self._get_form(run_id)
        form.check(given)
        size_bytes = sum(tensor.size_bytes for tensor in given.values())
        request = _Request(form.count_samples(given), asyncio.get_running_loop().create_future())
        with self._room(run.id, size_bytes), self.pin(run.id, step):
            try:
                async with asyncio.timeout(seconds):
                    await self._ask(run_id, step, inputs, request)
                    return Answer(await request.found, step)
            except TimeoutError:
                raise HubUnavailable(self._explain(run_id, seconds)) from None
            finally:
                self._forget(run_id, request)

    # From hosts, and from the owner

    def note_opened(self, run_id: RunId, seat: SeatId, attempt_id: AttemptId, said: Opened) -> None:
        service = self._find_speaker(run_id, seat, attempt_id, said.epoch)
        opening = service.openings.get(said.step) if service is not None else None
        if opening is None or seat not in opening.missing:
            return
        if said.code:
            opening.error = InferenceFailed(
                f"{self._name(run_id, seat)} cannot answer at checkpoint {said.step}: {said.message}. Ask again "
                "later, or compute in your own process."
            )
        else:
            opening.missing.discard(seat)
        if opening.error is not None or not opening.missing:
            opening.done.set()

    def note_answer(self, run_id: RunId, seat: SeatId, attempt_id: AttemptId, said: Answered) -> None:
        """What a host says is a claim: only who takes part may speak, and only the output's host may answer."""
        service = self._find_speaker(run_id, seat, attempt_id, said.epoch)
        if service is None or said.number not in service.tries:
            return
        request, step, replica = service.tries[said.number]
        if said.code == NOT_OPEN:
            service.openings.pop(step, None)
            request.again.set()
        elif said.code:
            vnode = f"VNode {said.vnode_id} on " if said.vnode_id else ""
            request.fail(InferenceFailed(f"{vnode}{self._name(run_id, seat)}: {said.message}."))
        elif said.output is not None and seat == service.form.find_output_seat(service.placement, replica):
            fault = service.form.find_answer_fault(said.output.given, samples=request.samples)
            if fault:
                request.fail(InferenceFailed(f"{self._name(run_id, seat)}: {fault}. Ask again."))
            elif not request.found.done():
                request.found.set_result(said.output)

    def note_change(self, run_id: RunId) -> None:
        """The run has another state or epoch, or is not this process's any more."""
        changed = self._changes.pop(run_id, None)
        if changed is not None:
            changed.set()
        run, service = self._owner.find(run_id), self._services.get(run_id)
        if service is not None and (run is None or run.epoch != service.epoch or run.state not in AT_WORK):
            del self._services[run_id]
            service.end()
        if run is None or run.state in OVER:
            self._forms.pop(run_id, None)

    # One request, try after try

    async def _ask(self, run_id: RunId, step: int, inputs: Mapping[str, TensorBytes], request: _Request) -> None:
        """Until it is answered or failed."""
        patience, epoch, asked_at = TRY_SECONDS, 0, 0.0
        while not request.found.done():
            service = await self._find_service(run_id)
            request.again.clear()
            if service.epoch != epoch:
                epoch, asked_at = service.epoch, self._owner.read_clock()
            if not await self._open(run_id, service, step, patience):
                await self._miss(run_id, service, service.list_missing(step), asked_at)
                continue
            if request.found.done():
                continue
            seats = self._send(run_id, service, step, inputs, request)
            if not seats:
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            ends_at = clock.seconds() + patience
            while (left := ends_at - clock.seconds()) > 0 and not (request.found.done() or request.again.is_set()):
                await _wait_any(request.found, request.again, seconds=min(left, TRY_SECONDS))
                await self._miss(run_id, service, seats, asked_at)
            patience = min(2 * patience, TRY_SECONDS_MAX)

    async def _miss(self, run_id: RunId, service: _Service, seats: Sequence[SeatId], asked_at: float) -> None:
        """The run's owner is told that these have been waited for, and decides whether one of them is stuck."""
        seconds = self._owner.read_clock() - asked_at
        if seats and seconds >= ANSWER_SECONDS:
            await self._owner.hear(run_id, Heard(AnswerMissed(service.epoch, tuple(seats), seconds)))

    async def _find_service(self, run_id: RunId) -> _Service:
        """Waits while the run recovers. Raises when nobody will answer any more."""
        while (run := self._get_run(run_id)).state not in AT_WORK:
            await self._changes.setdefault(run_id, asyncio.Event()).wait()
        service = self._services.get(run_id)
        if service is None:
            placement = Placement(str(run.id), run.epoch, list_locations(run))
            form = self._get_form(run_id)
            service = _Service(run.epoch, placement, form, tuple(form.list_seats(placement)))
            self._services[run_id] = service
        return service

    async def _open(self, run_id: RunId, service: _Service, step: int, seconds: float) -> bool:
        """Whether every host that takes part has the checkpoint at hand. Raises what one of them says against it."""
        opening = service.openings.get(step)
        if opening is not None and opening.is_open:
            service.openings.move_to_end(step)
            return True
        parts = await self._list_parts(run_id, step)
        if step and not parts:
            raise NotFound(
                f"Checkpoint {step} is gone: an audit has rejected what hosts computed up to it. Ask again."
            )
        if self._services.get(run_id) is not service:
            return False
        # Others may have begun it meanwhile.
        opening = service.openings.get(step)
        if opening is None or opening.error is not None:
            if not _make_room(service, step):
                await asyncio.sleep(PAUSE_SECONDS)
                return False
            opening = service.openings[step] = _Opening(set(service.seats))
        self._send_open(run_id, service, step, opening, parts)
        try:
            async with asyncio.timeout(seconds):
                await opening.done.wait()
        except TimeoutError:
            return False
        if opening.error is not None:
            service.openings.pop(step, None)
            raise opening.error
        return opening.is_open and self._services.get(run_id) is service

    def _send_open(
        self, run_id: RunId, service: _Service, step: int, opening: _Opening, parts: Sequence[Part]
    ) -> None:
        """To those who have not said that they have it. Who has hears it twice, which does not hurt."""
        run = self._owner.find(run_id)
        for seat in opening.missing if run is not None else ():
            attempt_id = run.seats[seat].attempt_id if run is not None else None
            mine = {each.vnode_id for each in service.placement.at(seat)}
            needed = tuple(part for part in parts if part.vnode_id in mine and part.vnode_id in service.form.needed)
            if attempt_id is not None:
                self._post.offer(attempt_id, OpenOrder(service.epoch, step, needed, tuple(service.openings)))

    async def _list_parts(self, run_id: RunId, step: int) -> list[Part]:
        if not step:
            return []
        async with self._pool.acquire() as conn:
            return await run_store.list_parts(conn, run_id, step)

    def _send(
        self,
        run_id: RunId,
        service: _Service,
        step: int,
        inputs: Mapping[str, TensorBytes],
        request: _Request,
    ) -> list[SeatId]:
        """Whose work the answer takes; empty if it could not be asked now."""
        run = self._owner.find(run_id)
        if run is None or self._services.get(run_id) is not service:
            return []
        service.last_number += 1
        number = service.last_number
        replica = number % run.replicas
        by_seat: dict[SeatId, dict[str, TensorBytes]] = {}
        for entry in service.form.list_entries(service.placement, replica):
            by_seat.setdefault(entry.seat, {})[entry.source_name] = inputs[entry.source_name]
        for seat, mine in by_seat.items():
            attempt_id = run.seats[seat].attempt_id
            order = AskOrder(service.epoch, step, number, replica, mine)
            if attempt_id is None or not self._post.offer(attempt_id, order):
                return []
        service.tries[number] = (request, step, replica)
        return service.form.list_seats(service.placement, replica)

    def _forget(self, run_id: RunId, request: _Request) -> None:
        service = self._services.get(run_id)
        if service is not None:
            service.tries = {number: each for number, each in service.tries.items() if each[0] is not request}

    # What is known

    def _find_speaker(self, run_id: RunId, seat: SeatId, attempt_id: AttemptId, epoch: int) -> _Service | None:
        """None: it has no part in what is asked now, or somebody else has its seat."""
        run, service = self._owner.find(run_id), self._services.get(run_id)
        if run is None or service is None or service.epoch != epoch or seat not in service.seats:
            return None
        return service if run.seats[seat].attempt_id == attempt_id else None

    def _get_run(self, run_id: RunId) -> Run:
        """Raises RunElsewhere: whoever asked asks again, and hears what became of the run."""
        run = self._owner.find(run_id)
        if run is None:
            raise RunElsewhere("The run is over, or another hub owns it now. Ask again.")
        return run

    def _get_form(self, run_id: RunId) -> RequestForm:
        form = self._forms.get(run_id)
        if form is None:
            form = self._forms[run_id] = RequestForm(self._owner.get_spec(run_id))
        return form

    async def _find_row(self, caller: AccountCaller, run_id: RunId | None, network_id: NetworkId | None) -> RunRow:
        async with self._pool.acquire() as conn:
            if run_id is not None:
                row = await run_store.find_run(conn, run_id)
                foreign = row is None or (network_id is not None and row.network_id != network_id)
                # Who pays for the seats may ask them, and nobody else: an operator neither.
                if row is None or foreign or row.account_id != caller.account_id:
                    raise NotFound("There is no such run.")
                return row
            if network_id is None:
                raise InvalidRequest("Name the run that is to answer (run_id), or its network (network_id).")
            network = await get_visible(conn, caller, network_id)
            if network.account_id != caller.account_id:
                raise NotFound(NO_NETWORK)
            rows = await run_store.list_runs(
                conn, account_id=caller.account_id, network_id=network_id, before=None, limit=CHECKPOINTS_LISTED_MAX
            )
        live = [row for row in rows if row.state not in OVER]
        if not live:
            raise NoLiveRun("No run of this network is going on. Start one, or resume one that was stopped.")
        return live[0]

    @contextmanager
    def _room(self, run_id: RunId, size_bytes: int) -> Iterator[None]:
        if self._under_way[run_id] >= REQUESTS_MAX or self._bytes + size_bytes > BYTES_MAX:
            raise LimitExceeded(
                f"{self._under_way[run_id]} requests of this run are under way already, or too many bytes at this "
                "hub. Ask again in a moment.",
                retry_after_seconds=1,
            )
        self._under_way[run_id] += 1
        self._bytes += size_bytes
        try:
            yield
        finally:
            self._bytes -= size_bytes
            self._under_way[run_id] -= 1
            if not self._under_way[run_id]:
                del self._under_way[run_id]

    def _explain(self, run_id: RunId, seconds: float) -> str:
        run = self._owner.find(run_id)
        words = f"No answer within {seconds:.0f} s"
        if run is None:
            return f"{words}: the run is over, or another hub owns it now. Ask again."
        why = f": {run.message}" if run.message else ""
        return f"{words}. The run is {run.state.value}{why}. Ask again."

    def _name(self, run_id: RunId, seat: SeatId) -> str:
        run = self._owner.find(run_id)
        return str(run.seats[seat]) if run is not None else seat


def _make_room(service: _Service, step: int) -> bool:
    """The checkpoint that was not used for longest is closed. False: all of them are in use."""
    service.openings.pop(step, None)
    used = {each for _, each, _ in service.tries.values()}
    for idle in [each for each, opening in service.openings.items() if opening.done.is_set() and each not in used]:
        if len(service.openings) < OPEN_MAX:
            break
        del service.openings[idle]
    return len(service.openings) < OPEN_MAX


async def _wait_any(found: asyncio.Future[TensorBytes], again: asyncio.Event, *, seconds: float) -> None:
    asking = asyncio.ensure_future(again.wait())
    both: set[asyncio.Future[Any]] = {found, asking}
    try:
        await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
