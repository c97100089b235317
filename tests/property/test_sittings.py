"""Sittings over any history: an honest slot keeps its proof, a silent or a slower one does not, whatever is drawn."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from computepool.core.trust.challenge import ProofState
from computepool.core.trust.sittings import ANSWER_WITHIN, MISSES_MAX, UNSURE_MAX, Sitting, conclude, take_turn

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MEAN = timedelta(days=3)
DRAWS = st.floats(min_value=0.0, max_value=1.0, exclude_max=True)
VERDICTS = st.sampled_from([ProofState.PROVEN, ProofState.SLOWER, ProofState.UNSURE, ProofState.FORGED])
# What happens next, after how many seconds, and what the hub draws.
STEPS = st.lists(
    st.tuples(st.sampled_from(["sweep", "sweep_away", "tell", "sit"]), st.integers(0, 500_000), VERDICTS, DRAWS),
    max_size=60,
)


@dataclass
class World:
    sitting: Sitting = field(default_factory=lambda: Sitting(NOW))
    state: ProofState = ProofState.PROVEN
    now: datetime = NOW
    lost_count: int = 0

    def sweep(self, *, reachable: bool, draw: float) -> None:
        turn = take_turn(self.sitting, self.state, reachable=reachable, now=self.now, mean=MEAN, draw=draw)
        if turn.loses_proof:
            assert self.state is ProofState.PROVEN
            self.state, self.lost_count = ProofState.UNPROVEN, self.lost_count + 1
        self.sitting = turn.sitting

    def tell(self) -> None:
        if self.sitting.asked_at is not None and self.sitting.told_at is None:
            self.sitting = replace(self.sitting, told_at=self.now)

    def sit(self, verdict: ProofState, draw: float) -> None:
        before = self.state
        self.sitting, stands = conclude(self.sitting, verdict, before=before, now=self.now, mean=MEAN, draw=draw)
        self.state = before if stands else verdict
        assert not stands or (before is ProofState.PROVEN and verdict is ProofState.UNSURE)

    def step(self, what: str, seconds: int, verdict: ProofState, draw: float) -> None:
        self.now += timedelta(seconds=seconds)
        if what == "sit":
            if self.sitting.asked_at is not None:
                self.sit(verdict, draw)
        elif what == "tell":
            self.tell()
        else:
            self.sweep(reachable=what == "sweep", draw=draw)
        self.check()

    def check(self) -> None:
        assert self.sitting.told_at is None or self.sitting.asked_at is not None
        assert self.sitting.unsure_count >= 0
        assert self.state is not ProofState.PROVEN or self.sitting.missed_count < MISSES_MAX
        # What is not asked for lies ahead of the moment at which that was decided.
        assert self.sitting.due_at >= NOW


@given(STEPS)
def test_no_history_breaks_what_must_hold(steps):
    world = World()
    for step in steps:
        world.step(*step)


@given(STEPS)
def test_whoever_answers_rightly_whenever_told_never_loses_anything(steps):
    world = World()
    for what, seconds, _, draw in steps:
        world.step(what, seconds, ProofState.PROVEN, draw)
        if world.sitting.told_at is not None:
            world.sit(ProofState.PROVEN, draw)
        assert world.state is ProofState.PROVEN


@given(st.lists(DRAWS, min_size=MISSES_MAX, max_size=MISSES_MAX))
def test_whoever_never_answers_is_unproven_after_so_many_requests_whatever_is_drawn(draws):
    world = World()
    for draw in draws:
        assert world.state is ProofState.PROVEN
        world.now = max(world.now, world.sitting.due_at)
        world.sweep(reachable=True, draw=draw)
        world.tell()
        world.now += ANSWER_WITHIN
        world.sweep(reachable=True, draw=draw)
    assert (world.state, world.lost_count) == (ProofState.UNPROVEN, 1)


@given(STEPS, DRAWS)
def test_a_card_that_became_slower_loses_its_tier_with_the_next_sitting_whatever_came_before(steps, draw):
    world = World()
    for step in steps:
        world.step(*step)
    world.sit(ProofState.SLOWER, draw)
    assert world.state is ProofState.SLOWER


@given(st.lists(DRAWS, min_size=UNSURE_MAX, max_size=UNSURE_MAX))
def test_unsure_verdicts_take_a_proof_only_together(draws):
    world = World()
    for draw in draws[:-1]:
        world.sit(ProofState.UNSURE, draw)
        assert world.state is ProofState.PROVEN
    world.sit(ProofState.UNSURE, draws[-1])
    assert world.state is ProofState.UNSURE


@given(DRAWS, DRAWS)
def test_a_later_draw_is_a_later_moment(first, second):
    def plan(draw: float) -> datetime:
        state = ProofState.PROVEN
        return conclude(Sitting(NOW), state, before=state, now=NOW, mean=MEAN, draw=draw)[0].due_at

    assert (plan(first) <= plan(second)) == (first <= second) or plan(first) == plan(second)
