"""Histories of a slice on which some forge: whoever is honest is never blamed, and no forger proves nonsense alone.

The program is sound: it fails on nonsense and on nothing else. Forgers know the rules, save nonsense and go; one may
lie about what others have saved. The rules are asked as the hub asks them, attempt by attempt.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from computepool.core.ids import AccountId
from computepool.core.jobs import checkpoint_proofs
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.checkpoint_proofs import Lack, Story, Try, Verdict, find_doubt, find_lack, judge
from computepool.core.jobs.state import AttemptState, SliceState

SUBMITTER, FORGER, LIAR, *HONEST = (AccountId(UUID(int=n)) for n in range(1, 8))
ATTEMPTS_MAX = 60


@dataclass
class History:
    """One slice, from its first attempt to its end."""

    rng: random.Random
    villains: tuple[AccountId, ...]
    story: Story = field(default_factory=lambda: Story(SliceState.QUEUED, SUBMITTER, (), can_resume=True))
    # Attempts whose checkpoint holds nothing, and how often somebody was forgiven.
    nonsense: set[int] = field(default_factory=set)
    forgiven: int = 0

    def live(self) -> History:
        while self.story.slice_state is SliceState.QUEUED and len(self.story.tries) < ATTEMPTS_MAX:
            self.take(self.rng.choice((*self.villains, *HONEST)))
            self.check()
        return self

    def take(self, owner_id: AccountId) -> None:
        number = len(self.story.tries) + 1
        begun = Try(number, owner_id, AttemptState.RUNNING, None, None, has_delivered=False, has_saved=False)
        base = replace(self.story, tries=(*self.story.tries, begun)).bases[number]
        is_nonsense = base is not None and base.number in self.nonsense
        if owner_id == FORGER:
            self.nonsense.add(number)
            self.end(replace(begun, state=AttemptState.FAILED, cause=Cause.OWNER_RETURNED, has_saved=True))
        elif owner_id == LIAR or is_nonsense:
            self.fail(replace(begun, state=AttemptState.FAILED, cause=Cause.EXIT_CODE, exit_code=1))
        elif self.rng.random() < 0.3:
            self.end(replace(begun, state=AttemptState.SUCCEEDED, has_delivered=True))
            self.story = replace(self.story, slice_state=SliceState.SUCCEEDED)
        else:
            self.end(replace(begun, state=AttemptState.FAILED, cause=Cause.NODE_VANISHED, has_saved=True))

    def fail(self, failed: Try) -> None:
        self.end(failed)
        doubt = find_doubt(self.story, failed)
        if doubt is None:
            return
        self.forgiven += 1
        tries = [
            replace(each, left_out_after=failed.number) if each.number in doubt.left_out else each
            for each in self.story.tries
        ]
        self.story = replace(self.story, tries=tuple(tries))
        after = replace(failed, number=failed.number + 1)
        base = replace(self.story, tries=(*tries, after)).bases[after.number]
        assert not doubt.left_out or doubt.back_to == (base.number if base else None), "goes on from what it says"

    def end(self, ended: Try) -> None:
        self.story = replace(self.story, tries=(*self.story.tries, ended))

    def list_savers(self, *, is_nonsense: bool) -> list[Try]:
        return [each for each in self.story.tries if each.has_saved and (each.number in self.nonsense) is is_nonsense]

    def check(self) -> None:
        for saved in self.list_savers(is_nonsense=False):
            assert judge(self.story, saved) is not Verdict.FORGED, "an honest saver was blamed"
        for saved in self.list_savers(is_nonsense=True):
            assert find_lack(self.story, saved) is not None or _is_over(self.story), "nonsense was proven"
        savers = len(self.list_savers(is_nonsense=True)) + len(self.list_savers(is_nonsense=False))
        assert self.forgiven <= checkpoint_proofs.WITNESSES_MIN * savers, "failures are forgiven without end"


def _is_over(story: Story) -> bool:
    return story.slice_state is not SliceState.QUEUED


@given(st.integers(0, 1 << 32), st.sampled_from([(), (FORGER,), (LIAR,), (FORGER, LIAR)]))
@settings(max_examples=300, deadline=None)
def test_no_honest_saver_is_blamed_and_no_nonsense_is_proven(seed, villains):
    History(random.Random(seed), villains).live()


@given(st.integers(0, 1 << 32))
@settings(max_examples=300, deadline=None)
def test_what_a_forger_saved_is_forged_once_two_have_failed_on_it_and_it_was_delivered(seed):
    history = History(random.Random(seed), (FORGER,)).live()
    if not _is_over(history.story):
        return
    for saved in history.list_savers(is_nonsense=True):
        # The same honest machine twice is one witness. Nobody fails here without nonsense, so nothing is cleared.
        assert judge(history.story, saved) in (Verdict.FORGED, Verdict.UNDECIDED)
        assert find_lack(history.story, saved) is Lack.VERDICT


def test_most_forgers_are_blamed_and_not_only_held_up():
    verdicts = []
    for seed in range(300):
        history = History(random.Random(seed), (FORGER,)).live()
        verdicts += [judge(history.story, saved) for saved in history.list_savers(is_nonsense=True)]
    assert verdicts.count(Verdict.FORGED) > 0.6 * len(verdicts)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ("one witness", "an honest saver was blamed"),
        ("own proof", "nonsense was proven"),
    ],
)
def test_a_broken_rule_is_noticed(broken, words, monkeypatch):
    if broken == "one witness":
        monkeypatch.setattr(checkpoint_proofs, "WITNESSES_MIN", 1)
    else:
        monkeypatch.setattr(Story, "proven", property(_list_gone_on_from))
    with pytest.raises(AssertionError, match=words):
        live_often(500)


def live_often(count: int) -> None:
    for seed in range(count):
        History(random.Random(seed), (FORGER, LIAR)).live()


def _list_gone_on_from(story: Story) -> frozenset[int]:
    """Whoever it was that saved more."""
    return frozenset(base.number for each in story.tries if each.has_saved for base in story.list_bases(each))
