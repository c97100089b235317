"""What is taken out of a job's checkpoint folder, from folders that good and bad jobs leave behind."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from computepool.node.runner import checkpoints, files
from computepool.node.runner.checkpoints import MOVING_COUNT_MAX, CheckpointTaker

EVERY_SECONDS = 4.0


class Folder:
    """Stands for the sandbox: the one thing of it that is asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def open_checkpoint(self) -> int | None:
        try:
            return os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            return None


class Bench:
    """A taker whose clock the test turns."""

    def __init__(
        self,
        root: Path,
        *,
        bytes_max: int = 1 << 20,
        every_seconds: float = EVERY_SECONDS,
        restored: Mapping[str, bytes] = MappingProxyType({}),
        known: bool = True,
    ) -> None:
        """`restored` lies in the folder when the job begins; unless `known`, nobody tells the taker."""
        self.folder = root / "checkpoint"
        self.state = root / "state"
        self.folder.mkdir()
        self.state.mkdir()
        for name, content in restored.items():
            (self.folder / name).write_bytes(content)
        self.said: list[str] = []
        # Long ago, so that what the kernel notes of the files lies within the run.
        self.began = time.monotonic() - 1_000
        self.now = self.began
        self.taker = CheckpointTaker(
            str(self.state),
            Folder(self.folder),  # type: ignore[arg-type]
            every_seconds=every_seconds,
            bytes_max=bytes_max,
            say=self.said.append,
            now=self.began,
            restored={name: sha256_of(content) for name, content in restored.items()} if known else None,
        )

    def step(self) -> None:
        """Until its next wish is due, and a step then."""
        self.now = max(self.now, self.taker.next_at)
        self.taker.step(self.now)

    def run(self, steps: int = 6) -> dict[str, Any] | None:
        for _ in range(steps):
            self.step()
        return self.manifest()

    def manifest(self) -> dict[str, Any] | None:
        return files.find_json(str(self.state), files.CHECKPOINT)

    def ship(self, *, accepted: bool = True) -> None:
        """As the agent does when the hub has answered."""
        manifest = self.manifest()
        assert manifest is not None
        told = {"number": manifest["number"], "accepted": accepted}
        files.write_json(str(self.state), files.SHIPPED, told)

    def list_saved(self) -> set[str]:
        saved = self.state / files.SAVED
        return {path.name for path in saved.iterdir()} if saved.exists() else set()

    def paths(self) -> list[str]:
        manifest = self.manifest()
        return [file["path"] for file in manifest["files"]] if manifest else []

    def seal(self, number: int = 1) -> None:
        draft = self.folder / ".sealed.tmp"
        draft.write_text(str(number))
        draft.replace(self.folder / ".sealed")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def sha256_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_files_are_taken_with_their_hashes_once_the_interval_is_nearly_over(bench: Bench) -> None:
    (bench.folder / "deep").mkdir()
    (bench.folder / "a").write_bytes(b"one")
    (bench.folder / "deep" / "b").write_bytes(b"two")
    assert bench.taker.next_at - bench.began == pytest.approx(3.0)
    manifest = bench.run()
    assert manifest is not None
    assert [(f["path"], f["sha256"], f["size_bytes"]) for f in manifest["files"]] == [
        ("a", sha256_of(b"one"), 3),
        ("deep/b", sha256_of(b"two"), 3),
    ]
    assert bench.list_saved() == {sha256_of(b"one"), sha256_of(b"two")}
    assert manifest["number"] == 1


def test_an_empty_folder_is_no_checkpoint(bench: Bench) -> None:
    assert bench.run() is None
    bench.folder.rmdir()
    assert bench.run() is None


def test_a_file_that_is_written_to_is_not_taken(bench: Bench) -> None:
    path = bench.folder / "growing"
    path.write_bytes(b"half")
    for _ in range(2 * MOVING_COUNT_MAX):
        bench.step()
        with path.open("ab") as file:
            file.write(b"more")
    assert bench.manifest() is None
    assert ["written to all the time" in line for line in bench.said] == [True]
    # At rest at last.
    assert bench.run() is not None


