"""Results that a command of the submitter's compares: what its runs have said, and what is to be asked next.

Facts in, labels or one more question out. The command is run by others, elsewhere; equal bytes agree without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

# Of the same two results: in all, and runs that the command itself has ended without an answer.
TRIES_MAX = 4
FAILURES_MAX = 2
# Who audits is taken at its word if it agrees, and so is who compares. Blame is never one machine's word alone.
DIFFERENCES_MIN = 2
# Four runs of a slice at most are compared, each two of them and each with itself.
COMPARISONS_MAX = 10 * TRIES_MAX


class Said(str, Enum):
    """What a run of the command has come to."""

    UNDER_WAY = "under_way"
    AGREE = "agree"
    DIFFER = "differ"
    NOTHING = "nothing"  # it crashed, was killed by its limits, or ended with a code of no meaning
    LOST = "lost"  # its machine vanished, its owner came back, or a file was not to be had


@dataclass(frozen=True, slots=True)
class Result:
    sha256: bytes
    # Whether it can be laid beside another at all: not too many files, nor too large, with paths that can be.
    fits: bool = True


@dataclass(frozen=True, slots=True)
class Needed:
    """These two are to be compared next, the earlier run first. Twice the same: whether the command can read it.

    Whoever has said something of these two is not asked again.
    """

    one: int
    other: int


# By the places of the two, the earlier run first: what each run of the command said, oldest first.
Heard = Mapping[tuple[int, int], Sequence[Said]]


def label_by_command(results: Sequence[Result], heard: Heard) -> tuple[int, ...] | Needed | None:
    """Numbers for `judge_*`, as `label_answers` has them; or what must be asked before. None: nobody can tell.

    Each result is compared with the first of every group of those before it, and with no other.
    """
    labels: list[int] = []
    for index in range(len(results)):
        label = _find_label(index, labels, results, heard)
        if not isinstance(label, int):
            return label
        labels.append(label)
    return tuple(labels)


def _find_label(index: int, labels: Sequence[int], results: Sequence[Result], heard: Heard) -> int | Needed | None:
    for earlier, label in enumerate(labels):
        if results[earlier].sha256 == results[index].sha256:
            return label
    for first in dict.fromkeys(labels):
        agrees = _find_agreement(first, index, results, heard)
        if agrees is True:
            return first
        if agrees is not False:
            return agrees
    return index


def _find_agreement(one: int, other: int, results: Sequence[Result], heard: Heard) -> bool | Needed | None:
    said = heard.get((one, other), ())
    agreeing, differing = said.count(Said.AGREE), said.count(Said.DIFFER)
    if agreeing > differing:
        return True
    if differing > agreeing and differing >= DIFFERENCES_MIN:
        return False
    readable = [_find_readable(each, results, heard) for each in (one, other)]
    if False not in readable and not _is_over(said):
        return Needed(one, other)
    # Whoever could make the command crash would never be found wrong: a result that it cannot even compare with
    # itself differs from one that it can.
    for each in readable:
        if isinstance(each, Needed):
            return each
    return False if set(readable) == {True, False} else None


def _find_readable(index: int, results: Sequence[Result], heard: Heard) -> bool | Needed | None:
    """None: those who were asked have vanished."""
    if not results[index].fits:
        return False
    said = heard.get((index, index), ())
    if Said.AGREE in said:
        return True
    if said.count(Said.NOTHING) + said.count(Said.DIFFER) >= FAILURES_MAX:
        return False
    return None if _is_over(said) else Needed(index, index)


def _is_over(said: Sequence[Said]) -> bool:
    return len(said) >= TRIES_MAX or said.count(Said.NOTHING) >= FAILURES_MAX
