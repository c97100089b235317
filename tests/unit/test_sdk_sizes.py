from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from computepool.core.errors import InvalidSpec
from computepool.core.placement.price import format_credits
from computepool.sdk import format_size, parse_credits, parse_size


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("24GB", 24_000_000_000),
        ("24GiB", 24 * 1024**3),
        ("24 gb", 24_000_000_000),
        ("24G", 24_000_000_000),
        ("24gib", 24 * 1024**3),
        ("1.5GB", 1_500_000_000),
        ("0.1kb", 100),
        ("1.0001kB", 1001),
        ("512", 512),
        ("512B", 512),
        ("0", 0),
        (1234, 1234),
        ("2TB", 2 * 10**12),
    ],
)
def test_sizes_are_read_as_people_write_them(text: int | str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "24XB", "24 G B", "1e9", "24iB", "1,5GB", -1, True, 1.5, None])
def test_what_is_not_a_size_is_refused_with_an_example(text: object) -> None:
    with pytest.raises(InvalidSpec):
        parse_size(text)  # type: ignore[arg-type]


@given(st.integers(min_value=0, max_value=10**15))
def test_a_number_of_bytes_survives_as_number_and_as_text(size_bytes: int) -> None:
    assert parse_size(size_bytes) == parse_size(str(size_bytes)) == parse_size(f"{size_bytes}B") == size_bytes


@given(st.decimals(min_value=0, max_value=10**6, places=4), st.sampled_from(["kB", "MB", "GB", "KiB", "GiB"]))
def test_a_size_is_never_rounded_down(number: object, unit: str) -> None:
    factor = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "GiB": 2**30}[unit]
    parsed = parse_size(f"{number}{unit}")
    assert parsed >= number * factor > parsed - 1  # type: ignore[operator]


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (25_757_220_864, "25.8 GB"),
        (16_000_000_000, "16 GB"),
        (10**12, "1 TB"),
    ],
)
def test_sizes_are_shown_short(size_bytes: int, text: str) -> None:
    assert format_size(size_bytes) == text


@pytest.mark.parametrize(
    ("text", "microcredits"),
    [
        (40, 40_000_000),
        ("40", 40_000_000),
        (" 0.5 ", 500_000),
        (0.1, 100_000),
        (Decimal("0.000001"), 1),
        ("1e3", 1_000_000_000),
        (0, 0),
    ],
)
def test_credits_are_read_as_people_write_them(text: object, microcredits: int) -> None:
    assert parse_credits(text) == microcredits  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "x", "-1", -1, "0.0000001", "nan", "inf", True, None, "1,5"])
def test_what_is_not_a_number_of_credits_is_refused_with_an_example(text: object) -> None:
    with pytest.raises(InvalidSpec, match="Write it as 40"):
        parse_credits(text)  # type: ignore[arg-type]


@given(st.integers(min_value=0, max_value=10**15))
def test_a_price_survives_being_said_and_read(microcredits: int) -> None:
    assert parse_credits(format_credits(microcredits).replace(",", "")) == microcredits
