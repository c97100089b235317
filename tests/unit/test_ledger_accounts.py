"""Accounts of the ledger: each kind has one side of zero, a name that says all, and as many shards as it needs."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import pytest

from computepool import entropy
from computepool.core.ledger.accounts import (
    ASSETS,
    PERSONAL,
    SHARD_COUNTS,
    SHARDS,
    AccountKind,
    LedgerAccount,
    account_from_id,
    accounts_of,
    owner_available,
    owner_pending,
    receivable,
    shard_of,
    submitter_available,
    submitter_held,
)
from computepool.core.ledger.amount import BALANCE_MAX
from tests.support.builders import account_number

EVERY = [*accounts_of(account_number(7)), *(shard for shards in SHARDS.values() for shard in shards)]


@pytest.mark.parametrize("account", EVERY, ids=lambda account: account.id)
def test_an_account_is_found_again_by_its_name(account):
    found = account_from_id(account.id)
    assert (found.kind, found.owner_id, found.shard) == (account.kind, account.owner_id, account.shard)
    assert found == account
    assert hash(found) == hash(account)


def test_only_the_world_and_what_is_owed_to_us_stand_below_zero():
    assert {AccountKind.WORLD, AccountKind.RECEIVABLE} == ASSETS
    for account in EVERY:
        below = account.kind in ASSETS
        assert (account.least, account.most) == ((-BALANCE_MAX, 0) if below else (0, BALANCE_MAX))


def test_every_kind_belongs_to_a_person_or_to_the_platform():
    assert set(AccountKind) == PERSONAL | SHARD_COUNTS.keys()
    assert not PERSONAL & SHARD_COUNTS.keys()


@pytest.mark.parametrize("make", [submitter_available, submitter_held, owner_pending, owner_available, receivable])
def test_a_persons_account_bears_the_persons_id(make):
    account = make(account_number(5))
    assert account.id == f"{make.__name__}/{UUID(int=5)}"
    assert account.party == str(UUID(int=5))


@pytest.mark.parametrize(
    ("kind", "owner", "shard"),
    [
        (AccountKind.SUBMITTER_HELD, None, 0),
        (AccountKind.FEE, account_number(1), 0),
        (AccountKind.FEE, None, 16),
        (AccountKind.FEE, None, -1),
        (AccountKind.WORLD, None, 16),
        (AccountKind.PAYOUT_CLEARING, None, 1),
        (AccountKind.OWNER_PENDING, account_number(1), 1),
    ],
)
def test_an_account_that_cannot_be_is_not_made(kind, owner, shard):
    with pytest.raises(ValueError, match=kind.value):
        LedgerAccount(kind, owner, shard)


@pytest.mark.parametrize("id", ["", "fee", "fee/16", "fee/x", "piggy_bank/1", "submitter_held/7"])
def test_a_name_that_names_nothing_is_refused(id):
    with pytest.raises((ValueError, IndexError)):
        account_from_id(id)


def test_subjects_spread_evenly_over_the_shards():
    counts = Counter(shard_of(AccountKind.FEE, entropy.new_id()).shard for _ in range(3_200))
    assert len(counts) == 16
    assert max(counts.values()) < 2 * 200


def test_a_subject_always_has_the_same_shard():
    id = entropy.new_id()
    assert len({shard_of(AccountKind.WORLD, id) for _ in range(10)}) == 1


def test_names_are_in_the_order_of_the_database():
    """The table's names are compared byte by byte, as Python compares plain text."""
    accounts = sorted(EVERY)
    assert [a.id.encode() for a in accounts] == sorted(a.id.encode() for a in EVERY)
