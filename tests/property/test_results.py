"""Slice numbers, manifests, log pieces and job states over random input."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from computepool.core.jobs.log_text import whole_characters
from computepool.core.jobs.manifest import manifest_sha256
from computepool.core.jobs.ranges import to_ranges
from computepool.core.jobs.spec import is_safe_relative_path
from computepool.core.jobs.state import JOB_TERMINAL, JobState, derive_job_state
from tests.support.builders import indexes_of

BOUNDED = settings(max_examples=100, deadline=None, derandomize=True, database=None)

# Alphabets of what is told apart in a manifest: names, line breaks, hex digits, spaces.
PATHS = st.text(alphabet="ab/.\n 0", min_size=1, max_size=80)
DIGESTS = st.sampled_from(["0" * 64, "a" * 64])


@BOUNDED
@given(st.sets(st.integers(0, 300)))
def test_ranges_give_back_the_numbers_they_were_made_of(indexes):
    assert indexes_of(to_ranges(indexes)) == sorted(indexes)


@BOUNDED
@given(st.sets(st.integers(0, 300)))
def test_ranges_are_in_order_and_never_touch(indexes):
    ranges = to_ranges(indexes)
    assert all(first <= last for first, last in ranges)
    assert all(last + 1 < first for (_, last), (first, _) in pairwise(ranges))


@BOUNDED
@given(st.dictionaries(PATHS, DIGESTS, max_size=3), st.dictionaries(PATHS, DIGESTS, max_size=3))
def test_different_results_have_different_manifests(one, other):
    safe = all(is_safe_relative_path(path) for path in [*one, *other])
    if safe and one != other:
        assert manifest_sha256(one.items()) != manifest_sha256(other.items())


def test_a_path_with_a_line_break_could_pass_for_two_files_and_is_therefore_not_safe():
    two = [("a", "0" * 64), ("b", "a" * 64)]
    forged = [("a\n" + "a" * 64 + "  b", "0" * 64)]
    assert manifest_sha256(forged) == manifest_sha256(two)
    assert not is_safe_relative_path(forged[0][0])


@BOUNDED
@given(st.text(alphabet="aä€😀\n", max_size=40), st.integers(1, 7))
def test_a_log_read_in_pieces_shows_the_text_that_was_written(text, piece_bytes):
    content, shown, offset = text.encode(), "", 0
    for end in range(piece_bytes, len(content) + piece_bytes, piece_bytes):
        piece = content[offset:end]
        piece = piece[: whole_characters(piece)]
        shown += piece.decode()
        offset += len(piece)
    assert shown.encode() == content


@BOUNDED
@given(st.binary(max_size=20))
def test_no_more_than_three_bytes_of_anything_are_held_back(content):
    assert len(content) - 3 <= whole_characters(content) <= len(content)


@BOUNDED
@given(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4), st.integers(0, 4), st.booleans())
def test_a_job_is_over_exactly_when_all_its_slices_are(succeeded, failed, cancelled, waiting, started):
    state = derive_job_state(
        slice_count=succeeded + failed + cancelled + waiting,
        succeeded_count=succeeded,
        failed_count=failed,
        cancelled_count=cancelled,
        started=started,
    )
    assert (state in JOB_TERMINAL) == (waiting == 0)
    if state is JobState.SUCCEEDED:
        assert failed == cancelled == 0