def test_a_file_that_is_replaced_while_it_is_taken_is_taken_as_it_was(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "STEP_BYTES", 4)
    path = bench.folder / "state"
    path.write_bytes(b"the first state")
    bench.step()
    for number in range(8):
        draft = bench.folder / "state.tmp"
        draft.write_bytes(b"another state %d" % number)
        draft.replace(path)
        bench.step()
    manifest = bench.manifest()
    assert manifest is not None
    assert manifest["files"][0]["sha256"] == sha256_of(b"the first state")


def test_control_without_the_second_look_a_half_written_file_would_be_taken(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "_mark", lambda found: checkpoints.Mark(found.st_ino, 4, 0))
    path = bench.folder / "growing"
    path.write_bytes(b"half")
    bench.step()
    with path.open("ab") as file:
        file.write(b"more")
    manifest = bench.run()
    assert manifest is not None
    assert manifest["files"][0]["sha256"] == sha256_of(b"half")


def test_drafts_and_words_for_the_runner_stay_behind(bench: Bench) -> None:
    (bench.folder / ".draft").mkdir()
    (bench.folder / ".draft" / "x").write_text("x")
    for name in ("a.tmp", "b.part", ".sealed", ".progress", "kept"):
        (bench.folder / name).write_text("0.25")
    manifest = bench.run()
    assert manifest is not None
    assert bench.paths() == ["kept"]
    assert manifest["progress"] == 0.25


@pytest.mark.parametrize("text", ["", "much", "nan", "-1", "2", "9" * 100])
def test_a_word_on_progress_that_makes_no_sense_is_not_passed_on(bench: Bench, text: str) -> None:
    (bench.folder / ".progress").write_text(text)
    (bench.folder / "a").write_text("x")
    manifest = bench.run()
    assert manifest is not None
    assert manifest["progress"] is None


def test_a_job_that_seals_is_believed_and_without_its_seal_is_not(bench: Bench) -> None:
    (bench.folder / "a").write_text("one")
    bench.seal(1)
    # No quiet time is needed: the first step takes it.
    bench.step()
    assert bench.paths() == ["a"]
    bench.ship()
    (bench.folder / ".sealed").unlink()
    (bench.folder / "b").write_text("two")
    bench.run()
    assert bench.paths() == ["a"]
    bench.seal(2)
    bench.run()
    assert bench.paths() == ["a", "b"]


def test_nothing_is_sent_twice_and_only_what_changed_is_copied(bench: Bench) -> None:
    (bench.folder / "large").write_text("stays")
    (bench.folder / "small").write_text("1")
    bench.run()
    bench.ship()
    for _ in range(20):
        bench.step()
    assert bench.manifest()["number"] == 1  # type: ignore[index]
    (bench.folder / "small").write_text("22")
    manifest = bench.run()
    assert manifest is not None
    assert manifest["number"] == 2
    assert bench.paths() == ["large", "small"]
    assert bench.list_saved() == {sha256_of(b"22")}


def test_what_the_hub_refused_is_taken_anew_as_a_whole(bench: Bench) -> None:
    (bench.folder / "a").write_text("1")
    bench.run()
    bench.ship(accepted=False)
    manifest = bench.run(12)
    assert manifest is not None
    assert manifest["number"] == 2
    assert bench.list_saved() == {sha256_of(b"1")}


def test_no_more_is_taken_while_the_last_is_on_its_way(bench: Bench) -> None:
    (bench.folder / "a").write_text("1")
    bench.run()
    (bench.folder / "a").write_text("22")
    for _ in range(20):
        bench.step()
    assert bench.manifest()["number"] == 1  # type: ignore[index]
    assert bench.list_saved() == {sha256_of(b"1")}


@pytest.mark.parametrize("exit_code", [None, 1, 143])
def test_what_a_killed_or_failed_job_left_unsealed_is_not_taken(bench: Bench, exit_code: int | None) -> None:
    (bench.folder / "a").write_text("perhaps half")
    bench.taker.finish(exit_code=exit_code)
    assert bench.manifest() is None


def test_exit_code_85_says_that_all_is_whole(bench: Bench) -> None:
    (bench.folder / "a").write_text("all")
    bench.taker.finish(exit_code=85)
    assert bench.paths() == ["a"]


