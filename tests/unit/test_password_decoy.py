"""Whoever signs in to an account that is not there waits as long as one who got a password wrong."""

from __future__ import annotations

import pytest
from argon2 import PasswordHasher, extract_parameters
from argon2.exceptions import InvalidHashError, VerifyMismatchError

from computepool.hub.services.accounts import make_decoy

HASHER = PasswordHasher(time_cost=2, memory_cost=64, parallelism=1)


def test_a_decoy_asks_for_the_same_work_as_a_real_hash():
    assert extract_parameters(make_decoy(HASHER)) == extract_parameters(HASHER.hash("correct horse"))
    assert not HASHER.check_needs_rehash(make_decoy(HASHER))


def test_a_decoy_is_worked_through_and_fits_no_password():
    with pytest.raises(VerifyMismatchError):
        HASHER.verify(make_decoy(HASHER), "correct horse")


def test_control_what_has_not_the_form_of_a_hash_is_refused_before_any_work():
    with pytest.raises(InvalidHashError):
        HASHER.verify("no hash", "correct horse")


def test_no_two_decoys_are_alike():
    assert make_decoy(HASHER) != make_decoy(HASHER)
