from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from computepool.cli.words import format_ago, format_seconds, parse_seconds, plain, short_id, sparkline, tame

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("15m", 900), ("15 min", 900), ("2h", 7200), ("1.5h", 5400), ("1d", 86400)],
)
def test_times_are_read_as_people_write_them(text: str, seconds: int) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1s", "1w", "h"])
def test_what_is_not_a_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time"):
        parse_seconds(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.25, "0.2 s"),
        (3.4, "3 s"),
        (59.6, "1 min 00"),
        (95, "1 min 35"),
        (3_725, "1 h 02"),
        (90_000, "1 d 01 h"),
    ],
)
def test_durations_are_short(seconds: float | None, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(-5, "0 s"), (12, "12 s"), (200, "3 min"), (7300, "2 h"), (10**6, "11 d")]
)
def test_ages_show_their_largest_unit(seconds: float, text: str) -> None:
    assert format_ago(NOW - timedelta(seconds=seconds), NOW) == text
    assert format_ago(None, NOW) == "never"


def test_the_end_of_an_id_tells_neighbours_apart() -> None:
    assert short_id(UUID("01920000-0000-7000-8000-0000deadbeef")) == "deadbeef"


@pytest.mark.parametrize(
    "attack",
    [
        "\x1b]0;title\x07",
        "\x1b]52;c;ZXZpbA==\x1b\\",
        "\x1b[2J",
        "\x1b[1;1H",
        "\x1bP1$r\x1b\\",
        "\x1bc",
        "\x07",
        "\x9b2J",
        "\x1b",
    ],
)
def test_a_strangers_text_cannot_command_the_terminal(attack: str) -> None:
    assert plain(f"a{attack}b") in ("ab", "a")
    assert tame(f"a{attack}b") in ("ab", "a")


def test_a_log_keeps_its_colours_and_lines() -> None:
    text = "\x1b[1;31mred\x1b[0m\tx\r\n"
    assert tame(text) == text
    assert plain(text) == "red\tx\r\n"


@given(st.text(alphabet=st.sampled_from("ab\x1b[]0;1mHJ\x07\\\x9b\n"), max_size=40))
def test_no_escape_but_colour_survives_taming(text: str) -> None:
    import re

    assert "\x1b" not in plain(text)
    assert "\x1b" not in re.sub(r"\x1b\[[0-9;]*m", "", tame(text))


def test_a_curve_goes_from_its_least_to_its_greatest() -> None:
    assert sparkline([3, 2, 1, 0], width=10) == "█▆▃▁"
    assert sparkline([1, 1], width=10) == "▁▁"
    assert sparkline([0, 1, 2], width=10, ascii_only=True) == "_+@"
    assert sparkline([], width=10) == ""
    assert len(sparkline(list(range(1000)), width=40)) == 40
