from uuid import UUID

import pytest

from computepool.cli.job_names import pick_id
from computepool.core.errors import InvalidRequest, NotFound

ONE = UUID("01920000-0000-7000-8000-0000aaaa1111")
TWO = UUID("01920000-0000-7000-8000-0000bbbb1111")
THREE = UUID("0193ffff-0000-7000-8000-0000cccc2222")
ALL = [ONE, TWO, THREE]


@pytest.mark.parametrize(
    ("piece", "found"),
    [("aaaa1111", ONE), ("2222", THREE), ("0193", THREE), ("0193ffff-0000", THREE), ("BBBB1111", TWO)],
)
def test_a_beginning_or_an_end_is_enough_if_it_is_the_only_one(piece: str, found: UUID) -> None:
    assert pick_id(piece, ALL) == found


def test_a_piece_that_two_share_is_refused_with_both() -> None:
    with pytest.raises(InvalidRequest, match=f"{ONE}, {TWO}"):
        pick_id("1111", ALL)


def test_a_piece_from_the_middle_names_nothing() -> None:
    with pytest.raises(NotFound):
        pick_id("7000", ALL)


@pytest.mark.parametrize("piece", ["", "222", "1-1-1"])
def test_a_short_piece_is_refused(piece: str) -> None:
    with pytest.raises(InvalidRequest, match="at least 4"):
        pick_id(piece, ALL)
