"""Whether a checkpoint holds work that somebody else could go on from: found out by those who begin with it.

The hub cannot know what the bytes of a checkpoint mean. It knows who began with them and how that ended: whoever goes
on from a checkpoint proves it. Where two strangers fail on it, the slice is delivered without it, and the same
program has gone on from the checkpoints of others, it was forged (docs/decisions/0030).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import takewhile

from computepool.core.ids import AccountId
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.retry import EXIT_CODE_CHECKPOINTED
from computepool.core.jobs.state import SLICE_TERMINAL, AttemptState, SliceState

# So many who are strangers to its saver fail on a checkpoint before the slice goes on without it. One alone may have
# met a program that fails now and then, or may lie.
WITNESSES_MIN = 2


class Verdict(str, Enum):
    """What a checkpoint that was left out has come to."""

    # The job is to blame, or nobody: its saver is paid as usual.
    CLEARED = "cleared"
    FORGED = "forged"
    # The slice was delivered without it, but its witnesses are one person, or the submitter; or the program may be
    # one that cannot go on from any checkpoint. The operator decides.
    UNDECIDED = "undecided"


class Lack(str, Enum):
    """What is missing before the pay for a checkpoint may be released."""

    # Nobody has gone on from it yet.
    PROOF = "proof"
    # The slice goes on without it; what it was is known when the slice has ended.
    VERDICT = "verdict"


@dataclass(frozen=True, slots=True)
class Try:
    """One attempt of a slice, as far as it says something about checkpoints."""

    number: int
    # Who stands for its owner and all that are linked with them.
    owner_id: AccountId
    state: AttemptState
    cause: Cause | None
    exit_code: int | None
    # Its result is the slice's.
    has_delivered: bool
    has_saved: bool
    # Attempts with a higher number begin without what it has saved. None: nobody does.
    left_out_after: int | None = None
    verdict: Verdict | None = None

    @property
    def has_failed(self) -> bool:
        """By the program's own word, which is all that a broken checkpoint and a broken program have in common."""
        ended = self.state is AttemptState.FAILED and self.cause is Cause.EXIT_CODE
        return ended and self.exit_code != EXIT_CODE_CHECKPOINTED


@dataclass(frozen=True)
class Story:
    """All attempts of a slice, in the order of their numbers, and how the slice stands."""

    slice_state: SliceState
    # Who stands for the submitter.
    submitter_id: AccountId
    tries: tuple[Try, ...]
    # Somewhere in the job somebody has gone on from a checkpoint of somebody else.
    can_resume: bool = False

    @cached_property
    def bases(self) -> Mapping[int, Try | None]:
        """By attempt: the one whose checkpoint it has begun with."""
        saved: list[Try] = []
        found: dict[int, Try | None] = {}
        for each in self.tries:
            known = (s for s in reversed(saved) if s.left_out_after is None or each.number <= s.left_out_after)
            found[each.number] = next(known, None)
            if each.has_saved:
                saved.append(each)
        return found

    @cached_property
    def proven(self) -> frozenset[int]:
        """Attempts from whose checkpoint somebody else has gone on and saved more, or anybody has delivered.

        What was left out itself proves nothing. Below a proven one all are: whoever has proven it, or its own saver,
        went on from them.
        """
        found: set[int] = set()
        for each in self.tries:
            if not (each.has_delivered or (each.has_saved and each.left_out_after is None)):
                continue
            for base in self.list_bases(each):
                if base.number in found:
                    break
                if each.has_delivered or each.owner_id != base.owner_id:
                    found.add(base.number)
        return frozenset(found)

    def list_bases(self, of: Try) -> Iterator[Try]:
        """What an attempt has begun with, and what that had begun with, down to the first."""
        base = self.bases[of.number]
        while base is not None:
            yield base
            base = self.bases[base.number]


@dataclass(frozen=True, slots=True)
class Doubt:
    """An attempt has failed on a checkpoint that nobody has proven. Its end spends no retry."""

    # Whose checkpoints the next attempt begins without. Empty: it begins with the same again.
    left_out: tuple[int, ...] = ()
    # Whose checkpoint it begins with instead. None: nobody's.
    back_to: int | None = None


def find_doubt(story: Story, failed: Try) -> Doubt | None:
    """What the failure of the newest attempt says about the checkpoint that it began with; None: nothing.

    What one owner has saved in a row stands and falls together: whoever adds to a forged checkpoint with another
    attempt of theirs does not begin with a clean sheet.
    """
    base = story.bases[failed.number]
    if base is None or not _is_witness(failed, base) or base.number in story.proven:
        return None
    row = _list_row(story, base)
    if len(_list_witnesses(story, row)) < WITNESSES_MIN:
        return Doubt()
    before = story.bases[row[-1].number]
    return Doubt(tuple(each.number for each in row), before.number if before is not None else None)


def judge(story: Story, saved: Try) -> Verdict | None:
    """A checkpoint that was left out, once its slice has ended; None: it is too early to say."""
    if story.slice_state not in SLICE_TERMINAL or saved.left_out_after is None:
        return None
    row = _list_left_out(story, saved)
    is_proven = row[0].number in story.proven
    if story.slice_state is not SliceState.SUCCEEDED or is_proven or _fails_by_itself(story, row[0]):
        return Verdict.CLEARED
    witnesses = {each.owner_id for each in _list_witnesses(story, row)} - {story.submitter_id}
    is_sure = story.can_resume and len(witnesses) >= WITNESSES_MIN
    return Verdict.FORGED if is_sure else Verdict.UNDECIDED


def is_blamed(story: Story, saved: Try) -> bool:
    """Of those that were left out together the newest one: what one owner did in a row is one wrong, not many."""
    return _list_left_out(story, saved)[0] == saved


def find_lack(story: Story, saved: Try) -> Lack | None:
    """What the pay of an attempt that ended without a result waits for; None: for nothing further."""
    if not saved.has_saved or saved.verdict in (Verdict.CLEARED, Verdict.UNDECIDED):
        return None
    # What was forged is taken back, and whatever went wrong with that is not released instead.
    if saved.left_out_after is not None:
        return Lack.VERDICT
    # Without a doubt there is nothing against it: who cancels a job takes nobody's pay away by that.
    if story.slice_state in SLICE_TERMINAL or saved.number in story.proven:
        return None
    return Lack.PROOF


def _list_row(story: Story, base: Try) -> list[Try]:
    """What one owner has saved on top of each other, newest first."""
    same = takewhile(lambda each: each.owner_id == base.owner_id, story.list_bases(base))
    return [base, *same]


def _list_left_out(story: Story, saved: Try) -> list[Try]:
    """The same, as it was when it was left out."""
    return [each for each in reversed(story.tries) if each.has_saved and each.left_out_after == saved.left_out_after]


def _is_witness(failed: Try, base: Try) -> bool:
    return failed.has_failed and not failed.has_saved and failed.owner_id != base.owner_id


def _list_witnesses(story: Story, row: Sequence[Try]) -> list[Try]:
    return [each for each in story.tries if _is_witness(each, row[0]) and story.bases[each.number] in row]


def _fails_by_itself(story: Story, saved: Try) -> bool:
    """An attempt of somebody else has failed that never had anything doubtful: the program does that."""
    return any(
        each.has_failed
        and each.owner_id != saved.owner_id
        and all(base.left_out_after is None for base in story.list_bases(each))
        for each in story.tries
    )
