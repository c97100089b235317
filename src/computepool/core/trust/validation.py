"""Whether a result is right: what is audited, by whom, what the runs come to, and who is to blame.

Facts in, decisions out. An audit is a slice like any other to the node that runs it, so its run is evidence about the
auditor as well: agreement counts for both, and whoever forges without knowing forges in audits, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from hashlib import sha256
from hmac import digest

from computepool.core.ids import AccountId, AttemptId, NodeId
from computepool.core.trust.standing import NodeTrust, is_trusted

RATE_MIN = 0.15
# Audits of a node beyond probation grow rarer with what was validated, down to RATE_MIN.
RATE_RESULTS = 10.0
# How long a result waits for somebody who could audit it.
AUDITOR_WAIT = timedelta(seconds=10)
# Runs that decide a disagreement, beyond the result and its audit.
RERUNS = 2
# Results that a quorum asks for: two, and a third if they differ.
QUORUM = 2
QUORUM_RUNS_MAX = 3
RETRO_AUDITS_MAX = 10_000


class Verify(str, Enum):
    """How a submitter wants results to be checked."""

    AUDIT = "audit"
    QUORUM = "quorum"
    NONE = "none"


class ResultState(str, Enum):
    """Where a result starts; what a check makes of it is its outcome (inspection.py)."""

    VERIFYING = "verifying"  # not delivered before somebody else has got it, too
    ACCEPTED = "accepted"  # delivered; may still be audited
    UNVERIFIED = "unverified"  # delivered although nobody can check it; shown and priced as such


# What is audited


def audit_rate(known: NodeTrust, *, now: datetime) -> float:
    """The share of a node's results that is run again by somebody else. Doubled for whoever was bugged once."""
    if not is_trusted(known, now=now):
        return 1.0
    rate = max(RATE_MIN, RATE_RESULTS / max(1, known.integrity.validated_count))
    return min(1.0, 2.0 * rate if known.bugged_count else rate)


def first_state(verify: Verify, known: NodeTrust, *, has_comparator: bool, now: datetime) -> ResultState:
    """Where a delivered result starts. Without a comparator nothing can be said of it."""
    if verify is Verify.NONE or not has_comparator:
        return ResultState.UNVERIFIED
    if verify is Verify.QUORUM or not is_trusted(known, now=now):
        return ResultState.VERIFYING
    return ResultState.ACCEPTED


def draw_audit(key: bytes, attempt_id: AttemptId, result_hash: bytes) -> int:
    """A number of 256 bits that nobody can know before the result is committed, and the hub can show afterwards."""
    return int.from_bytes(digest(key, attempt_id.bytes + result_hash, sha256), "big")


def is_audited(rate: float, draw: int) -> bool:
    return (draw >> 192) < rate * 2.0**64


# By whom


@dataclass(frozen=True, slots=True)
class Runner:
    """A node, as far as its word counts for or against another's."""

    node_id: NodeId
    # One account that stands for all that are linked with the owner's.
    owner_id: AccountId
    # Where it is reached from; nodes behind one address may be one person.
    network: str
    # Whether it may audit, and decide between others (standing.py).
    is_trusted: bool
    may_decide: bool = False
    # By the operator.
    is_vouched: bool = False
    # Of the slot that it ran on, or would (comparators/numerics.py).
    numeric_class: str = ""


def are_strangers(one: Runner, other: Runner) -> bool:
    """Agreement of nodes that are not strangers is worth nothing."""
    return one.owner_id != other.owner_id and one.network != other.network


def choose_auditors(candidates: Sequence[Runner], runs: Sequence[Runner], *, count: int, draw: int) -> list[Runner]:
    """Trusted strangers to all who ran it and to each other, drawn evenly: whoever audits cannot be arranged.

    Fewer than `count` when there are no more. The submitter's own nodes are no candidates.
    """
    return _draw_strangers([each for each in candidates if each.is_trusted], runs, count, draw)


def choose_deciders(candidates: Sequence[Runner], runs: Sequence[Runner], *, count: int, draw: int) -> list[Runner]:
    """For the re-runs that decide a disagreement: first those that the operator vouches for, as far as they go.

    Disagreements are few, so few such nodes serve a large fleet; and forgers who vouch for each other never decide.
    """
    chosen = _draw_strangers([each for each in candidates if each.is_vouched and each.may_decide], runs, count, draw)
    others = [each for each in candidates if each.may_decide and not each.is_vouched]
    return chosen + _draw_strangers(others, [*runs, *chosen], count - len(chosen), draw)


def _draw_strangers(candidates: list[Runner], runs: Sequence[Runner], count: int, draw: int) -> list[Runner]:
    """Takes from the list that it is given."""
    chosen = list(runs)
    while candidates and len(chosen) - len(runs) < count:
        draw, index = divmod(draw, len(candidates))
        candidate = candidates[index]
        candidates[index] = candidates[-1]
        candidates.pop()
        if all(are_strangers(candidate, other) for other in chosen):
            chosen.append(candidate)
    return chosen[len(runs) :]


# What the runs come to


@dataclass(frozen=True, slots=True)
class MoreRuns:
    """Not decided yet: so many more trusted runs are needed."""

    count: int


@dataclass(frozen=True, slots=True)
class Ruling:
    # For each run in its order: right, wrong by its own fault, or None where nobody is blamed and nothing is counted.
    verdicts: tuple[bool | None, ...]

    @property
    def is_nondeterministic(self) -> bool:
        return None in self.verdicts


def judge_audit(answers: Sequence[int]) -> Ruling | MoreRuns:
    """`answers`: of the result, of its audit, of re-runs if there were any. Equal numbers: the comparator agrees.

    Two trusted re-runs that agree decide for or against both. If they differ it is the job, and nobody is blamed.
    """
    first, audit, *reruns = answers
    if first == audit:
        return Ruling((True,) * len(answers))
    if len(reruns) < RERUNS:
        return MoreRuns(RERUNS - len(reruns))
    if len(set(reruns)) > 1:
        return Ruling((None,) * len(answers))
    return Ruling(tuple(answer == reruns[0] for answer in answers))


def judge_known_answer(*, answer: int, expected: int) -> Ruling:
    """A slice whose answer was known before: nobody else has to run it. For jobs whose runs differ by themselves."""
    return Ruling((answer == expected,))


def judge_quorum(answers: Sequence[int], runners: Sequence[Runner]) -> Ruling | MoreRuns:
    """Two agreeing strangers accept; a third breaks a tie, and whoever is alone was wrong.

    Three answers, or agreement of no strangers: nobody is blamed.
    """
    for index, answer in enumerate(answers):
        for other in range(index + 1, len(answers)):
            if answers[other] == answer and are_strangers(runners[index], runners[other]):
                return Ruling(tuple(each == answer for each in answers))
    missing = QUORUM - len(answers) if len(answers) < QUORUM else 1
    return MoreRuns(missing) if len(answers) < QUORUM_RUNS_MAX else Ruling((None,) * len(answers))


def label_answers(agrees: Sequence[Sequence[bool]]) -> list[int]:
    """Numbers for `judge_*` out of who agrees with whom: each run has the number of the first that it agrees with.

    `agrees[i][j]` for j < i. A tolerance is no equality (a may be near b, and b near c); the earlier run decides.
    """
    labels: list[int] = []
    for index, row in enumerate(agrees):
        labels.append(next((labels[other] for other in range(index) if row[other]), index))
    return labels
