"""What the time of a superseded attempt is worth: the owner's part, out of the fee of its slice and no further."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from computepool.core.ids import AttemptId, JobId
from computepool.core.ledger.fee import split_price
from computepool.core.ledger.make_good import Superseded, price_make_good
from computepool.hub.services.make_good import price_all
from tests.support.builders import NOW, account_number

CREDIT = 1_000_000
SUBMITTER, LATE, BEATEN, LINKED = (account_number(n) for n in range(1, 5))


def superseded(seconds: float = 10.0, **overrides: Any) -> Superseded:
    """Ran so long at a credit a second, beside one that brought 100 credits of fee."""
    values: dict[str, Any] = {
        "attempt_id": AttemptId(UUID(int=1)),
        "job_id": JobId(UUID(int=2)),
        "slice_index": 0,
        "owner_id": BEATEN,
        "submitter_id": SUBMITTER,
        "leased_at": NOW - timedelta(seconds=seconds),
        "started_at": NOW - timedelta(seconds=seconds),
        "finished_at": NOW,
        "wall_seconds": 100,
        "rate_microcredits_per_hour": 3_600 * CREDIT,
        "slice_price_microcredits": None,
        "fee_ppm": 200_000,
        "earned_microcredits": 0,
        "delivered_by": LATE,
        "fee_microcredits": 100 * CREDIT,
    }
    return Superseded(**{**values, **overrides})


FIXED = {"rate_microcredits_per_hour": None, "slice_price_microcredits": 50 * CREDIT}


@pytest.mark.parametrize(
    ("case", "credits"),
    [
        pytest.param(superseded(10.0), 8, id="the owner's part of ten seconds"),
        pytest.param(superseded(9.2), 8, id="whole seconds, rounded up"),
        pytest.param(superseded(500.0), 80, id="no further than the wall limit"),
        pytest.param(superseded(10.0, **FIXED), 4, id="of a fixed price the part that it ran of its limit"),
        pytest.param(superseded(10.0, fee_ppm=0), 10, id="without a fee of its own all of it"),
        pytest.param(superseded(10.0, fee_microcredits=3 * CREDIT), 3, id="no more than the fee of the slice"),
        pytest.param(superseded(10.0, fee_microcredits=0), 0, id="nothing where the slice brought no fee"),
        pytest.param(superseded(10.0, earned_microcredits=5 * CREDIT), 3, id="less what its checkpoints brought"),
        pytest.param(superseded(10.0, earned_microcredits=9 * CREDIT), 0, id="nothing where they brought more"),
        pytest.param(superseded(10.0, started_at=None), 0, id="nothing for what never began"),
        pytest.param(superseded(10.0, owner_id=LATE), 0, id="nobody is paid for being faster than oneself"),
        pytest.param(superseded(10.0, owner_id=SUBMITTER), 0, id="one's own jobs are free"),
    ],
)
def test_time_is_made_good_by_the_owners_part_within_the_fee_of_the_slice(case, credits):
    assert price_make_good(case, is_linked=False) == credits * CREDIT


def test_linked_accounts_are_one():
    assert price_make_good(superseded(), is_linked=True) == 0
    alone = {LINKED: LINKED, BEATEN: BEATEN}
    together = {LINKED: LINKED, BEATEN: LINKED}
    for party in ("submitter_id", "delivered_by"):
        case = superseded(**{party: LINKED})
        assert list(price_all([case], alone).values()) == [8 * CREDIT]
        assert list(price_all([case], together).values()) == [0]


def test_two_of_one_slice_share_its_fee_and_those_of_others_do_not():
    first, second, other = (
        replace(superseded(fee_microcredits=10 * CREDIT), attempt_id=AttemptId(UUID(int=n)), slice_index=index)
        for n, index in [(1, 0), (2, 0), (3, 1)]
    )
    assert list(price_all([first, second, other], {}).values()) == [8 * CREDIT, 2 * CREDIT, 8 * CREDIT]


@given(
    price=st.integers(0, 10**12),
    seconds=st.lists(st.floats(0, 10**6), min_size=1, max_size=4),
    rate=st.integers(0, 10**12),
    fee_ppm=st.integers(0, 200_000),
)
def test_however_owners_and_submitter_play_together_a_slice_never_gives_back_more_than_it_has_cost(
    price, seconds, rate, fee_ppm
):
    """All three are one person behind accounts that nobody can link: the most that comes back is what was paid."""
    earned, fee = split_price(price, fee_ppm=fee_ppm)
    beaten = [
        superseded(
            each, attempt_id=AttemptId(UUID(int=n)), rate_microcredits_per_hour=rate, fee_microcredits=int(fee)
        )
        for n, each in enumerate(seconds)
    ]
    assert earned + sum(price_all(beaten, {}).values()) <= price


def test_control_paid_in_full_it_would_be_a_business():
    earned, fee = split_price(100 * CREDIT, fee_ppm=200_000)
    unlimited = superseded(100.0, fee_microcredits=10**15)
    assert earned + price_make_good(unlimited, is_linked=False) > 100 * CREDIT
    assert earned + price_make_good(replace(unlimited, fee_microcredits=int(fee)), is_linked=False) == 100 * CREDIT
