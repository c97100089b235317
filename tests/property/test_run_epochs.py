"""Any history of deaths, cuts, sleeping owners and takeovers: no two owners give orders in one epoch, hosts of one
epoch share one placement, incarnations only grow, a checkpoint is whole, and in calm weather the run ends.

The world below plays database, owners and hosts; core/networks/epochs.py decides. Planted bugs show that it notices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar
from uuid import UUID

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from computepool.core.ids import AttemptId, NodeId
from computepool.core.networks.epochs import adopt, decide
from computepool.core.networks.placement import Location, SeatId
from computepool.core.networks.rejoin import list_idle, move_parts
from computepool.core.networks.run import (
    OVER,
    BeatHeard,
    CheckpointReported,
    Decision,
    Event,
    HostJoined,
    HostPrepared,
    LeaveAnnounced,
    PeerReported,
    PlaceSeats,
    Run,
    RunState,
    Seat,
    SeatFill,
    SeatsFilled,
    SendPrepare,
    SendProbe,
    SendRun,
    SessionClosed,
    StepReported,
    StopAsked,
    Ticked,
    VacateSeat,
)
from tests.support.run_story import make_run

LEASE_SECONDS = 4.0
STEPS = 12
EVERY = 3
SEATS = 3
SEAT_NUMBERS = st.integers(0, SEATS - 1)
OWNER_NUMBERS = st.integers(0, 2)


@dataclass
class Row:
    """The run's row, and what else is stored."""

    run: Run
    owner: int | None = None
    until: float = 0.0


@dataclass
class Host:
    seat: SeatId
    attempt_id: AttemptId
    alive: bool = True
    # The owner that its session is with.
    session: int | None = None
    epoch: int = 0
    prepared: int = 0
    running: bool = False
    step: int = 0
    until: int = 0


@dataclass
class Owner:
    number: int
    # As it knows it; None: it owns nothing, as far as it knows.
    run: Run | None = None
    awake: bool = True


@dataclass
class World:
    row: Row
    now: float = 1_000.0
    hosts: dict[AttemptId, Host] = field(default_factory=dict)
    # Who gave orders in an epoch, and which placement was told in it.
    orders: dict[int, set[int]] = field(default_factory=dict)
    placements: dict[int, set[tuple[Location, ...]]] = field(default_factory=dict)
    # Who has truly stored a step.
    stored: dict[int, set[str]] = field(default_factory=dict)
    attempt_count: int = 0


