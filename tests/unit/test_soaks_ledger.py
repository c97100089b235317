"""What the soak of the ledger calls sound: nothing wrong, and enough of everything tried."""

from __future__ import annotations

import pytest

from soaks.ledger import JOBS_MIN, KILLS_MIN, NOTHING_WRONG, SETTLEMENTS_MIN, list_faults

SOUND = {**NOTHING_WRONG, "hub_kills": KILLS_MIN, "acknowledged": JOBS_MIN, "settlements": SETTLEMENTS_MIN}


def test_a_soak_in_which_nothing_went_wrong_is_sound():
    assert list_faults(SOUND) == []


@pytest.mark.parametrize("key", NOTHING_WRONG)
def test_whatever_went_wrong_once_is_told(key: str):
    assert list_faults({**SOUND, key: 1}) == [f"{key} is 1"]


@pytest.mark.parametrize("key", ["hub_kills", "acknowledged", "settlements"])
def test_what_was_hardly_tried_shows_nothing(key: str):
    [fault] = list_faults({**SOUND, key: 0})
    assert fault.startswith(f"{key} is 0, below ")
