"""Random histories of one slice on several nodes, driven through core's decisions alone: nothing bad ever happens.

What the database does is done here by hand: a lease is granted only to a queued slice, with the next number.
Each safety property has its negative control below: a rule broken on purpose, which the same checks must catch.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from computepool.core.ids import AttemptId, NodeId
from computepool.core.jobs import lease
from computepool.core.jobs.cause import REPORTABLE, SPENDS_RETRY, Cause
from computepool.core.jobs.lease import Attempt, Decision, Refusal, Report, Slice
from computepool.core.jobs.retry import EXIT_CODE_CHECKPOINTED, KILLS_MAX
from computepool.core.jobs.state import (
    ATTEMPT_LIVE,
    ATTEMPT_TERMINAL,
    SLICE_DONE,
    SLICE_TERMINAL,
    AttemptState,
    SliceEvent,
    SliceState,
    move_slice,
)
from tests.support.builders import make_attempt, make_report, make_slice, node_number

# The work is done.
DELIVERED = (SliceState.SUCCEEDED, SliceState.VERIFYING)

BOUNDED = settings(max_examples=400, deadline=None, derandomize=True, database=None, report_multiple_bugs=False)
# A control needs no small example, only to be caught, and within as many histories as the rules are tried with.
CONTROLLED = settings(BOUNDED, phases=[Phase.generate])

NODES = [node_number(number) for number in (1, 2, 3)]


def grant(slice_: Slice, node_index: int) -> tuple[Slice, Attempt]:
    """What the lease service writes: the state by the table, the number by counting."""
    leased = replace(
        slice_,
        state=move_slice(slice_.state, SliceEvent.LEASE_GRANTED),
        attempt_count=slice_.attempt_count + 1,
    )
    attempt = make_attempt(
        id=AttemptId(UUID(int=leased.attempt_count)),
        number=leased.attempt_count,
        node_id=NODES[node_index],
        state=AttemptState.LEASED,
    )
    return leased, attempt


@dataclass(frozen=True)
class Rules:
    grant: Callable[..., tuple[Slice, Attempt]] = grant
    report: Callable[..., Decision | Refusal] = lease.decide_report
    loss: Callable[..., Decision | Refusal] = lease.decide_loss
    stop: Callable[..., Decision | Refusal] = lease.decide_stop
    acknowledgement: Callable[..., Decision | Refusal] = lease.decide_acknowledgement


@dataclass(frozen=True)
class Step:
    """One thing that may happen next; what it needs and does not find makes it nothing at all."""

    kind: str
    # Which of the attempts or reports so far, counted from the newest: most of what can go wrong goes wrong
    # between an attempt and its successor.
    back: int
    node_index: int
    cause: Cause
    exit_code: int


# What ends a slice happens seldom; otherwise few histories would grow long.
KINDS = ["grant", "fail"] * 14 + ["acknowledge", "lose"] * 8 + ["deliver_late", "repeat"] * 4
KINDS += ["succeed", "cancel", "expire"]
# A machine that goes down while it runs the slice takes three steps, which seldom fall into a row by themselves.
KINDS += ["crash"] * 10
CAUSES = [*sorted(REPORTABLE), *sorted(SPENDS_RETRY)]
BACK = [0, 0, 0, 1, 1, 2, 3]
EXIT_CODES = [1, 1, 1, EXIT_CODE_CHECKPOINTED]


def make_steps(seed: int, length: int) -> list[Step]:
    """Hypothesis draws the seed and shortens the history; drawn step by step, its examples resemble each other."""
    dice = random.Random(seed)
    return [
        Step(dice.choice(KINDS), dice.choice(BACK), dice.randrange(3), dice.choice(CAUSES), dice.choice(EXIT_CODES))
        for _ in range(length)
    ]


HISTORIES = {
    # With many retries a slice lives long enough to take machines down.
    "retries": st.sampled_from([0, 1, 2, 20]),
    "steps": st.builds(make_steps, seed=st.integers(0, 2**32), length=st.integers(20, 60)),
}


class History:
    """One slice and all its attempts, as the database would hold them."""

    def __init__(self, rules: Rules, *, retries: int) -> None:
        self.rules = rules
        self.slice = make_slice(state=SliceState.QUEUED, attempt_count=0, retries=retries)
        self.attempts: list[Attempt] = []
        self.sent: list[tuple[int, Report]] = []
        self.success_count = 0
        self.counted_failures = 0
        # Nodes that went down over it, one entry for each time.
        self.kills: list[NodeId] = []
        self.visited: set[str] = set()

    def take(self, step: Step) -> None:
        if step.kind == "grant" and self.slice.state is SliceState.QUEUED:
            self.grant(step.node_index)
        elif step.kind == "crash" and self.slice.state is SliceState.QUEUED:
            self.grant(step.node_index)
            for kind in ("acknowledge", "lose"):
                self.take_with_attempt(replace(step, kind=kind), len(self.attempts) - 1)
        elif step.kind in ("cancel", "expire"):
            event = SliceEvent.CANCELLED if step.kind == "cancel" else SliceEvent.EXPIRED
            self.apply(self.rules.stop(self.slice, self.list_live(), event, Cause(event.value)))
        elif step.kind == "repeat" and self.sent:
            self.deliver(*self.sent[-1 - step.back % len(self.sent)])
        elif self.attempts:
            self.take_with_attempt(step, len(self.attempts) - 1 - step.back % len(self.attempts))
        self.check()

    def take_with_attempt(self, step: Step, index: int) -> None:
        attempt = self.attempts[index]
        if step.kind == "acknowledge":
            self.apply(self.rules.acknowledgement(self.slice, attempt))
        elif step.kind == "lose":
            outcome = self.rules.loss(self.slice, attempt, Cause.NODE_VANISHED)
            assert isinstance(outcome, Decision) == (attempt.state in ATTEMPT_LIVE), "only live attempts are lost"
            if attempt.state is AttemptState.RUNNING:
                self.note_kill(attempt)
            self.apply(outcome)
        elif step.kind == "fail":
            self.deliver(index, make_report(exit_code=step.exit_code, cause=step.cause, sha256=repr(step).encode()))
        elif step.kind == "succeed" or (step.kind == "deliver_late" and attempt.state is AttemptState.LOST):
            self.deliver(index, make_report(sha256=f"result of {step.back}".encode()))

    def grant(self, node_index: int) -> None:
        leased, attempt = self.rules.grant(self.slice, node_index)
        assert all(attempt.number > earlier.number for earlier in self.attempts), "attempt numbers only grow"
        self.slice = leased
        self.attempts.append(attempt)

    def deliver(self, index: int, report: Report) -> None:
        attempt = self.attempts[index]
        others = [other for other in self.list_live() if other.id != attempt.id]
        outcome = self.rules.report(self.slice, attempt, others, report)
        if attempt.state in ATTEMPT_TERMINAL or self.slice.state in SLICE_DONE:
            changes_nothing = isinstance(outcome, Refusal) or (outcome.slice == self.slice and not outcome.attempts)
            assert changes_nothing, "a stale or repeated report changes nothing"
        if isinstance(outcome, Decision) and outcome.repeated:
            assert outcome.accepted == (attempt.state is AttemptState.SUCCEEDED), "the first answer is given again"
        elif isinstance(outcome, Decision):
            self.sent.append((index, report))
            checkpointed = report.exit_code == EXIT_CODE_CHECKPOINTED and report.cause is Cause.EXIT_CODE
            if report.cause in SPENDS_RETRY and attempt.state in ATTEMPT_LIVE and not checkpointed:
                self.counted_failures += 1
            if report.cause is Cause.GPU_LOST and attempt.state in ATTEMPT_LIVE:
                self.note_kill(attempt)
        self.apply(outcome)

    def note_kill(self, attempt: Attempt) -> None:
        if attempt.node_id != self.slice.avoid_node_id:
            self.kills.append(attempt.node_id)

    def apply(self, outcome: Decision | Refusal) -> None:
        if isinstance(outcome, Refusal):
            return
        if self.slice.state in SLICE_DONE:
            assert outcome.slice == self.slice, "a finished slice never changes, nor one whose result is checked"
        if outcome.slice.state in DELIVERED and self.slice.state not in DELIVERED:
            self.success_count += 1
        changed = {attempt.id: attempt for attempt in outcome.attempts}
        for attempt in self.attempts:
            if attempt.state in ATTEMPT_TERMINAL:
                assert changed.get(attempt.id, attempt) == attempt, "an ended attempt never changes"
        self.slice = outcome.slice
        self.attempts = [changed.get(attempt.id, attempt) for attempt in self.attempts]

    def list_live(self) -> list[Attempt]:
        return [attempt for attempt in self.attempts if attempt.state in ATTEMPT_LIVE]

    def check(self) -> None:
        """What holds after every step, whatever came before."""
        self.visited.add(f"slice {self.slice.state.value}")
        self.visited |= {f"attempt {attempt.state.value} {attempt.cause or ''}" for attempt in self.attempts}
        live = [attempt.state.value for attempt in self.list_live()]
        assert len(live) <= 1, "at most one attempt is live"
        expected = [self.slice.state.value] if self.slice.state.value in ("leased", "running") else []
        assert live == expected, "the slice stands as its live attempt does"
        succeeded = [attempt for attempt in self.attempts if attempt.state is AttemptState.SUCCEEDED]
        once = int(self.slice.state in DELIVERED)
        assert len(succeeded) == self.success_count == once, "it succeeds once and by one attempt"
        self.check_failures()
        self.check_causes()

    def check_failures(self) -> None:
        assert self.slice.failure_count == self.counted_failures, "every counted failure is counted once"
        assert self.slice.failure_count <= self.slice.retries + 1, "failures never pass the budget"
        if self.slice.failure_count > self.slice.retries:
            assert self.slice.state is SliceState.FAILED, "a spent budget fails the slice"
        assert self.slice.killed_count == len(self.kills), "every machine that goes down is counted once"
        assert self.slice.killed_count <= KILLS_MAX, "no further machine goes down"
        poisonous = self.slice.cause is Cause.POISONOUS
        assert poisonous == (self.slice.killed_count == KILLS_MAX), "three machines down make a slice poisonous"

    def check_causes(self) -> None:
        """The same rules stand in the database as slices_cause_check and attempts_cause_check."""
        ended_badly = self.slice.state in (SliceState.FAILED, SliceState.CANCELLED)
        assert (self.slice.cause is not None) == ended_badly, "a slice has a cause when it ended badly"
        for attempt in self.attempts:
            ended_badly = attempt.state in (AttemptState.FAILED, AttemptState.LOST, AttemptState.CANCELLED)
            assert (attempt.cause is not None) == ended_badly, "an attempt has a cause when it ended badly"


def live_through(rules: Rules, *, retries: int, steps: list[Step]) -> History:
    history = History(rules, retries=retries)
    for step in steps:
        history.take(step)
    return history


def test_no_history_of_a_slice_breaks_a_safety_rule_and_every_end_is_reached():
    seen: Counter[str] = Counter()

    @BOUNDED
    @given(**HISTORIES)
    def collect(retries: int, steps: list[Step]) -> None:
        history = live_through(Rules(), retries=retries, steps=steps)
        seen.update(history.visited)
        if history.slice.failure_count > history.slice.retries > 0:
            seen["budget spent after retries"] += 1
        if history.slice.cause is Cause.POISONOUS:
            seen["poisonous"] += 1

    collect()
    # Histories that went nowhere would prove nothing.
    wanted = {f"slice {state.value}" for state in SliceState if state is not SliceState.VERIFYING}
    wanted |= {"attempt leased ", "attempt running ", "attempt succeeded ", f"attempt lost {Cause.NODE_VANISHED}"}
    wanted |= {f"attempt failed {cause}" for cause in REPORTABLE}
    wanted |= {f"attempt cancelled {cause}" for cause in (Cause.CANCELLED, Cause.EXPIRED, Cause.SUPERSEDED)}
    wanted |= {"budget spent after retries", "poisonous"}
    assert {what: seen[what] for what in wanted if seen[what] < 3} == {}


def test_no_history_breaks_a_safety_rule_where_results_are_kept_back():
    seen: Counter[str] = Counter()

    @BOUNDED
    @given(**HISTORIES)
    def collect(retries: int, steps: list[Step]) -> None:
        rules = Rules(report=partial(lease.decide_report, withheld=True))
        history = live_through(rules, retries=retries, steps=steps)
        seen.update(history.visited)
        if history.slice.state is SliceState.VERIFYING:
            assert move_slice(history.slice.state, SliceEvent.RESULT_ACCEPTED) is SliceState.SUCCEEDED

    collect()
    assert seen["slice verifying"] >= 3
    assert seen["slice succeeded"] == 0, "nothing is delivered before somebody says so"


# Negative controls: each rule is broken once, and the checks above must notice.


def report_that_ignores_the_slices_end(
    slice_: Slice, attempt: Attempt, siblings: list[Attempt], report: Report
) -> Decision | Refusal:
    if slice_.state in SLICE_TERMINAL:
        slice_ = replace(slice_, state=SliceState.RUNNING)
    return lease.decide_report(slice_, attempt, siblings, report)


def report_that_ignores_the_attempts_end(
    slice_: Slice, attempt: Attempt, siblings: list[Attempt], report: Report
) -> Decision | Refusal:
    if attempt.state in ATTEMPT_TERMINAL and slice_.state not in SLICE_TERMINAL:
        attempt = replace(attempt, state=AttemptState.LOST)
    return lease.decide_report(slice_, attempt, siblings, report)


def report_that_lets_the_successor_run_on(
    slice_: Slice, attempt: Attempt, siblings: list[Attempt], report: Report
) -> Decision | Refusal:
    return lease.decide_report(slice_, attempt, [], report)


def report_that_counts_late_failures(
    slice_: Slice, attempt: Attempt, siblings: list[Attempt], report: Report
) -> Decision | Refusal:
    outcome = lease.decide_report(slice_, attempt, siblings, report)
    if isinstance(outcome, Decision) and attempt.state is AttemptState.LOST and report.cause in SPENDS_RETRY:
        return replace(outcome, slice=replace(slice_, failure_count=slice_.failure_count + 1))
    return outcome


def report_that_retries_for_ever(
    slice_: Slice, attempt: Attempt, siblings: list[Attempt], report: Report
) -> Decision | Refusal:
    outcome = lease.decide_report(replace(slice_, retries=10_000), attempt, siblings, report)
    if isinstance(outcome, Decision):
        return replace(outcome, slice=replace(outcome.slice, retries=slice_.retries))
    return outcome


def loss_that_leaves_the_attempt_live(slice_: Slice, attempt: Attempt, cause: Cause) -> Decision | Refusal:
    outcome = lease.decide_loss(slice_, attempt, cause)
    return replace(outcome, attempts=()) if isinstance(outcome, Decision) else outcome


def loss_that_kills_for_ever(slice_: Slice, attempt: Attempt, cause: Cause) -> Decision | Refusal:
    outcome = lease.decide_loss(replace(slice_, killed_count=0), attempt, cause)
    if isinstance(outcome, Decision):
        killed_count = slice_.killed_count + outcome.slice.killed_count
        return replace(outcome, slice=replace(outcome.slice, killed_count=killed_count))
    return outcome


def loss_that_counts_what_was_never_received(slice_: Slice, attempt: Attempt, cause: Cause) -> Decision | Refusal:
    outcome = lease.decide_loss(slice_, attempt, cause)
    if isinstance(outcome, Decision) and attempt.state is AttemptState.LEASED:
        return replace(outcome, slice=replace(outcome.slice, killed_count=slice_.killed_count + 1))
    return outcome


def stop_that_forgets_what_runs(slice_: Slice, live: list[Attempt], event: SliceEvent, cause: Cause) -> Any:
    return lease.decide_stop(slice_, [], event, cause)


def grant_that_repeats_a_number(slice_: Slice, node_index: int) -> tuple[Slice, Attempt]:
    leased, attempt = grant(slice_, node_index)
    return leased, replace(attempt, number=1)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (Rules(report=report_that_ignores_the_slices_end), "a stale or repeated report changes nothing"),
        (Rules(report=report_that_ignores_the_attempts_end), "a stale or repeated report changes nothing"),
        (Rules(report=report_that_lets_the_successor_run_on), "the slice stands as its live attempt does"),
        (Rules(report=report_that_counts_late_failures), "every counted failure is counted once"),
        (Rules(report=report_that_retries_for_ever), "a spent budget fails the slice"),
        (Rules(loss=loss_that_leaves_the_attempt_live), "the slice stands as its live attempt does"),
        (Rules(loss=loss_that_kills_for_ever), "three machines down make a slice poisonous"),
        (Rules(loss=loss_that_counts_what_was_never_received), "every machine that goes down is counted once"),
        (Rules(stop=stop_that_forgets_what_runs), "the slice stands as its live attempt does"),
        (Rules(grant=grant_that_repeats_a_number), "attempt numbers only grow"),
    ],
    ids=lambda value: (
        next((rule.__name__ for rule in vars(value).values() if "_that_" in rule.__name__), "")
        if isinstance(value, Rules)
        else ""
    ),
)
def test_a_broken_rule_is_noticed(broken, words):
    @CONTROLLED
    @given(**HISTORIES)
    def live(retries: int, steps: list[Step]) -> None:
        live_through(broken, retries=retries, steps=steps)

    with pytest.raises(AssertionError, match=words):
        live()
