"""What a command of the submitter's has said about results, which two are compared next, and what a node is given."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from computepool.core.errors import InvalidSpec
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.comparing import fits_beside, lay_beside, read_end
from computepool.core.jobs.spec import FILES_MAX, InputFile
from computepool.core.jobs.state import AttemptState
from computepool.core.trust.comparators.command import (
    COMPARISONS_MAX,
    DIFFERENCES_MIN,
    FAILURES_MAX,
    TRIES_MAX,
    Needed,
    Result,
    Said,
    label_by_command,
)
from computepool.core.trust.comparators.kinds import ComparatorKind
from computepool.core.trust.validation import label_answers
from computepool.sdk.client import read_compare
from tests.support.builders import SHA256, make_file

AGREE, DIFFER, NOTHING, LOST = Said.AGREE, Said.DIFFER, Said.NOTHING, Said.LOST


def results(*contents: object) -> list[Result]:
    return [Result(str(content).encode()) for content in contents]


def ask(found: list[Result], say: Callable[[int, int], Said]) -> tuple[tuple[int, ...] | None, Counter]:
    """Until there is nothing more to ask."""
    heard: dict[tuple[int, int], list[Said]] = {}
    asked: Counter = Counter()
    while isinstance(labels := label_by_command(found, heard), Needed):
        pair = (labels.one, labels.other)
        asked[pair] += 1
        heard.setdefault(pair, []).append(say(*pair))
        assert asked.total() <= COMPARISONS_MAX
    return labels, asked


# What is asked


def test_equal_bytes_agree_without_any_run():
    assert ask(results("a", "a", "b", "b"), lambda one, other: DIFFER) == ((0, 0, 2, 2), Counter({(0, 2): 2}))


def test_a_result_is_compared_with_one_of_each_group_and_no_more():
    near = {"a": 0, "b": 0, "c": 1, "d": 1}
    contents = list(near)
    labels, asked = ask(
        results(*contents), lambda one, other: AGREE if near[contents[one]] == near[contents[other]] else DIFFER
    )
    assert labels == (0, 0, 2, 2)
    assert asked == {(0, 1): 1, (0, 2): DIFFERENCES_MIN, (0, 3): DIFFERENCES_MIN, (2, 3): 1}


def test_an_answer_is_not_asked_for_again_and_one_alone_needs_none():
    assert label_by_command(results("a"), {}) == (0,)
    assert label_by_command(results("a", "b"), {}) == Needed(0, 1)
    assert label_by_command(results("a", "b"), {(0, 1): [LOST, AGREE]}) == (0, 0)
    assert label_by_command(results("a", "b"), {(0, 1): [NOTHING, DIFFER, DIFFER]}) == (0, 1)


@pytest.mark.parametrize(
    ("said", "labels"),
    [
        ([AGREE], (0, 0)),
        ([DIFFER], Needed(0, 1)),
        ([DIFFER, AGREE], Needed(0, 1)),
        ([DIFFER, DIFFER], (0, 1)),
        ([DIFFER, AGREE, AGREE], (0, 0)),
        ([DIFFER, AGREE, DIFFER], (0, 1)),
        ([LOST, LOST, DIFFER, DIFFER], (0, 1)),
    ],
)
def test_one_who_agrees_is_believed_and_one_who_does_not_needs_a_second(said, labels):
    assert label_by_command(results("a", "b"), {(0, 1): said}) == labels


def test_one_machine_that_answers_wrongly_blames_nobody():
    """All four results are right; whoever is asked first about two of them says otherwise."""
    lies = Counter()

    def lie_once(one: int, other: int) -> Said:
        lies[one, other] += 1
        return DIFFER if lies[one, other] == 1 else AGREE

    assert ask(results("a", "b", "c", "d"), lie_once)[0] == (0, 0, 0, 0)


@pytest.mark.parametrize("seed", range(50))
def test_labels_are_those_of_every_pair_compared(seed):
    draw = random.Random(seed)
    groups = [draw.randrange(3) for _ in range(4)]
    agrees = [[groups[one] == groups[other] for other in range(one)] for one in range(4)]
    labels, _ = ask(results(0, 1, 2, 3), lambda one, other: AGREE if groups[one] == groups[other] else DIFFER)
    assert labels == tuple(label_answers(agrees))


# No answer


def test_a_command_that_always_fails_is_asked_a_few_times_and_then_nobody_can_tell():
    labels, asked = ask(results("a", "b"), lambda one, other: NOTHING)
    assert labels is None
    assert asked == Counter({(0, 1): FAILURES_MAX, (0, 0): FAILURES_MAX, (1, 1): FAILURES_MAX})


def test_machines_that_vanish_are_replaced_a_few_times():
    labels, asked = ask(results("a", "b"), lambda one, other: LOST)
    assert labels is None
    assert max(asked.values()) == TRIES_MAX


def test_a_result_that_the_command_cannot_read_differs_from_one_that_it_can():
    """Whoever makes the command crash must not get away with it."""
    labels, _ = ask(results("poison", "b", "c", "d"), lambda one, other: NOTHING if 0 in (one, other) else AGREE)
    assert labels == (0, 1, 1, 1)
    labels, _ = ask(results("a", "b", "poison", "d"), lambda one, other: NOTHING if 2 in (one, other) else AGREE)
    assert labels == (0, 0, 2, 0)


def test_two_that_can_be_read_and_give_no_answer_together_are_nobodys_fault():
    labels, _ = ask(results("a", "b"), lambda one, other: AGREE if one == other else NOTHING)
    assert labels is None


def test_a_result_that_does_not_fit_is_never_sent_to_anybody():
    found = [Result(b"huge", fits=False), Result(b"b"), Result(b"c")]
    labels, asked = ask(found, lambda one, other: AGREE)
    assert labels == (0, 1, 1)
    assert all(0 not in pair for pair in asked)
    assert label_by_command([Result(b"huge", fits=False), Result(b"larger", fits=False)], {}) is None
    assert label_by_command([Result(b"huge", fits=False)] * 2, {}) == (0, 0), "the same bytes need no room"


def test_no_story_asks_more_often_than_there_is_room_for():
    draw = random.Random(1)
    worst = 0
    for _ in range(2_000):
        _, asked = ask(results(0, 1, 2, 3), lambda one, other: draw.choice([LOST, LOST, NOTHING, DIFFER, AGREE]))
        worst = max(worst, asked.total())
    assert TRIES_MAX < worst <= COMPARISONS_MAX


# What an end says


@pytest.mark.parametrize(
    ("state", "exit_code", "cause", "said"),
    [
        (AttemptState.LEASED, None, None, Said.UNDER_WAY),
        (AttemptState.RUNNING, None, None, Said.UNDER_WAY),
        (AttemptState.SUCCEEDED, 0, None, AGREE),
        (AttemptState.FAILED, 1, Cause.EXIT_CODE, DIFFER),
        (AttemptState.FAILED, 2, Cause.EXIT_CODE, NOTHING),
        (AttemptState.FAILED, 85, Cause.EXIT_CODE, NOTHING),
        (AttemptState.FAILED, 139, Cause.EXIT_CODE, NOTHING),
        (AttemptState.FAILED, None, Cause.EXIT_CODE, NOTHING),
        (AttemptState.FAILED, 1, Cause.TIMED_OUT, NOTHING),
        (AttemptState.FAILED, 1, Cause.OUT_OF_MEMORY, NOTHING),
        (AttemptState.FAILED, 1, Cause.OWNER_RETURNED, LOST),
        (AttemptState.FAILED, None, Cause.INPUT_MISSING, LOST),
        (AttemptState.FAILED, None, Cause.SANDBOX_REFUSED, LOST),
        (AttemptState.LOST, None, Cause.NODE_VANISHED, LOST),
        (AttemptState.CANCELLED, None, Cause.CANCELLED, LOST),
    ],
)
def test_only_the_commands_own_word_is_an_answer(state, exit_code, cause, said):
    assert read_end(state, exit_code, cause) is said


# What a node is given


def test_results_lie_beside_the_jobs_own_files():
    laid = lay_beside(
        [make_file(path="same.py")], [make_file(path="a.txt")], [make_file(path="a.txt"), make_file(path="b/c")]
    )
    assert [file.path for file in laid] == ["same.py", "one/a.txt", "other/a.txt", "other/b/c"]


def sized(path: str, size_bytes: int) -> InputFile:
    return InputFile(path, SHA256, size_bytes)


@pytest.mark.parametrize(
    ("result", "fits"),
    [
        ([], True),
        ([sized(f"{number}", 0) for number in range((FILES_MAX - 1) // 2)], True),
        ([sized(f"{number}", 0) for number in range((FILES_MAX - 1) // 2 + 1)], False),
        ([sized("a", 450)], True),
        ([sized("a", 451)], False),
        ([sized("a", 1), sized("a/b", 1)], False),
        ([sized("/".join(["x" * 250] * 4), 1)], True),
        # Below other/ it is longer than a path may be.
        ([sized("/".join(["x" * 254] * 4), 1)], False),
    ],
)
def test_a_result_fits_if_it_could_lie_beside_itself(result, fits):
    assert fits_beside([sized("same.py", 100)], result, has_script=False, disk_bytes=1_000) is fits


def test_without_a_figure_for_the_disk_any_size_fits():
    assert fits_beside([], [sized("a", 1 << 40)], has_script=True, disk_bytes=0)


# What people write


def test_a_command_is_written_as_in_a_shell():
    compare = read_compare("command:python3 same.py --near '1e-3 or so'")
    assert compare.kind is ComparatorKind.COMMAND
    assert compare.command == ("python3", "same.py", "--near", "1e-3 or so")
    assert read_compare("numeric:1e-3").relative == 1e-3
    assert read_compare("exact").kind is ComparatorKind.EXACT


@pytest.mark.parametrize(
    "text", ["command", "command:", "command:  ", "command:'open", "exact:1", "numeric:x", "", "x"]
)
def test_what_is_no_way_to_compare_is_refused_with_what_would_be(text):
    with pytest.raises(InvalidSpec, match=r"command:python3 same\.py"):
        read_compare(text)
