import pytest

from computepool.cli.fleet import find_last_words


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (
            [
                "2026-01-01T00:00:00.000Z INFO started",
                '2026-01-01T00:00:01.000Z ERROR cannot_start reason="No room."',
            ],
            ["No room."],
        ),
        (["2026-01-01T00:00:00.000Z ERROR broken"], ["ERROR broken"]),
        (["a", "b", "c", "d"], ["b", "c", "d"]),
        (["2026-01-01 00:00:00,123 INFO up"], ["INFO up"]),
        ([], ["no words"]),
    ],
)
def test_the_complaint_is_found_among_the_last_lines(lines: list[str], words: list[str]) -> None:
    assert find_last_words(lines) == words
