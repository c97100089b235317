"""Python packages for jobs, by the real pip from an index that is a folder of wheels."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from computepool.node.packages import PYTHON, PackageCache, PackagesFailed, PackagesUnreachable, judge_pip
from tests.support.wheels import add_sdist, add_wheel


@pytest.fixture
def index(tmp_path: Path) -> Path:
    folder = tmp_path / "simple"
    add_wheel(folder, "tiny", "1.0")
    add_wheel(folder, "tiny", "2.0")
    add_wheel(folder, "leaning", needs="tiny<2")
    return folder


def make_cache(tmp_path: Path, index: Path | str, *, bytes_max: int = 10**8) -> PackageCache:
    url = index if isinstance(index, str) else index.as_uri()
    return PackageCache(tmp_path / "cache", index_url=url, bytes_max=bytes_max)


def versions(folder: Path) -> str:
    command = [PYTHON, "-B", "-c", "import leaning, tiny; print(leaning.VERSION, tiny.VERSION)"]
    env = {"PYTHONPATH": str(folder)}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.strip()


def test_packages_are_installed_with_what_they_need_and_only_once(tmp_path: Path, index: Path) -> None:
    cache = make_cache(tmp_path, index)
    folder = asyncio.run(cache.prepare(["leaning"]))
    assert versions(folder) == "1.0 1.0"
    made = folder.stat().st_ino

    (index / "leaning" / "index.html").write_text("")
    again = asyncio.run(cache.prepare(["leaning"]))

    assert (again, again.stat().st_ino) == (folder, made)
    assert asyncio.run(cache.prepare(["tiny==2.0"])) != folder
    assert folder.stat().st_mode & 0o777 == 0o755
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {folder.name, cache.key_of(["tiny==2.0"])}


def test_same_packages_in_another_order_are_the_same_folder(tmp_path: Path, index: Path) -> None:
    cache = make_cache(tmp_path, index)

    assert cache.key_of(["a", "b  >=1"]) == cache.key_of(["b >=1", "a", "a"])
    assert cache.key_of(["a"]) != make_cache(tmp_path, "https://elsewhere").key_of(["a"])


@pytest.mark.parametrize("asked", [["absent"], ["tiny==9"], ["leaning", "tiny==2.0"]])
def test_list_that_cannot_be_had_is_the_jobs_fault(asked: list[str], tmp_path: Path, index: Path) -> None:
    with pytest.raises(PackagesFailed, match="cannot be installed"):
        asyncio.run(make_cache(tmp_path, index).prepare(asked))

    assert list((tmp_path / "cache").iterdir()) == []


def test_source_archive_is_refused_and_its_code_never_runs(tmp_path: Path, index: Path) -> None:
    marker = tmp_path / "marker"
    add_sdist(index, "sourced", marker)
    # The control: with sources allowed, pip runs the author's code.
    target = tmp_path / "control"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--no-build-isolation",
        "--target",
        str(target),
    ]
    subprocess.run([*pip, "--index-url", index.as_uri(), "sourced"], capture_output=True, timeout=60, check=False)
    assert marker.exists(), "the control ran nothing, so this proves nothing"
    marker.unlink()

    with pytest.raises(PackagesFailed, match="No matching distribution"):
        asyncio.run(make_cache(tmp_path, index).prepare(["sourced"]))

    assert not marker.exists()


def test_wheel_for_another_python_is_the_jobs_fault(tmp_path: Path, index: Path) -> None:
    add_wheel(index, "foreign", tag="cp27-cp27m-win32")

    with pytest.raises(PackagesFailed):
        asyncio.run(make_cache(tmp_path, index).prepare(["foreign"]))


def test_index_that_does_not_answer_is_the_nodes_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nobody listens on port 9 of a machine without the discard service.
    with pytest.raises(PackagesUnreachable, match="could not reach"):
        asyncio.run(make_cache(tmp_path, "http://127.0.0.1:9/simple").prepare(["tiny"]))


def test_words_of_pip_decide_whose_fault_it_is() -> None:
    offline = "WARNING: Retrying ... NewConnectionError ...\nERROR: No matching distribution found for numpy"
    assert isinstance(judge_pip(offline), PackagesUnreachable)
    assert isinstance(judge_pip("ERROR: No matching distribution found for nmupy"), PackagesFailed)
    assert isinstance(judge_pip("ERROR: ResolutionImpossible"), PackagesFailed)
    assert isinstance(judge_pip("/usr/bin/python3: No module named pip"), PackagesUnreachable)


def test_longest_unused_goes_first_and_pinned_ones_stay(tmp_path: Path, index: Path) -> None:
    for name in ("one", "two", "three"):
        add_wheel(index, name)
    cache = make_cache(tmp_path, index)
    folders = {name: asyncio.run(cache.prepare([name])) for name in ("one", "two")}
    one_bytes = sum(path.lstat().st_size for path in folders["one"].rglob("*"))
    small = make_cache(tmp_path, index, bytes_max=2 * one_bytes + one_bytes // 2)
    old = time.time() - 1000
    os.utime(folders["one"], (old, old))
    os.utime(folders["two"], (old + 500, old + 500))

    pinned = small.pin(["one"])
    asyncio.run(small.prepare(["three"]))

    assert folders["one"].exists()
    assert not folders["two"].exists()
    small.unpin(pinned)


def test_packages_that_are_too_large_are_refused_with_the_sizes(tmp_path: Path, index: Path) -> None:
    with pytest.raises(PackagesFailed, match="ask for fewer"):
        asyncio.run(make_cache(tmp_path, index, bytes_max=100).prepare(["tiny"]))


def test_half_made_folders_of_an_earlier_agent_are_swept_away(tmp_path: Path, index: Path) -> None:
    (tmp_path / "cache" / "abc.part").mkdir(parents=True)
    make_cache(tmp_path, index)

    assert list((tmp_path / "cache").iterdir()) == []
