"""One run on a grid of this machine: its owner, a thread that hears PNodes, decides by the rules of epochs, orders.

What becomes of the run is decided by `core.networks.epochs`, as at a hub; here stands only what takes the place of a
hub's store, leases and sessions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from computepool import clock, entropy
from computepool.core.errors import Conflict
from computepool.core.ids import AttemptId, NodeId, RunId
from computepool.core.networks import run as core
from computepool.core.networks.epochs import decide, list_locations
from computepool.core.networks.placement import SeatId
from computepool.core.networks.run import OVER, Part, RunState, Seat, SeatFill, seat_id
from computepool.core.networks.spec import NetworkSpec
from computepool.networks.run import Run, TrainEvent
from computepool.node.tokens import ALGORITHM, SEAT_TOKEN_TYPE, to_key_text

if TYPE_CHECKING:
    from torch import Tensor

TICK_SECONDS = 0.25
# Nothing is missed by it: whatever is told wakes those who watch.
WATCH_SECONDS = 5.0
TOKEN_SECONDS = 7 * 24 * 3600
# With no PNode left, somebody may start another.
NOBODY_SECONDS = 60.0
NUMERIC_CLASS = "this machine"

# What a PNode said, by its number; None: it is gone.
Heard = tuple[int, dict[str, Any] | None]


class PNodes(Protocol):
    """The processes that a run can use."""

    def list_ready(self) -> list[int]: ...

    def say(self, number: int, order: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True)
class _Tenure:
    """A PNode on a seat."""

    number: int
    seat: SeatId


class LocalRun(Run):
    def __init__(
        self,
        pnodes: PNodes,
        spec: NetworkSpec,
        steps: int,
        places: Mapping[Part, int],
        folder: Path,
        on_event: Callable[[TrainEvent], None] | None,
    ) -> None:
        """`places`: the number of its seat for every part. The folder holds spec and data, and gets checkpoints."""
        self._pnodes, self._spec, self._places, self._folder = pnodes, spec, places, folder
        self._on_event = on_event
        self._key, self._kid = Ed25519PrivateKey.generate(), "local"
        seats = {seat_id(number): Seat(seat_id(number)) for number in sorted(set(places.values()))}
        self._run = core.Run(
            id=RunId(entropy.new_id()),
            vnode_ids=tuple(vnode.id for vnode in spec.vnodes),
            loss=spec.loss,
            steps=steps,
            seats=seats,
            replicas=spec.replicas,
            exact=spec.exact,
        )
        self.id = str(self._run.id)
        self.heard: SimpleQueue[Heard | core.Event] = SimpleQueue()
        self._tenures: dict[AttemptId, _Tenure] = {}
        # By step and VNode; a name is of one epoch, and any that counts will do.
        self._files: dict[tuple[int, str], str] = {}
        self._events: list[TrainEvent] = []
        self._told = threading.Condition()
        self._stepped_at = 0.0
        self._nobody_since: float | None = None
        # Losses that a later epoch gave otherwise for the same step: none, or something is wrong.
        self.contradictions: list[tuple[int, float, float]] = []
        self._losses: dict[int, float] = {}
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    # For people

    @property
    def state(self) -> RunState:
        return self._run.state

    @property
    def epoch(self) -> int:
        return self._run.epoch

    @property
    def checkpoint_step(self) -> int:
        return self._run.checkpoint_step

    def watch(self, after: int = 0) -> Iterator[TrainEvent]:
        while True:
            with self._told:
                while len(self._events) <= after and not self._is_idle:
                    self._told.wait(WATCH_SECONDS)
                events, is_idle = self._events[after:], self._is_idle
            yield from events
            after += len(events)
            if is_idle and len(self._events) <= after:
                if self._error is not None:
                    raise RuntimeError(f"run {self.id} has lost its owner: {self._error}") from self._error
                return

    def list_events(self) -> list[TrainEvent]:
        return list(self._events)

    def find_pnode(self, seat: str) -> int | None:
        """The number of the PNode on a seat now."""
        numbers = [tenure.number for id, tenure in self._tenures.items() if self._fills(id, SeatId(seat))]
        return numbers[0] if numbers else None

    @property
    def seats(self) -> list[str]:
        """Those with VNodes on them."""
        return [str(seat.id) for seat in self._run.taken_seats]

    def stop(self) -> None:
        self.heard.put(core.StopAsked())

    def resume(self, steps: int | None = None) -> None:
        run = self._run
        if run.state is not RunState.STOPPED:
            raise Conflict(f"The run is {run.state.value}; only one that was stopped goes on. Start another.")
        self._run = replace(
            run,
            state=RunState.PLACING,
            steps=run.steps if steps is None else steps,
            epoch=run.epoch + 1,
            step=run.checkpoint_step,
            seats={id: Seat(id) for id in run.seats},
            reported={},
            ahead=frozenset(),
            recoveries=0,
            stop_at=None,
            place_at=0.0,
        )
        self.begin()

    def state_dict(self) -> dict[str, Tensor]:
        from computepool.networks.network import to_torch
        from computepool.node.vnodes.checkpoints import read_weights

        step = self._run.checkpoint_step
        if not step:
            return dict(to_torch(self._spec).state_dict())
        found: dict[str, Tensor] = {}
        for vnode in self._spec.vnodes:
            found |= read_weights((self._folder / self._files[step, vnode.id]).read_bytes(), vnode.id)
        return found

    def infer(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        """In this process: a grid of one machine has nobody else to ask."""
        from computepool.networks.uncut import answer

        return answer(self._spec, self.state_dict(), *inputs, **named)

    @property
    def _is_idle(self) -> bool:
        return self._thread is None or not self._thread.is_alive() or self._error is not None

    # The owner

    def begin(self) -> None:
        """Once `heard` gets what PNodes say."""
        self._thread = threading.Thread(target=self._own, name="run-owner", daemon=True)
        self._thread.start()

    def _own(self) -> None:
        try:
            self._hear_all()
        except BaseException as error:
            # The top of the thread: whoever waits for the run must hear of it.
            self._error = error
            raise
        finally:
            for attempt_id in list(self._tenures):
                self._end_tenure(attempt_id)
            with self._told:
                self._thread = None
                self._told.notify_all()

    def _hear_all(self) -> None:
        ticked_at = 0.0
        while self._run.state not in OVER:
            now = clock.seconds()
            if now - ticked_at >= TICK_SECONDS:
                ticked_at = now
                self._decide(core.Ticked())
            try:
                heard = self.heard.get(timeout=TICK_SECONDS)
            except Empty:
                continue
            if not isinstance(heard, tuple):
                self._decide(heard)
            elif heard[1] is None:
                self._lose(heard[0])
            else:
                self._hear(heard[0], heard[1])

    def _hear(self, number: int, said: dict[str, Any]) -> None:
        if said.get("run_id") != self.id:
            return
        attempt_id = AttemptId(UUID(said["attempt"]))
        tenure = self._tenures.get(attempt_id)
        if tenure is None or tenure.number != number:
            return
        seat, kind = tenure.seat, said["kind"]
        if kind == "joined":
            self._decide(core.HostJoined(seat, attempt_id, said["address"]))
        elif kind == "prepared":
            self._decide(core.HostPrepared(seat, attempt_id, said["epoch"]))
        elif kind == "beat":
            self._decide(core.BeatHeard(seat, attempt_id, said["epoch"], said["watermark"]))
        elif kind == "peer_lost":
            self._decide(core.PeerReported(seat, SeatId(said["peer"]), said["epoch"], said["reason"]))
        elif kind == "fault":
            self._decide(
                core.FaultReported(seat, attempt_id, said["epoch"], said["vnode_id"], said["code"], said["message"])
            )
        elif kind == "loss":
            # Hosts count steps from 0, runs from 1.
            step = said["step"] + 1
            self._decide(core.StepReported(seat, attempt_id, said["epoch"], step), loss=float.fromhex(said["loss"]))
        elif kind == "checkpoint":
            self._decide(
                core.CheckpointReported(seat, attempt_id, said["epoch"], said["step"], said["vnode_id"]),
                file=said["file"],
            )

    def _lose(self, number: int) -> None:
        gone = [attempt_id for attempt_id, tenure in self._tenures.items() if tenure.number == number]
        for attempt_id in gone:
            del self._tenures[attempt_id]
        if gone:
            self._decide(core.LeasesLost(frozenset(gone)))

    def _decide(self, event: core.Event, *, loss: float = 0.0, file: str = "") -> None:
        decision = decide(self._run, event, now=clock.seconds())
        self._run = decision.run
        for effect in decision.effects:
            self._do(effect, loss, file)

    def _do(self, effect: core.Effect, loss: float, file: str) -> None:
        if isinstance(effect, core.PlaceSeats):
            self._place(effect.seats)
        elif isinstance(effect, core.SendPrepare):
            self._order(effect.attempt_id, self._write_prepare(effect))
        elif isinstance(effect, core.SendRun):
            words = {"from_step": effect.from_step, "until_step": effect.until_step}
            self._order(effect.attempt_id, {"kind": "run", "epoch": effect.epoch, **words})
        elif isinstance(effect, core.SendDrop | core.VacateSeat):
            self._end_tenure(effect.attempt_id)
        elif isinstance(effect, core.KeepStep):
            self._keep_loss(effect.step, loss)
        elif isinstance(effect, core.KeepReport):
            self._files[effect.step, effect.vnode_id] = file
        elif isinstance(effect, core.CompleteCheckpoint):
            self._drop_files(effect.step)
        elif isinstance(effect, core.Tell):
            self._tell(effect.kind.value, effect.step, message=effect.message)

    # Seats

    def _place(self, vacant: Sequence[SeatId]) -> None:
        """Idle PNodes take the seats that are vacant; where there is none, those who stay take the VNodes."""
        busy = {tenure.number for tenure in self._tenures.values()}
        idle = [number for number in self._pnodes.list_ready() if number not in busy]
        staying = [id for id, seat in sorted(self._run.seats.items()) if not seat.is_vacant]
        is_first = not self._run.locations
        if len(idle) < len(vacant) and (is_first or not (idle or staying)):
            self._wait_for_pnodes(len(vacant))
            return
        self._nobody_since = None
        fills = [self._make_fill(seat, number) for seat, number in zip(vacant, idle, strict=False)]
        moves = {part: seat_id(place) for part, place in self._places.items()}
        if not is_first:
            filled = [fill.seat for fill in fills]
            moves = self._move(filled, [seat for seat in vacant if seat not in filled], staying)
        self._decide(core.SeatsFilled(tuple(fills), moves))
        for fill in fills:
            self._order(fill.attempt_id, self._write_join(fill))

    def _move(self, filled: list[SeatId], lost: list[SeatId], staying: list[SeatId]) -> dict[Part, SeatId]:
        moves = {part: seat for seat in filled for part in self._run.list_parts(seat)}
        counts = {seat: len(self._run.list_parts(seat)) for seat in (*staying, *filled)}
        for seat in lost:
            # Together to one: what they send to each other then crosses no stream.
            target = min(counts, key=lambda each: (counts[each], each))
            parts = self._run.list_parts(seat)
            counts[target] += len(parts)
            moves |= dict.fromkeys(parts, target)
        return moves

    def _wait_for_pnodes(self, count: int) -> None:
        now = clock.seconds()
        self._nobody_since = self._nobody_since or now
        if now - self._nobody_since > NOBODY_SECONDS:
            raise RuntimeError(f"no {count} PNodes for {NOBODY_SECONDS:.0f} s: start another with grid.add()")
        self._decide(core.NobodyFits((f"{count} PNodes are needed; start another with grid.add()",)))

    def _make_fill(self, seat: SeatId, number: int) -> SeatFill:
        attempt_id = AttemptId(entropy.new_id())
        self._tenures[attempt_id] = _Tenure(number, seat)
        return SeatFill(seat, attempt_id, NodeId(UUID(int=number + 1)), NUMERIC_CLASS)

    def _fills(self, attempt_id: AttemptId, seat: SeatId) -> bool:
        found = self._run.seats.get(seat)
        return found is not None and found.attempt_id == attempt_id

    def _end_tenure(self, attempt_id: AttemptId) -> None:
        self._order(attempt_id, {"kind": "leave"})
        self._tenures.pop(attempt_id, None)

    def _order(self, attempt_id: AttemptId, order: Mapping[str, Any]) -> None:
        tenure = self._tenures.get(attempt_id)
        if tenure is not None:
            self._pnodes.say(tenure.number, order)

    def _write_join(self, fill: SeatFill) -> dict[str, Any]:
        return {
            "kind": "join",
            "run_id": self.id,
            "attempt": str(fill.attempt_id),
            "seat": fill.seat,
            "folder": str(self._folder),
            "hub_keys": [{"kid": self._kid, "public_key": to_key_text(self._key.public_key())}],
        }

    def _write_prepare(self, order: core.SendPrepare) -> dict[str, Any]:
        run = self._run
        mine = {vnode_id for vnode_id, _ in run.list_parts(order.seat)}
        step = run.from_step
        return {
            "kind": "prepare",
            "epoch": order.epoch,
            "token": self._sign(order.seat, order.epoch),
            "placement": [
                {
                    "vnode_id": each.vnode_id,
                    "seat": each.seat,
                    "replica": each.replica,
                    "incarnation": each.incarnation,
                }
                for each in run.locations
            ],
            "routes": {each.seat: each.address for each in list_locations(run)},
            "checkpoint_step": step,
            "checkpoints": {each: self._files[step, each] for each in mine} if step else {},
        }

    def _sign(self, seat: SeatId, epoch: int) -> str:
        now = int(clock.unix_seconds())
        claims = {"aud": self.id, "sub": seat, "epoch": epoch, "iat": now, "exp": now + TOKEN_SECONDS}
        return jwt.encode(claims, self._key, algorithm=ALGORITHM, headers={"typ": SEAT_TOKEN_TYPE, "kid": self._kid})

    # What is kept and told

    def _keep_loss(self, step: int, loss: float) -> None:
        before = self._losses.get(step)
        if before is not None and before != loss:
            self.contradictions.append((step, before, loss))
        self._losses[step] = loss
        now = clock.seconds()
        # Nothing can be said about the first.
        seconds, self._stepped_at = now - (self._stepped_at or now), now
        self._tell("step", step, loss=loss, samples_per_second=self._spec.batch_size / seconds if seconds else 0.0)

    def _drop_files(self, complete_step: int) -> None:
        for key in [key for key in self._files if key[0] < complete_step]:
            (self._folder / self._files.pop(key)).unlink(missing_ok=True)

    def _tell(
        self, kind: str, step: int, *, loss: float | None = None, samples_per_second: float = 0.0, message: str = ""
    ) -> None:
        with self._told:
            event = TrainEvent(
                len(self._events) + 1,
                kind,
                self._run.epoch,
                step,
                loss,
                samples_per_second,
                message,
                clock.unix_seconds(),
            )
            self._events.append(event)
            self._told.notify_all()
        if self._on_event is not None:
            self._on_event(event)
