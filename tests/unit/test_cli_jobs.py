"""What people read about jobs and nodes."""

import io
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import click
import pytest
from rich.console import Console

from computepool.cli.jobs import describe_job, describe_requirements, explain_end, jobs_table, slices_table
from computepool.cli.nodes import list_tiers, nodes_table, word_for_state
from computepool.cli.watch import describe_end, describe_progress
from computepool.core.jobs.cause import Cause
from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.jobs.order import PriorityClass
from computepool.core.jobs.state import AttemptState, JobState, SliceState
from computepool.core.ledger.charging import PriceMode
from computepool.core.nodes.state import NodeState
from computepool.core.placement.slot import SlotKind
from computepool.core.placement.weights import Preference
from computepool.wire.jobs import Attempt, Job, JobPrice, OutputFile, Requirements, Slice, SliceCounts
from computepool.wire.nodes import Gpu, Hardware, Node, Offer, SlotView

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def make_job(**overrides: Any) -> Job:
    fields: dict[str, Any] = {
        "id": UUID(int=0xABCDEF12),
        "name": "train",
        "state": JobState.RUNNING,
        "slice_count": 10,
        "counts": SliceCounts(queued=3, leased=1, running=2, succeeded=3, failed=1),
        "priority": 0,
        "priority_class": PriorityClass.NORMAL,
        "prefer": Preference.VALUE,
        "retries": 2,
        "wall_seconds": 60,
        "requirements": Requirements(),
        "created_at": NOW - timedelta(minutes=3),
        "started_at": NOW - timedelta(minutes=2),
    }
    return Job(**(fields | overrides))


def make_attempt(**overrides: Any) -> Attempt:
    fields: dict[str, Any] = {
        "id": UUID(int=1),
        "number": 1,
        "node_id": UUID(int=2),
        "slot": "gpu:0",
        "state": AttemptState.FAILED,
        "leased_at": NOW,
    }
    return Attempt(**(fields | overrides))


def make_node(**overrides: Any) -> Node:
    slot: dict[str, Any] = {"cores": 8, "ram_bytes": 16 << 30, "disk_bytes": 1 << 40}
    fields: dict[str, Any] = {
        "id": UUID(int=3),
        "name": "attic-pc",
        "state": NodeState.ACTIVE,
        "online": True,
        "synthetic": False,
        "isolation": IsolationLevel.SANDBOXED,
        "hardware": Hardware(
            gpus=(Gpu(name="RTX 4090", vram_bytes=24 << 30),), cores=16, ram_bytes=32 << 30, disk_bytes=1
        ),
        "slots": [
            SlotView(name="gpu:0", kind=SlotKind.GPU, tier="rtx-4090", vram_bytes=24 << 30, busy=True, **slot),
            SlotView(name="cpu:0", kind=SlotKind.CPU, tier="cpu", vram_bytes=0, **slot),
        ],
        "created_at": NOW,
        "last_seen_at": NOW - timedelta(seconds=12),
    }
    return Node(**(fields | overrides))


def draw(table: Any) -> list[str]:
    console = Console(file=io.StringIO(), width=80, color_system=None)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert all(len(line) <= 80 for line in lines)
    return [" ".join(line.split()) for line in lines]


def test_a_job_is_one_line_of_its_table() -> None:
    free, paid = make_job(), make_job(charged_microcredits=1_500_000)
    assert draw(jobs_table([free], now=NOW))[2] == "abcdef12 train running 3/10 3 3 min 2 min 00"
    assert draw(jobs_table([paid], now=NOW))[2] == "abcdef12 train running 3/10 3 3 min 2 min 00 1.5 cr"


def test_a_name_with_brackets_or_escapes_is_shown_as_it_is() -> None:
    line = draw(jobs_table([make_job(name="[red]x[/red]\x1b[2J")], now=NOW))[2]
    assert "[red]x[/red]" in line
    assert "\x1b" not in line


def test_a_long_name_leaves_room_for_the_rest() -> None:
    lines = draw(jobs_table([make_job(name="n" * 200, slice_count=100_000)], now=NOW))
    assert len(lines) == 3
    assert lines[2].endswith("2 min 00")


def test_a_job_tells_what_it_needs() -> None:
    need = Requirements(vram_bytes=16_000_000_000, cores=4, tiers=("rtx-4090", "rtx-3090"), regions=("IN",))
    text = "16 GB VRAM, 4 cores, 512 MB RAM, 1 GB disk, tier rtx-4090 or rtx-3090, region IN, sandboxed"
    assert describe_requirements(need) == text
    assert describe_requirements(Requirements(gpu=True)).startswith("a GPU, 1 core,")
    priced = Requirements(ceiling_microcredits_per_hour=40_000_000)
    assert describe_requirements(priced).endswith("at most 40 credits/h, sandboxed")


