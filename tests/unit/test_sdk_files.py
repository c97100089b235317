import os
from pathlib import Path

import pytest

from computepool.core.errors import InvalidSpec
from computepool.sdk.files import collect_files, read_packages, read_script


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    for name in (
        "data/train.csv",
        "data/deep/x.bin",
        "data/.git/config",
        "data/__pycache__/y.pyc",
        "main.py",
        "one.txt",
    ):
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    monkeypatch.chdir(home)
    return home


def names(*paths: Path | str, has_script: bool = False) -> list[str]:
    return [file.name for file in collect_files(paths, has_script=has_script)]


def test_a_relative_path_keeps_its_folders(home: Path) -> None:
    assert names("data/train.csv", "./one.txt") == ["data/train.csv", "one.txt"]


def test_an_absolute_path_keeps_its_last_name(home: Path) -> None:
    assert names(home / "data" / "train.csv") == ["train.csv"]
    assert names(home / "data") == ["data/train.csv", "data/deep/x.bin"]


def test_a_path_that_leads_upwards_keeps_its_last_name(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home / "data" / "deep")
    assert names("../train.csv", "../../one.txt") == ["train.csv", "one.txt"]


def test_a_folder_is_taken_whole_but_for_what_nobody_means(home: Path) -> None:
    assert names("data") == ["data/train.csv", "data/deep/x.bin"]
    assert names(".") == ["main.py", "one.txt", "data/train.csv", "data/deep/x.bin"]


def test_a_file_named_twice_is_sent_once(home: Path) -> None:
    assert names("data", "data/train.csv") == ["data/train.csv", "data/deep/x.bin"]


def test_two_files_of_one_name_are_refused(home: Path) -> None:
    (home / "train.csv").write_text("another")
    with pytest.raises(InvalidSpec, match="would both be"):
        names("train.csv", home / "data" / "train.csv")


def test_the_scripts_own_name_is_taken(home: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"main\.py"):
        names("main.py", has_script=True)
    assert names("main.py") == ["main.py"]


def test_too_many_files_are_refused_before_they_are_read(tmp_path: Path) -> None:
    for i in range(1001):
        (tmp_path / str(i)).touch()
    with pytest.raises(InvalidSpec, match="1,001 files"):
        names(tmp_path)


def test_a_script_is_a_path_or_a_text_with_a_line_break(home: Path) -> None:
    assert read_script("main.py") == read_script(home / "main.py") == "main.py"
    assert read_script("print(1)\n") == "print(1)\n"
    with pytest.raises(InvalidSpec, match="no script"):
        read_script("print(1)")
    with pytest.raises(InvalidSpec, match="no script"):
        read_script("data")


def test_a_program_that_is_not_text_is_refused_as_script(home: Path) -> None:
    (home / "tool").write_bytes(b"\x7fELF\xff\xfe")
    with pytest.raises(InvalidSpec, match="UTF-8"):
        read_script("tool")


def test_a_name_that_is_not_text_is_refused(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")).touch()
    with pytest.raises(InvalidSpec, match="rename the file"):
        names(tmp_path)


def test_requirements_are_a_list_or_a_file_without_its_comments(tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("# pinned\nnumpy==2.1.0  # fast\n\ntorch>=2.4,<3\n")

    assert read_packages(file) == ("numpy==2.1.0", "torch>=2.4,<3")
    assert read_packages(str(file)) == read_packages(file)
    assert read_packages(["numpy  ==2"]) == ("numpy ==2",)
    with pytest.raises(InvalidSpec, match="cannot be read"):
        read_packages(tmp_path / "absent.txt")
