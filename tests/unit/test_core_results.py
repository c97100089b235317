"""Small rules about results, logs, slice numbers and roles."""

from __future__ import annotations

import hashlib

import pytest

from computepool.core.accounts.roles import Role, effective_roles
from computepool.core.jobs.log_text import whole_characters
from computepool.core.jobs.manifest import manifest_sha256
from computepool.core.jobs.ranges import to_ranges

# Printed by sha256sum of coreutils 9.1 for four files, in the order of `LC_ALL=C sort`.
PRINTED = """\
df7e70e5021544f4834bbee64a9e3789febc4be81470df629cad6ddb03320a5c  B
5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03  a.txt
e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  b/c.bin
2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881  ä ö
"""
FILES = {"B": b"B", "a.txt": b"hello\n", "b/c.bin": b"", "ä ö": b"x"}


def test_a_manifest_is_what_sha256sum_prints_hashed():
    outputs = [(path, hashlib.sha256(content).hexdigest()) for path, content in FILES.items()]
    assert manifest_sha256(outputs) == hashlib.sha256(PRINTED.encode()).hexdigest()
    assert manifest_sha256(outputs) == "96cc8515f5d6a615972383f08d52ee7e36b98cdc4ce80bf30d485fc2226d4434"


def test_the_order_of_the_outputs_does_not_matter():
    outputs = [(path, hashlib.sha256(content).hexdigest()) for path, content in FILES.items()]
    assert manifest_sha256(reversed(outputs)) == manifest_sha256(outputs)


def test_a_result_without_files_has_the_hash_of_nothing():
    assert manifest_sha256([]) == hashlib.sha256(b"").hexdigest()


@pytest.mark.parametrize("changed", [("a", "1" * 64), ("b", "0" * 64)])
def test_another_name_or_another_content_is_another_result(changed):
    assert manifest_sha256([changed]) != manifest_sha256([("a", "0" * 64)])


@pytest.mark.parametrize(
    ("indexes", "ranges"),
    [
        ([], []),
        ([5], [[5, 5]]),
        ([0, 1, 2, 7], [[0, 2], [7, 7]]),
        ([7, 2, 0, 1], [[0, 2], [7, 7]]),
        ([1, 3, 5], [[1, 1], [3, 3], [5, 5]]),
        (range(100_000), [[0, 99_999]]),
    ],
)
def test_slice_numbers_become_the_fewest_ranges(indexes, ranges):
    assert to_ranges(indexes) == ranges


@pytest.mark.parametrize("character", ["a", "ä", "€", "😀"])
def test_a_character_cut_in_two_waits_for_its_other_half(character):
    whole = ("x" + character).encode()
    for cut in range(2, len(whole)):
        assert whole_characters(whole[:cut]) == 1
    assert whole_characters(whole) == len(whole)


def test_an_empty_piece_shows_nothing():
    assert whole_characters(b"") == 0


@pytest.mark.parametrize("content", [b"\x80" * 10, b"ok\x80", b"\xff ok"])
def test_bytes_that_are_no_text_are_not_held_back(content):
    assert whole_characters(content) == len(content)


def test_a_key_reaches_no_further_than_its_account():
    account, key = {Role.SUBMITTER, Role.OWNER}, {Role.SUBMITTER, Role.OPERATOR}
    assert effective_roles(account, key) == {Role.SUBMITTER}


def test_a_key_does_not_keep_a_role_that_its_account_has_lost():
    assert effective_roles([], [Role.OPERATOR]) == frozenset()