def test_a_job_tells_what_it_would_rather_have() -> None:
    assert "wants      the best value, class normal" in describe_job(make_job(), now=NOW)
    price = JobPrice(
        mode=PriceMode.PER_SLICE, microcredits_per_slice=2_500_000, ceiling_microcredits_per_slice=6 * 10**6
    )
    assert "price      2.5 credits a slice x tier x region, at most 6" in describe_job(make_job(price=price), now=NOW)
    wishes = {"prefer": Preference.CHEAPEST, "priority_class": PriorityClass.HIGH, "priority": 3}
    lines = describe_job(make_job(**wishes, deadline_at=NOW), now=NOW)
    assert "wants      the cheapest slot, class high, priority 3" in lines
    assert any(line.startswith("deadline   2026-01-01 ") for line in lines)


def test_a_job_tells_how_far_it_is() -> None:
    assert describe_progress(make_job()) == "3 running, 3 queued, 1 failed"
    assert "slices     10 (3 queued, 1 leased, 2 running, 3 succeeded, 1 failed)" in describe_job(make_job(), now=NOW)
    ended = make_job(state=JobState.FAILED, finished_at=NOW)
    assert describe_end(ended) == "Job abcdef12 failed after 3 min 00: 3 of 10 slices succeeded, 1 failed."


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (make_attempt(cause=Cause.EXIT_CODE, exit_code=3, message="x"), "the program ended with exit code 3"),
        (make_attempt(cause=Cause.OUT_OF_MEMORY), "it used more memory than it asked for"),
        (
            make_attempt(cause=Cause.SANDBOX_REFUSED, message="no bwrap"),
            "the node could not give it a safe sandbox: no bwrap",
        ),
        (make_attempt(state=AttemptState.RUNNING), ""),
    ],
)
def test_the_reason_of_a_failure_is_said_in_plain_words(attempt: Attempt, words: str) -> None:
    assert explain_end(attempt) == words


def test_every_attempt_of_a_slice_has_its_line() -> None:
    output = OutputFile(path="model.bin", sha256="0" * 64, size_bytes=2_000_000)
    attempts = [
        make_attempt(cause=Cause.NODE_VANISHED, state=AttemptState.LOST),
        make_attempt(number=2, state=AttemptState.SUCCEEDED, run_seconds=65.0),
    ]
    done = Slice(index=0, state=SliceState.SUCCEEDED, attempt_count=2, outputs=[output], attempts=attempts)
    waiting = Slice(index=1, state=SliceState.QUEUED, attempt_count=0)
    assert draw(slices_table([done, waiting]))[2:] == [
        "0 1 lost 00000002 gpu:0 - the node went silent",
        "2 succeeded 00000002 gpu:0 1 min 05 model.bin (2 MB)",
        "1 queued",
    ]


def test_a_node_is_one_line_of_its_table() -> None:
    line = draw(nodes_table([make_node()], now=NOW))[2]
    assert line == "00000003 attic-pc online rtx-4090 24G 16 32G 1/2 12 s"


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({}, "online"),
        ({"online": False}, "offline"),
        ({"state": NodeState.PAUSED}, "paused"),
        ({"state": NodeState.PAUSED, "online": False}, "offline"),
        ({"state": NodeState.REMOVED, "online": False}, "removed"),
        ({"offer": Offer(opens_at=NOW)}, "closed"),
        ({"offer": Offer(opens_at=NOW), "state": NodeState.PAUSED}, "paused"),
    ],
)
def test_a_nodes_state_is_one_word(fields: dict[str, Any], word: str) -> None:
    assert word_for_state(make_node(**fields)) == word


def test_a_machine_without_a_card_has_the_tier_of_its_cpu() -> None:
    assert list_tiers(make_node()) == ["rtx-4090"]
    assert list_tiers(make_node(slots=make_node().slots[1:])) == ["cpu"]


def test_requirements_are_a_file_or_a_list_whose_versions_may_have_commas(tmp_path: Path) -> None:
    from computepool.cli.run import choose_requirements

    file = tmp_path / "requirements.txt"
    file.write_text("numpy\n")

    assert choose_requirements(str(file)) == file
    assert choose_requirements("torch>=2.4,<3, numpy") == ["torch>=2.4,<3", "numpy"]
    with pytest.raises(click.UsageError, match="no file"):
        choose_requirements("absent.txt")
