"""Files on their way to the hub and back: which ones, under which name, with which hash.

A name that comes from the hub is a stranger's word: nothing is ever written outside the folder asked for.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from computepool.core.errors import InvalidSpec
from computepool.core.jobs.spec import FILES_MAX, SCRIPT_FILE_NAME, is_safe_relative_path
from computepool.wire.jobs import InputFile, OutputFile

# Never meant when somebody hands in a whole folder, and often larger than all the rest.
SKIPPED_FOLDERS = frozenset({".git", ".venv", "__pycache__"})


class DamagedDownload(OSError):
    """What arrived is not what the node delivered, or may not be written where it wants to be."""

    code = "damaged_download"


@dataclass(frozen=True, slots=True)
class LocalFile:
    """`name` is the path inside the job's folder."""

    source: Path
    name: str


def read_script(script: Path | str) -> str:
    """A path's content; a text with a line break in it is the source itself."""
    if isinstance(script, str) and "\n" in script:
        return script
    try:
        return Path(script).read_text(encoding="utf-8")
    except (FileNotFoundError, IsADirectoryError):
        raise InvalidSpec(
            f"There is no script {str(script)!r}. (Source text is taken as such if it contains a line break.)"
        ) from None
    except UnicodeDecodeError:
        raise InvalidSpec(
            f"The script {str(script)!r} is not UTF-8 text. Hand it in with files= and a command."
        ) from None


def collect_files(paths: Sequence[Path | str], *, has_script: bool) -> list[LocalFile]:
    """A relative path keeps its folders, so that a program finds its files as it did at home;
    an absolute one, or one that leads upwards, keeps its last name only. Folders are taken whole."""
    found: dict[str, LocalFile] = {}
    for path in map(Path, paths):
        for file in _expand(path):
            if not is_safe_relative_path(file.name) or not _is_utf8(file.name):
                raise InvalidSpec(f"The file name {file.name!r} cannot be used in a job; rename the file.")
            if file.name in found and found[file.name].source.resolve() != file.source.resolve():
                raise InvalidSpec(
                    f"{found[file.name].source} and {file.source} would both be {file.name!r} in the job."
                )
            found[file.name] = file
    if has_script and SCRIPT_FILE_NAME in found:
        raise InvalidSpec(
            f"The script is placed as {SCRIPT_FILE_NAME}; a file of that name cannot be handed in with it."
        )
    if len(found) > FILES_MAX:
        raise InvalidSpec(f"There are {len(found):,} files; a job takes {FILES_MAX:,}. Pack them into an archive.")
    return list(found.values())


def _is_utf8(name: str) -> bool:
    """Whether the name is text at all; a file system may hold others, which Python marks with surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in name)


def _expand(path: Path) -> Iterator[LocalFile]:
    name = _job_name(path)
    if path.is_file():
        yield LocalFile(path, name.as_posix())
    elif path.is_dir():
        for folder, folders, files in os.walk(path):
            folders[:] = sorted(set(folders) - SKIPPED_FOLDERS)
            for file in sorted(files):
                source = Path(folder, file)
                if source.is_file():
                    yield LocalFile(source, (name / source.relative_to(path).as_posix()).as_posix())
    else:
        raise InvalidSpec(f"There is no file or folder {str(path)!r}.")


def _job_name(path: Path) -> PurePosixPath:
    normal = Path(os.path.normpath(path))
    if normal.is_absolute():
        return PurePosixPath(normal.name)
    if ".." in normal.parts:
        return PurePosixPath(path.resolve().name)
    return PurePosixPath(normal.as_posix())


def describe_file(file: LocalFile) -> InputFile:
    stat = file.source.stat()
    return InputFile(
        path=file.name,
        sha256=hash_file(file.source),
        size_bytes=stat.st_size,
        executable=bool(stat.st_mode & 0o100),
    )


def hash_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def place_output(root: Path, output: OutputFile) -> Path:
    """Where an output may be written: below `root`, not through a link that leads out of it."""
    if not is_safe_relative_path(output.path):
        raise DamagedDownload(f"The output name {output.path!r} leads out of its folder; it was not written.")
    target = root / output.path
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.parent.resolve().is_relative_to(root.resolve()):
        raise DamagedDownload(f"{target.parent} leads out of {root}; {output.path!r} was not written.")
    return target


def is_present(target: Path, output: OutputFile) -> bool:
    """Whether an earlier download left exactly this file, so that a repeated one costs nothing."""
    if target.is_symlink() or not target.is_file() or target.stat().st_size != output.size_bytes:
        return False
    return hash_file(target) == output.sha256


def write_verified(target: Path, output: OutputFile, pieces: Iterator[bytes]) -> Path:
    """The file appears under its name only when every byte of it has been checked."""
    # Named by the path and not by the content: two outputs that are equal may be on their way at once.
    draft = target.with_name(f".{hashlib.sha256(output.path.encode()).hexdigest()[:16]}.{os.getpid()}.part")
    digest, size_bytes = hashlib.sha256(), 0
    try:
        with draft.open("wb") as file:
            for piece in pieces:
                size_bytes += len(piece)
                # A hub that never stops sending must not fill the disk.
                if size_bytes > output.size_bytes:
                    break
                digest.update(piece)
                file.write(piece)
        if size_bytes != output.size_bytes or digest.hexdigest() != output.sha256:
            raise DamagedDownload(f"{output.path} arrived with another content than the node delivered. Try again.")
        os.replace(draft, target)
    finally:
        draft.unlink(missing_ok=True)
    return target


def read_packages(given: Sequence[str] | Path | str) -> tuple[str, ...]:
    """A list of packages, or the lines of a requirements file without its comments."""
    if not isinstance(given, (str, Path)):
        return tuple(" ".join(each.split()) for each in given)
    try:
        lines = Path(given).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSpec(f"The requirements file {str(given)!r} cannot be read: {error}.") from None
    plain = (line.partition(" #")[0].strip() for line in lines)
    return tuple(line for line in plain if line and not line.startswith("#"))