class Histories(RuleBasedStateMachine):
    """`guards` is what keeps owners apart; controls switch parts of it off."""

    guards: ClassVar[bool] = True
    raises_epoch: ClassVar[bool] = True

    @initialize()
    def begin(self) -> None:
        self.world = World(Row(make_run(seats=SEATS, steps=STEPS, epoch=0)))
        self.owners = [Owner(number) for number in range(3)]
        self.incarnations: dict[tuple[str, int], int] = {}
        self.epoch_seen = 0
        self.checkpoint_seen = 0
        self.is_scarce = False

    # Owners

    @rule(is_scarce=st.booleans())
    def run_short_of_pnodes(self, is_scarce: bool) -> None:
        """What is lost meanwhile goes to whoever stays, and comes back when there are PNodes again."""
        self.is_scarce = is_scarce

    @rule(number=OWNER_NUMBERS)
    def look(self, number: int) -> None:
        """What an owner does once a second: renew or notice, claim, tick."""
        owner, row, world = self.owners[number], self.world.row, self.world
        if not owner.awake or row.run.state in OVER:
            return
        if owner.run is not None and row.owner == number:
            row.until = world.now + LEASE_SECONDS
        elif owner.run is not None:
            self.drop(owner)
        elif row.owner is None or row.until < world.now:
            self.claim(owner)
        if owner.run is not None:
            self.hear(owner, Ticked())

    def claim(self, owner: Owner) -> None:
        row = self.world.row
        row.owner, row.until = owner.number, self.world.now + LEASE_SECONDS
        if self.raises_epoch:
            row.run = replace(row.run, epoch=row.run.epoch + 1)
        owner.run = _as_stored(row.run)
        self.apply(owner, owner.run, adopt(owner.run, now=self.world.now))

    @rule(number=OWNER_NUMBERS)
    def fall_asleep(self, number: int) -> None:
        """Paused, cut off, swapped out: it neither renews nor hears, and does not know it."""
        self.owners[number].awake = False

    @rule(number=OWNER_NUMBERS)
    def wake_up(self, number: int) -> None:
        """And goes on as if nothing had happened."""
        owner = self.owners[number]
        owner.awake = True
        if owner.run is not None:
            self.hear(owner, Ticked())

    @rule(number=OWNER_NUMBERS)
    def end_a_process(self, number: int) -> None:
        self.drop(self.owners[number])

    def drop(self, owner: Owner) -> None:
        owner.run = None
        for host in self.world.hosts.values():
            if host.session == owner.number:
                host.session = None

    def hear(self, owner: Owner, event: Event) -> None:
        if owner.run is not None and owner.awake:
            self.apply(owner, owner.run, decide(owner.run, event, now=self.world.now))

    def apply(self, owner: Owner, before: Run, decision: Decision) -> None:
        """Guarded write, then orders: the owner service in small."""
        row, run = self.world.row, decision.run
        if self.guards and not (row.owner == owner.number and row.run.epoch == before.epoch):
            self.drop(owner)
            return
        owner.run = run
        row.run = run
        for effect in decision.effects:
            if isinstance(effect, VacateSeat):
                self.kill(effect.attempt_id)
            if isinstance(effect, SendPrepare | SendRun) and effect.epoch != run.epoch:
                continue
            if isinstance(effect, SendPrepare):
                self.obey_prepare(owner, effect, run)
            elif isinstance(effect, SendRun):
                self.obey_run(owner, effect)
            elif isinstance(effect, SendProbe):
                self.answer_probe(owner, effect)
        if any(isinstance(effect, PlaceSeats) for effect in decision.effects) and owner.run is run:
            self.place(owner)

    def place(self, owner: Owner) -> None:
        run = owner.run
        assert run is not None
        vacant = [seat for seat in (run.taken_seats if run.locations else run.seats.values()) if seat.is_vacant]
        staying = [id for id, seat in sorted(run.seats.items()) if not seat.is_vacant]
        if self.is_scarce and vacant and staying:
            lost = [part for seat in vacant for part in run.list_parts(seat.id)]
            moves = dict.fromkeys(lost, staying[0])
            self.apply(owner, run, decide(run, SeatsFilled((), moves), now=self.world.now))
            return
        if not vacant and not self.is_scarce:
            vacant = [seat for seat in list_idle(run) if seat.is_vacant][:1]
        fills = []
        for seat in vacant:
            self.world.attempt_count += 1
            number = self.world.attempt_count
            fills.append(SeatFill(seat.id, AttemptId(UUID(int=number)), NodeId(UUID(int=10_000 + number)), "avx2"))
        if run.locations:
            moves = {part: seat.id for seat in vacant for part in run.list_parts(seat.id)}
        else:
            moves = {(vnode_id, 0): seat.id for vnode_id, seat in zip(run.vnode_ids, vacant, strict=True)}
        for fill in fills:
            self.world.hosts[fill.attempt_id] = Host(fill.seat, fill.attempt_id)
        self.apply(owner, run, decide(run, SeatsFilled(tuple(fills), moves), now=self.world.now))

    @rule(number=OWNER_NUMBERS, rounds=st.integers(1, 6))
    def get_on(self, number: int, rounds: int) -> None:
        """A while in which nothing bad happens: most of life."""
        for _ in range(rounds):
            self.world.now += 0.25
            self.look(number)
            for seat in range(SEATS):
                self.dial(seat)
                self.say_prepared(seat)
            for seat in range(SEATS):
                self.work(seat, 1)

    # Hosts do what they are told, by whoever they hold to be their owner, unless it is of an older epoch

    def obey_prepare(self, owner: Owner, order: SendPrepare, run: Run) -> None:
        self.world.orders.setdefault(order.epoch, set()).add(owner.number)
        self.world.placements.setdefault(order.epoch, set()).add(run.locations)
        host = self.world.hosts.get(order.attempt_id)
        if host is not None and host.alive and host.session == owner.number and order.epoch >= host.epoch:
            host.epoch, host.running, host.step = order.epoch, False, run.from_step
            host.prepared = order.epoch

    def obey_run(self, owner: Owner, order: SendRun) -> None:
        self.world.orders.setdefault(order.epoch, set()).add(owner.number)
        host = self.world.hosts.get(order.attempt_id)
        if host is not None and host.alive and host.session == owner.number and order.epoch == host.prepared:
            host.running, host.until = True, order.until_step

    def answer_probe(self, owner: Owner, order: SendProbe) -> None:
        host = self.world.hosts.get(order.attempt_id)
        if host is not None and host.alive and host.session == owner.number:
            self.hear(owner, BeatHeard(host.seat, host.attempt_id, host.epoch, host.step))

    def kill(self, attempt_id: AttemptId) -> None:
        if attempt_id in self.world.hosts:
            self.world.hosts[attempt_id].alive = False

    def host_at(self, number: int) -> Host | None:
        seat = self.world.row.run.seats[SeatId(f"seat-{number}")]
        return self.world.hosts.get(seat.attempt_id) if seat.attempt_id else None

    @rule(number=SEAT_NUMBERS)
    def die(self, number: int) -> None:
        host = self.host_at(number)
        if host is not None and host.alive:
            host.alive = False
            self.close(host)

    @rule(number=SEAT_NUMBERS)
    def cut(self, number: int) -> None:
        host = self.host_at(number)
        if host is not None:
            self.close(host)

    def close(self, host: Host) -> None:
        if host.session is not None:
            owner, host.session = self.owners[host.session], None
            self.hear(owner, SessionClosed(host.seat, host.attempt_id))

    @rule(number=SEAT_NUMBERS)
    def dial(self, number: int) -> None:
        """A host finds the owner that the row names, and says hello."""
        host, row = self.host_at(number), self.world.row
        if host is None or not host.alive or host.session is not None or row.owner is None:
            return
        owner = self.owners[row.owner]
        if owner.run is not None and owner.awake:
            host.session = owner.number
            self.hear(owner, HostJoined(host.seat, host.attempt_id))

    @rule(number=SEAT_NUMBERS)
    def say_prepared(self, number: int) -> None:
        host = self.host_at(number)
        if host is not None and host.alive and host.session is not None:
            self.hear(self.owners[host.session], HostPrepared(host.seat, host.attempt_id, host.prepared))

    @rule(number=SEAT_NUMBERS, count=st.integers(1, EVERY))
    def work(self, number: int, count: int) -> None:
        host = self.host_at(number)
        if host is None:
            return
        for _ in range(count):
            if not (host.alive and host.running and host.session is not None and host.step < host.until):
                return
            if any(abs(host.step + 1 - other.step) > 2 for other in self.peers(host)):
                return
            host.step += 1
            self.report(host, self.owners[host.session])

    def peers(self, host: Host) -> list[Host]:
        return [
            each for each in self.world.hosts.values() if each.alive and each.epoch == host.epoch and each.running
        ]

    def report(self, host: Host, owner: Owner) -> None:
        self.hear(owner, BeatHeard(host.seat, host.attempt_id, host.epoch, host.step))
        step, epoch = host.step, host.epoch
        vnode_ids = [each.vnode_id for each in self.world.row.run.locations if each.seat == host.seat]
        if self.world.row.run.loss in vnode_ids and host.session is not None:
            self.hear(owner, StepReported(host.seat, host.attempt_id, epoch, step))
        for vnode_id in vnode_ids if step % EVERY == 0 or step == host.until else ():
            if host.session is not None:
                self.world.stored.setdefault(step, set()).add(vnode_id)
                self.hear(owner, CheckpointReported(host.seat, host.attempt_id, epoch, step, vnode_id))

    @rule(by=SEAT_NUMBERS, number=SEAT_NUMBERS)
    def accuse(self, by: int, number: int) -> None:
        accuser, host = self.host_at(by), self.host_at(number)
        if accuser is not None and host is not None and accuser.alive and accuser.session is not None:
            self.hear(self.owners[accuser.session], PeerReported(accuser.seat, host.seat, accuser.epoch))

    @rule(number=SEAT_NUMBERS)
    def leave(self, number: int) -> None:
        host = self.host_at(number)
        if host is not None and host.alive and host.session is not None:
            self.hear(self.owners[host.session], LeaveAnnounced(host.seat, host.attempt_id))

    @rule(seconds=st.sampled_from([0.25, 1.0, 2.5, 5.0]))
    def wait(self, seconds: float) -> None:
        self.world.now += seconds

    # What must hold

    @invariant()
    def no_two_owners_give_orders_in_one_epoch(self) -> None:
        for epoch, owners in self.world.orders.items():
            assert len(owners) == 1, f"owners {owners} gave orders in epoch {epoch}"

    @invariant()
    def hosts_of_one_epoch_are_told_one_placement(self) -> None:
        for epoch, told in self.world.placements.items():
            assert len(told) == 1, f"epoch {epoch} has {len(told)} placements"

    @invariant()
    def epochs_and_incarnations_only_grow(self) -> None:
        run = self.world.row.run
        assert run.epoch >= self.epoch_seen, f"the epoch fell from {self.epoch_seen} to {run.epoch}"
        self.epoch_seen = run.epoch
        for each in run.locations:
            key = (each.vnode_id, each.replica)
            assert each.incarnation >= self.incarnations.get(key, 0)
            self.incarnations[key] = each.incarnation

    @invariant()
    def a_checkpoint_is_whole_and_is_never_lost(self) -> None:
        run = self.world.row.run
        assert run.checkpoint_step >= self.checkpoint_seen
        self.checkpoint_seen = run.checkpoint_step
        if run.checkpoint_step:
            stored = self.world.stored.get(run.checkpoint_step, set())
            assert stored >= set(run.vnode_ids), f"only {sorted(stored)} have stored step {run.checkpoint_step}"

    @invariant()
    def every_vnode_has_one_seat_of_the_run(self) -> None:
        run = self.world.row.run
        if run.locations:
            assert sorted(each.vnode_id for each in run.locations) == sorted(run.vnode_ids)
            assert {each.seat for each in run.locations} <= set(run.seats)

    def teardown(self) -> None:
        """In calm weather it ends: one owner, hosts that live, spares that come."""
        if not hasattr(self, "world") or not self.guards or not self.raises_epoch:
            return
        for owner in self.owners[1:]:
            self.drop(owner)
            owner.awake = False
        self.owners[0].awake = True
        self.is_scarce = False
        for _ in range(2_000):
            if self.world.row.run.state in OVER:
                break
            self.get_on(0, 1)
        run = self.world.row.run
        assert run.state in OVER, f"still {run.state.value} at step {run.step}: {run.message}"
        if run.state is RunState.SUCCEEDED:
            assert run.checkpoint_step == STEPS


