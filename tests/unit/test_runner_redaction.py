"""What a job may know and others may not read is removed from its log, however its words are cut into portions."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from computepool.node.runner.redaction import MASK, Redactor

SECRET = "hunter2-hunter2"


def redact(secrets: list[str], *portions: bytes) -> bytes:
    redactor = Redactor(secrets)
    return b"".join([*(redactor.add(portion) for portion in portions), redactor.finish()])


def cut(text: bytes, *places: int) -> list[bytes]:
    return [text[start:end] for start, end in pairwise([0, *sorted(places), len(text)])]


def test_a_secret_is_removed_and_the_rest_stays() -> None:
    assert redact([SECRET], b"key=hunter2-hunter2; done\n") == b"key=[secret]; done\n"


def test_without_secrets_every_byte_is_passed_on_at_once() -> None:
    assert Redactor([]).add(b"anything") == b"anything"
    # An empty one is none: it stands everywhere.
    assert Redactor([""]).add(b"anything") == b"anything"


@pytest.mark.parametrize("place", range(len("a hunter2-hunter2 b") + 1))
def test_a_secret_is_removed_wherever_a_portion_ends(place: int) -> None:
    assert redact([SECRET], *cut(b"a hunter2-hunter2 b", place)) == b"a [secret] b"


def test_a_secret_that_comes_byte_by_byte_is_removed() -> None:
    text = b"a hunter2-hunter2 hunter2-hunterX b"
    assert redact([SECRET], *cut(text, *range(len(text)))) == b"a [secret] hunter2-hunterX b"


def test_what_cannot_be_the_beginning_of_a_secret_is_shown_at_once() -> None:
    redactor = Redactor([SECRET])
    assert redactor.add(b"progress 50 %\n") == b"progress 50 %\n"
    assert redactor.add(b"next: h") == b"next: "
    assert redactor.add(b"ello\n") == b"hello\n"


def test_the_longer_of_two_secrets_that_begin_alike_is_removed_whole() -> None:
    secrets = ["abcdefgh", "abcdefghij"]
    assert redact(secrets, b"-abcdefgh", b"ij-") == b"-[secret]-"
    assert redact(secrets, b"-abcdefgh", b"xy-") == b"-[secret]xy-"


def test_secrets_that_overlap_are_removed_whole() -> None:
    assert redact(["abcabcabc"], b"-abcabc", b"abcabc-") == b"-[secret]-"
    assert redact(["12345678", "56789012"], *cut(b"-123456789012-", 9)) == b"-[secret]-"


def test_a_log_that_ends_within_a_secret_does_not_show_its_beginning() -> None:
    assert redact([SECRET], b"key=hunter2-hunter") == b"key=[secret]"
    # So little may be anything.
    assert redact([SECRET], b"to the hun") == b"to the hun"


def test_a_log_that_ends_with_a_secret_shows_nothing_behind_it() -> None:
    assert redact(["abcabcabc"], b"-abcabcabc") == b"-[secret]"


ALPHABET = st.sampled_from("ab")
SECRETS = st.lists(st.text(ALPHABET, min_size=3, max_size=6), min_size=1, max_size=3)


@given(SECRETS, st.text(ALPHABET, max_size=40), st.lists(st.integers(0, 40), max_size=6))
def test_no_secret_is_ever_shown_and_portions_make_no_difference(
    secrets: list[str], text: str, places: list[int]
) -> None:
    """Letters are few, so that secrets stand everywhere, in and over each other."""
    raw = text.encode()
    shown = redact(secrets, *cut(raw, *(min(place, len(raw)) for place in places)))
    assert not any(secret.encode() in shown for secret in secrets)
    if not any(secret in text for secret in secrets):
        assert shown == raw
    # What is left is what no secret covers, in its order.
    covered = [
        any(text.startswith(s, start) for s in secrets for start in range(max(0, i - len(s) + 1), i + 1))
        for i in range(len(text))
    ]
    assert shown.replace(MASK, b"") == bytes(
        byte for byte, is_hidden in zip(raw, covered, strict=True) if not is_hidden
    )
