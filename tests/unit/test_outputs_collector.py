"""The collector of outputs, against folders made by the worst of jobs."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from computepool.node.runner import outputs
from computepool.node.runner.outputs import Collector


def collect(source: Path, target: Path, *, bytes_max: int = 1 << 20, entry_count_max: int = 1000) -> Collector:
    collector = Collector(str(target), bytes_max=bytes_max, entry_count_max=entry_count_max)
    fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY)
    try:
        collector.collect(fd)
    finally:
        os.close(fd)
    return collector


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def reasons(collector: Collector) -> dict[str, str]:
    return {refused.path: refused.reason for refused in collector.refused}


def test_files_are_copied_and_hashed_in_a_fixed_order(out: Path, tmp_path: Path) -> None:
    (out / "b").write_bytes(b"two")
    (out / "a").mkdir()
    (out / "a" / "x").write_bytes(b"one")
    collector = collect(out, tmp_path / "target")

    assert [output.path for output in collector.collected] == ["a/x", "b"]
    assert collector.collected[1].sha256 == hashlib.sha256(b"two").hexdigest()
    assert (tmp_path / "target" / "a" / "x").read_bytes() == b"one"
    assert collector.refused == []


def test_links_pipes_and_second_names_stay_behind(out: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (out / "link").symlink_to(tmp_path / "secret")
    (out / "folder").symlink_to(tmp_path)
    os.mkfifo(out / "pipe")
    os.link(tmp_path / "secret", out / "hard")
    collector = collect(out, tmp_path / "target")

    assert collector.collected == []
    assert set(reasons(collector)) == {"link", "folder", "pipe", "hard"}


def test_sum_of_all_files_is_limited(out: Path, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (out / name).write_bytes(bytes(400))
    collector = collect(out, tmp_path / "target", bytes_max=1000)

    assert [output.path for output in collector.collected] == ["a", "b"]
    assert "200 that are left" in reasons(collector)["c"]


def test_sparse_giant_is_refused_without_being_read(out: Path, tmp_path: Path) -> None:
    with (out / "giant").open("wb") as file:
        file.truncate(64 << 30)

    assert "do not fit" in reasons(collect(out, tmp_path / "target"))["giant"]


def test_number_of_entries_is_limited(out: Path, tmp_path: Path) -> None:
    for number in range(30):
        (out / f"{number:02}").touch()
    collector = collect(out, tmp_path / "target", entry_count_max=10)

    assert len(collector.collected) == 10
    assert "more than 10 entries" in reasons(collector)[""]


def test_entries_of_folders_count_too(out: Path, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (out / folder).mkdir()
        for number in range(6):
            (out / folder / str(number)).touch()

    assert len(collect(out, tmp_path / "target", entry_count_max=10).collected) == 8


def test_endless_depth_is_cut(out: Path, tmp_path: Path) -> None:
    deep = out
    for _ in range(outputs.DEPTH_MAX + 2):
        deep = deep / "d"
        deep.mkdir()
    (deep / "x").touch()
    collector = collect(out, tmp_path / "target")

    assert collector.collected == []
    assert any("deeper" in reason for reason in reasons(collector).values())


@pytest.mark.parametrize("name", [b"a\nb", b"a\x1b[2Jb", b"\xff\xfe", b"a\\b", "a\u202eb".encode(), b"\x7f"])
def test_name_that_could_fool_a_reader_is_refused(name: bytes, out: Path, tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(out) + b"/" + name)).touch()
    collector = collect(out, tmp_path / "target")

    assert collector.collected == []
    assert all(path.isprintable() for path in reasons(collector))


@pytest.mark.parametrize("name", ["ordinary.txt", "with space", "ünïcode", "日本", "-dash", ".hidden", "a:b*?"])
def test_unusual_but_plain_name_is_kept(name: str, out: Path, tmp_path: Path) -> None:
    (out / name).write_text("x")

    assert [output.path for output in collect(out, tmp_path / "target").collected] == [name]


def test_list_of_refusals_is_limited(out: Path, tmp_path: Path) -> None:
    for number in range(outputs.REFUSED_COUNT_MAX + 20):
        (out / str(number)).symlink_to("/")
    collector = collect(out, tmp_path / "target")

    assert len(collector.refused) == outputs.REFUSED_COUNT_MAX + 1
    assert collector.refused[-1].reason == "and 20 more were refused"


def test_file_that_grows_while_it_is_copied_is_taken_at_its_first_size(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(5000))
    fd = os.open(source, os.O_RDONLY)
    try:
        output = outputs.copy_and_hash(fd, str(tmp_path / "target" / "x"), "x", 1000)
    finally:
        os.close(fd)

    assert output.size_bytes == 1000
    assert output.sha256 == hashlib.sha256(bytes(1000)).hexdigest()