def _as_stored(run: Run) -> Run:
    """What an owner finds: nothing of the memory of the one before."""
    seats = {id: Seat(id, seat.attempt_id, seat.node_id, seat.numeric_class) for id, seat in run.seats.items()}
    return Run(
        id=run.id,
        vnode_ids=run.vnode_ids,
        loss=run.loss,
        steps=run.steps,
        seats=seats,
        state=run.state,
        epoch=run.epoch,
        locations=run.locations,
        step=run.step,
        checkpoint_step=run.checkpoint_step,
        reported=run.reported,
        reports_from_epoch=run.reports_from_epoch,
        numeric_class=run.numeric_class,
        recoveries=run.recoveries,
    )


SETTINGS = settings(
    max_examples=150,
    stateful_step_count=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
Histories.TestCase.settings = SETTINGS
TestHistories = Histories.TestCase


class WithoutGuard(Histories):
    """An owner that does not look whether the run is still its own."""

    guards = False


class WithoutRaise(Histories):
    """A takeover in the epoch that was there."""

    raises_epoch = False


class FirstReportCompletes(Histories):
    """A step counts as soon as anybody has stored it."""

    def apply(self, owner: Owner, before: Run, decision: Decision) -> None:
        run = decision.run
        if run.reported and max(run.reported) <= run.step:
            decision = replace(decision, run=replace(run, checkpoint_step=max(run.reported)))
        super().apply(owner, before, decision)


class MovesWithoutAnEpoch(Histories):
    """VNodes go back to a machine that has returned, in the epoch that was there."""

    def apply(self, owner: Owner, before: Run, decision: Decision) -> None:
        run = decision.run
        away = {(each.vnode_id, each.replica) for each in run.locations if run.home[each.vnode_id, 0] != each.seat}
        back = {part: run.home[part] for part in away if run.seats[run.home[part]].joined}
        if run.state is RunState.RUNNING and back:
            self.world.placements.setdefault(run.epoch, set()).add(move_parts(run.locations, back))
        super().apply(owner, before, decision)


def come_back(machine: Histories) -> None:
    """A machine dies when there is no other, and one comes later: it gets back what the seat had."""
    while machine.world.row.run.state is not RunState.RUNNING:
        tell(machine, "get_on", 0, 1)
    tell(machine, "run_short_of_pnodes", True)
    tell(machine, "die", 1)
    let_time_pass(machine, 20)
    assert {each.seat for each in machine.world.row.run.locations} == {"seat-0", "seat-2"}
    tell(machine, "run_short_of_pnodes", False)
    let_time_pass(machine, 24)
    for _ in range(EVERY + 1):
        tell(machine, "get_on", 0, 1)
    assert len({each.seat for each in machine.world.row.run.locations}) == SEATS


def let_time_pass(machine: Histories, quarters: int) -> None:
    """Hosts dial, prepare and are heard, but take no step."""
    for _ in range(quarters):
        tell(machine, "wait", 0.25)
        tell(machine, "look", 0)
        for seat in range(SEATS):
            tell(machine, "dial", seat)
            tell(machine, "say_prepared", seat)


def overtake(machine: Histories) -> None:
    """An owner sleeps while the run is at work, another takes over, the first one wakes up."""
    tell(machine, "get_on", 0, 8)
    assert machine.world.row.run.state is RunState.RUNNING
    tell(machine, "fall_asleep", 0)
    tell(machine, "wait", LEASE_SECONDS + 1.0)
    tell(machine, "get_on", 1, 8)
    assert machine.world.row.owner == 1
    tell(machine, "wake_up", 0)
    tell(machine, "get_on", 1, 8)


def report_unevenly(machine: Histories) -> None:
    """The host of the loss is ahead, and has stored a step that the others have not."""
    while machine.world.row.run.state is not RunState.RUNNING:
        tell(machine, "get_on", 0, 1)
    for seat in range(SEATS):
        tell(machine, "work", seat, 1)
    tell(machine, "work", SEATS - 1, EVERY)


def tell(machine: Histories, name: str, *values: float) -> None:
    """One rule by hand, and what must hold after it."""
    getattr(machine, name)(*values)
    for check in (
        Histories.no_two_owners_give_orders_in_one_epoch,
        Histories.hosts_of_one_epoch_are_told_one_placement,
        Histories.epochs_and_incarnations_only_grow,
        Histories.a_checkpoint_is_whole_and_is_never_lost,
        Histories.every_vnode_has_one_seat_of_the_run,
    ):
        check(machine)


@pytest.mark.parametrize(
    ("bug", "story", "noticed"),
    [
        (WithoutGuard, overtake, "the epoch fell|gave orders in epoch"),
        (WithoutRaise, overtake, "gave orders in epoch"),
        (FirstReportCompletes, report_unevenly, "have stored step"),
        (MovesWithoutAnEpoch, come_back, "placements"),
    ],
)
def test_a_planted_bug_is_noticed_in_a_story_that_is_told_well_without_it(
    bug: type[Histories], story: Callable[[Histories], None], noticed: str
) -> None:
    for kind in (Histories, bug):
        machine = kind()
        machine.begin()
        if kind is Histories:
            story(machine)
            continue
        with pytest.raises(AssertionError, match=noticed):
            story(machine)


def test_a_stop_is_heard_in_every_state() -> None:
    for state in set(RunState) - OVER:
        run = replace(make_run(), state=state)
        assert decide(run, StopAsked(), now=1.0).run.state in {*OVER, RunState.STOPPING}
