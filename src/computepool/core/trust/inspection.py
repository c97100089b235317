"""What is to be done next about a result that is checked: wait, ask others to run it, or rule.

The rules of agreement and blame are in validation.py; here is the order in which they are asked, and the patience
that each step has. Facts in, one step out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum

from computepool.core.trust.comparators.command import Needed
from computepool.core.trust.comparators.kinds import Comparator
from computepool.core.trust.comparators.numerics import may_judge
from computepool.core.trust.validation import (
    AUDITOR_WAIT,
    MoreRuns,
    Ruling,
    Runner,
    Verify,
    judge_audit,
    judge_quorum,
)

# A result that was delivered already can wait for its audit, one that two have got differently for who decides or for
# who compares them, and whoever pays for two results for the second. A withheld result waits AUDITOR_WAIT.
BACKGROUND_WAIT = timedelta(hours=1)
DECIDER_WAIT = timedelta(minutes=10)
QUORUM_WAIT = timedelta(minutes=10)
# Runs that were asked for and came to nothing count, too: nobody is to blame for a slice that others cannot run.
RUNS_MAX = 8


class CheckState(str, Enum):
    OPEN = "open"
    RULED = "ruled"  # what follows from it is not done yet
    CLOSED = "closed"


class CheckOutcome(str, Enum):
    AGREED = "agreed"
    FOUND_WRONG = "found_wrong"
    UNDECIDED = "undecided"  # those who should decide differ: the job is nondeterministic
    NO_AUDITOR = "no_auditor"


class RunState(str, Enum):
    UNDER_WAY = "under_way"
    DELIVERED = "delivered"
    DEAD = "dead"  # its machine vanished, its owner came back, or the program failed there
    APART = "apart"  # other bits, of another kind of machine: they say nothing for or against anybody


@dataclass(frozen=True, slots=True)
class CheckRun:
    """One run of the slice: the result that is checked, or one that was asked for because of it."""

    runner: Runner
    state: RunState
    ended_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    mode: Verify
    withheld: bool
    opened_at: datetime
    # The result itself comes first, the others in the order in which they were asked for.
    runs: tuple[CheckRun, ...]
    # Of those that were delivered, in the same order. Equal numbers: the comparator agrees.
    answers: tuple[int, ...]
    # When somebody has last run the submitter's command on two of them.
    compared_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """A run is under way."""


@dataclass(frozen=True, slots=True)
class Ask:
    count: int
    # They decide between others that have differed.
    decides: bool
    # Nobody was found for as long as is waited: without anybody now, it is over.
    is_last: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """The submitter's command is to compare two of those that were delivered."""

    pair: Needed
    is_last: bool


@dataclass(frozen=True, slots=True)
class Rule:
    outcome: CheckOutcome
    # For each run that was delivered: right, wrong, or None where nothing is counted.
    verdicts: tuple[bool | None, ...]


Step = Wait | Ask | Comparison | Rule


def set_apart(facts: Facts, comparator: Comparator) -> Facts:
    """Leaves out the runs whose differing bits are no evidence."""
    answers = iter(facts.answers)
    runs, kept = [], []
    for run in facts.runs:
        if run.state is RunState.DELIVERED:
            answer = next(answers)
            if answer != facts.answers[0] and not are_comparable(facts, run.runner, comparator):
                run = replace(run, state=RunState.APART)
            else:
                kept.append(answer)
        runs.append(run)
    return replace(facts, runs=tuple(runs), answers=tuple(kept))


def are_comparable(facts: Facts, runner: Runner, comparator: Comparator) -> bool:
    return may_judge(comparator, facts.runs[0].runner.numeric_class, runner.numeric_class)


def needs_comparable(facts: Facts, ask: Ask) -> bool:
    """Whether anybody else's run would be in vain. At first it is not: most jobs have the same bits everywhere."""
    return ask.decides or any(run.state is RunState.APART for run in facts.runs)


def plan_step(facts: Facts, *, now: datetime) -> Step:
    if any(run.state is RunState.UNDER_WAY for run in facts.runs):
        return Wait()
    delivered = [run.runner for run in facts.runs if run.state is RunState.DELIVERED]
    judged = _judge(facts, delivered)
    if isinstance(judged, Ruling):
        return Rule(_to_outcome(judged), judged.verdicts)
    if len(facts.runs) > RUNS_MAX:
        return give_up(facts)
    decides = facts.mode is Verify.AUDIT and len(delivered) > 1
    return Ask(judged.count, decides, is_last=now - _waiting_since(facts) >= _patience(facts, decides=decides))


def plan_comparison(facts: Facts, pair: Needed, *, now: datetime) -> Comparison:
    return Comparison(pair, is_last=now - _waiting_since(facts) >= DECIDER_WAIT)


def give_up(facts: Facts) -> Rule:
    """Nobody can tell: nobody is blamed."""
    return Rule(CheckOutcome.NO_AUDITOR, (None,) * len(facts.answers))


def _judge(facts: Facts, delivered: Sequence[Runner]) -> Ruling | MoreRuns:
    if facts.mode is Verify.QUORUM:
        return judge_quorum(facts.answers, delivered)
    return judge_audit(facts.answers) if len(facts.answers) > 1 else MoreRuns(1)


def _to_outcome(ruling: Ruling) -> CheckOutcome:
    if ruling.is_nondeterministic:
        return CheckOutcome.UNDECIDED
    return CheckOutcome.AGREED if ruling.verdicts[0] else CheckOutcome.FOUND_WRONG


def _waiting_since(facts: Facts) -> datetime:
    ends = [facts.compared_at, *(run.ended_at for run in facts.runs[1:])]
    return max([facts.opened_at, *(end for end in ends if end is not None)])


def _patience(facts: Facts, *, decides: bool) -> timedelta:
    if decides:
        return DECIDER_WAIT
    if facts.mode is Verify.QUORUM:
        return QUORUM_WAIT
    return AUDITOR_WAIT if facts.withheld else BACKGROUND_WAIT
