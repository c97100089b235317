"""What operators may type of inputs and accounts, and what they read of nodes."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import click
import pytest

from computepool.cli.operator import blocked_table, distrusted_table, hash_of
from computepool.core.trust.standing import Standing
from computepool.wire.blocked_inputs import BlockedInput
from computepool.wire.trust import DistrustedNode, WrongSpan

SHA256 = hashlib.sha256(b"mine").hexdigest()


def test_an_input_is_named_by_its_hash_or_by_the_file_itself(tmp_path: Path) -> None:
    path = tmp_path / "miner"
    path.write_bytes(b"mine")
    assert hash_of(str(path)) == hash_of(SHA256) == SHA256


@pytest.mark.parametrize("what", ["no-such-file", SHA256[:-1], SHA256.upper()])
def test_what_is_neither_is_refused(what: str) -> None:
    with pytest.raises(click.UsageError, match="neither"):
        hash_of(what)


def test_the_list_shows_whole_hashes_so_that_they_can_be_used() -> None:
    found = BlockedInput(sha256=SHA256, why="a miner", blocked_at=datetime(2026, 1, 1, tzinfo=UTC))
    assert [str(cell) for cell in blocked_table([found]).columns[0].cells] == [SHA256]


def test_the_list_of_distrusted_nodes_says_what_was_found_and_by_whom() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    span = WrongSpan(
        run_id=UUID(int=3), seat="seat-0", from_step=0, until_step=10, witness_count=2, message="", decided_at=at
    )
    node = DistrustedNode(
        node_id=UUID(int=1), node_name="bad-ram", owner_id=UUID(int=2), standing=Standing.BUGGED, words="Out.",
        bugged_count=1, validated_count=7, checked_count=50, wrong_count=3, since=at, wrong_spans=[span],
    )  # fmt: skip
    row = [str(next(iter(column.cells))) for column in distrusted_table([node]).columns]
    assert row == [
        "bad-ram", str(node.node_id), "bugged", "2026-01-01 00:00", "3 of 50, 1 span of networks", "Out.",
    ]  # fmt: skip