def test_a_new_seal_counts_although_the_job_was_killed_and_an_old_one_does_not(bench: Bench) -> None:
    (bench.folder / "a").write_text("one")
    bench.seal(1)
    bench.run()
    (bench.folder / "a").write_text("not sealed")
    bench.taker.finish(exit_code=None)
    assert bench.manifest()["number"] == 1  # type: ignore[index]
    bench.seal(2)
    bench.taker.finish(exit_code=None)
    assert bench.manifest()["number"] == 2  # type: ignore[index]


def test_a_result_makes_a_checkpoint_needless(bench: Bench) -> None:
    (bench.folder / "a").write_text("one")
    bench.seal(1)
    bench.taker.finish(exit_code=0)
    assert bench.manifest() is None


def test_it_holds_the_work_up_to_the_moment_when_it_was_saved(bench: Bench) -> None:
    (bench.folder / "a").write_text("one")
    # What a job can set is not believed.
    os.utime(bench.folder / "a", (0, 0))
    bench.taker.finish(exit_code=85)
    manifest = bench.manifest()
    assert manifest is not None
    assert 1_000 <= manifest["run_seconds"] <= time.monotonic() - bench.began


def break_by_link(folder: Path) -> None:
    (folder / "link").symlink_to("/etc/passwd")


def break_by_second_name(folder: Path) -> None:
    (folder.parent / "secret").write_text("secret")
    os.link(folder.parent / "secret", folder / "hard")


def break_by_pipe(folder: Path) -> None:
    os.mkfifo(folder / "pipe")


def break_by_size(folder: Path) -> None:
    with (folder / "sparse").open("wb") as file:
        file.truncate(2 << 20)


def break_by_sum(folder: Path) -> None:
    for name in ("one", "two"):
        (folder / name).write_bytes(bytes(700_000))


def break_by_count(folder: Path) -> None:
    for number in range(checkpoints.CHECKPOINT_FILES_MAX + 1):
        (folder / str(number)).touch()


def break_by_name(folder: Path) -> None:
    (folder / "new\nline").touch()


@pytest.mark.parametrize(
    "spoil",
    [
        break_by_link,
        break_by_second_name,
        break_by_pipe,
        break_by_size,
        break_by_sum,
        break_by_count,
        break_by_name,
    ],
)
def test_a_folder_with_something_of_no_use_is_not_taken_and_the_submitter_is_told(bench: Bench, spoil: Any) -> None:
    (bench.folder / "a").write_text("good")
    spoil(bench.folder)
    for _ in range(30):
        bench.step()
    assert bench.manifest() is None
    [line] = bench.said
    assert line.startswith("[computepool] the checkpoint was not saved: ")
    assert "secret" not in json.dumps(sorted(bench.list_saved()))


# The pace of a job that goes on from what an earlier attempt saved

# How long after it began a job asks itself whether to save, as computepool.job does: import and a step come on top.
SAVES_AFTER_SECONDS = 3.3


def find_arrival_seconds(bench: Bench, monkeypatch: pytest.MonkeyPatch, *, counts_from_look: bool = False) -> float:
    """When the first work of a resumed job has left the machine, if the hub answers at once."""
    saved_at = bench.began

    def find_age_seconds(held: object, run_seconds: float) -> float:
        """By the test's clock, not by the kernel's."""
        return run_seconds if counts_from_look else saved_at - bench.began

    monkeypatch.setattr(checkpoints, "_find_age_seconds", find_age_seconds)
    for _ in range(60):
        if saved_at == bench.began and bench.taker.next_at >= bench.began + SAVES_AFTER_SECONDS:
            saved_at = bench.began + SAVES_AFTER_SECONDS
            (bench.folder / "state.tmp").write_bytes(b"what it did itself")
            (bench.folder / "state.tmp").replace(bench.folder / "state")
        bench.step()
        manifest = bench.manifest()
        if manifest is not None:
            if manifest["files"][0]["sha256"] == sha256_of(b"what it did itself"):
                return bench.now - bench.began
            bench.ship()
    raise AssertionError("nothing of it was taken")


def test_the_first_work_of_a_resumed_job_leaves_within_its_first_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, restored={"state": b"of the attempt before"})
    assert find_arrival_seconds(bench, monkeypatch) <= EVERY_SECONDS
    # What it began with was not sent: the hub has it.
    assert bench.manifest()["number"] == 1  # type: ignore[index]


def test_control_what_was_restored_taken_for_news_would_cost_a_second_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, restored={"state": b"of the attempt before"}, known=False)
    assert find_arrival_seconds(bench, monkeypatch, counts_from_look=True) > 1.25 * EVERY_SECONDS


def test_what_was_restored_and_stays_is_not_copied_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, restored={"large": b"stays", "small": b"1"})
    bench.step()
    (bench.folder / "small").write_bytes(b"22")
    manifest = bench.run()
    assert manifest is not None
    assert {file["path"]: file["sha256"] for file in manifest["files"]} == {
        "large": sha256_of(b"stays"),
        "small": sha256_of(b"22"),
    }
    assert bench.list_saved() == {sha256_of(b"22")}


def test_a_restored_file_that_the_job_replaced_before_the_first_look_is_news(tmp_path: Path) -> None:
    bench = Bench(tmp_path, restored={"state": b"old"})
    (bench.folder / "state").write_bytes(b"new")
    bench.run()
    assert bench.list_saved() == {sha256_of(b"new")}


def test_a_restored_file_that_changes_while_it_is_recognised_is_news(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "STEP_BYTES", 4)
    bench = Bench(tmp_path, restored={"state": b"a long enough state"})
    bench.step()
    (bench.folder / "state").write_bytes(b"A long enough state")
    bench.run(20)
    assert bench.list_saved() == {sha256_of(b"A long enough state")}


# What saving has taken


def answer_after(bench: Bench, seconds: float) -> None:
    """The job saves, and the hub has it so long after it was found."""
    number = (bench.manifest() or {"number": 0})["number"]
    (bench.folder / "a").write_text(f"after {number}")
    while (bench.manifest() or {"number": 0})["number"] == number:
        bench.step()
    until = bench.now + seconds
    while bench.taker.next_at < until:
        bench.step()
    bench.ship()
    bench.step()


def read_lead(bench: Bench) -> float:
    return float((bench.folder / ".lead").read_text())


def test_the_job_is_told_to_save_earlier_where_saving_takes_long(tmp_path: Path) -> None:
    bench = Bench(tmp_path, every_seconds=20.0)
    answer_after(bench, 0.0)
    assert read_lead(bench) == 5.0
    answer_after(bench, 6.0)
    # Found by a look, quiet for a moment, on its way, seen by the next look.
    assert 6.0 <= read_lead(bench) <= 6.0 + 4 * checkpoints.QUIET_SECONDS
    answer_after(bench, 100.0)
    assert read_lead(bench) == 10.0
    assert bench.paths() == ["a"]


def test_what_the_job_itself_needs_for_writing_counts_among_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path, every_seconds=20.0)
    (bench.folder / "a").write_text("one")
    (bench.folder / ".sealed").write_text("1 6.000")
    bench.step()
    bench.ship()
    bench.step()
    assert 6.0 <= read_lead(bench) <= 6.0 + 3 * checkpoints.QUIET_SECONDS


@pytest.mark.parametrize("name", [".lead", ".lead.tmp"])
def test_no_link_in_the_way_of_that_word_is_followed(bench: Bench, name: str) -> None:
    target = bench.folder.parent / "elsewhere"
    target.write_text("untouched")
    (bench.folder / name).symlink_to(target)
    answer_after(bench, 0.0)
    assert target.read_text() == "untouched"
    assert read_lead(bench) > 0


def test_a_job_that_leaves_no_place_for_that_word_goes_without(bench: Bench) -> None:
    (bench.folder / ".lead.tmp").mkdir()
    answer_after(bench, 0.0)
    assert not (bench.folder / ".lead").exists()
    answer_after(bench, 0.0)
    assert bench.said == []


def test_what_the_hub_refused_is_not_sent_again_at_once(bench: Bench) -> None:
    (bench.folder / "a").write_text("1")
    bench.run(3)
    bench.ship(accepted=False)
    bench.step()
    assert bench.taker.next_at - bench.now >= EVERY_SECONDS / 2 - checkpoints.QUIET_SECONDS
