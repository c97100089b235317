"""Python packages for script jobs: wheels alone, installed once per set into a folder by content, kept up to a size.

No code of a package runs here: pip unpacks wheels and builds nothing. What a job asks for it sees read-only.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from weakref import WeakValueDictionary

from computepool import entropy
from computepool.node import journal

# Jobs are run by it: packages must fit it, not the agent's own.
PYTHON = "/usr/bin/python3"
INSTALL_SECONDS_MAX = 900.0
WORDS_MAX = 600
# By these a pip tells that it could not speak with its index; then a missing package says nothing about the job.
UNREACHABLE_SIGNS = (
    *("NewConnectionError", "ConnectTimeout", "ReadTimeout", "Connection refused", "Connection reset", "ProxyError"),
    *("name resolution", "Name or service not known", "Network is unreachable", "SSLError", "Max retries exceeded"),
    *("500 Server Error", "502 Server Error", "503 Server Error", "504 Server Error", "No space left"),
    *("No module named pip", "Connection broken", "IncompleteRead"),
)
DESCRIBE = (
    "import json, platform, sys, sysconfig; "
    "print(json.dumps([list(sys.version_info[:2]), sysconfig.get_platform(), platform.libc_ver()[1]]))"
)


class PackagesFailed(Exception):
    """The job's own list cannot be had: no such package, no wheel for this Python, versions that contradict."""


class PackagesUnreachable(Exception):
    """This node could not install anything just now: no line to the index, no pip, no disk."""


class PackageCache:
    def __init__(self, folder: Path, *, index_url: str, bytes_max: int) -> None:
        self._folder = folder
        self._index_url = index_url
        self._bytes_max = bytes_max
        self._pins: Counter[str] = Counter()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        if folder.exists():
            for draft in folder.glob("*.part"):
                shutil.rmtree(draft, ignore_errors=True)

    @property
    def is_offered(self) -> bool:
        return bool(self._index_url) and self._bytes_max > 0

    def pin(self, packages: Sequence[str]) -> str:
        """A pinned folder stays until every holder has let go: a job may be reading it."""
        key = self.key_of(packages)
        self._pins[key] += 1
        return key

    def unpin(self, key: str) -> None:
        self._pins[key] -= 1
        self._pins = +self._pins

    def key_of(self, packages: Sequence[str]) -> str:
        asked = sorted({" ".join(package.split()) for package in packages})
        return hashlib.sha256(json.dumps([asked, self._index_url]).encode()).hexdigest()

    async def prepare(self, packages: Sequence[str]) -> Path:
        """The folder with these packages, installed if need be. Raises PackagesFailed or PackagesUnreachable."""
        key = self.key_of(packages)
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            path = self._folder / key
            if await asyncio.to_thread(_touch, path):
                return path
            await asyncio.to_thread(self._install, sorted(set(packages)), path)
            return path

    def _install(self, packages: Sequence[str], path: Path) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.{entropy.new_secret(6)}.part")
        draft.mkdir(mode=0o755)
        try:
            run_pip(packages, draft, index_url=self._index_url, interpreter=describe_interpreter())
            size_bytes = _measure(draft)
            if size_bytes > self._bytes_max:
                raise PackagesFailed(
                    f"the packages take {size_bytes // 1_000_000} MB, and this node keeps "
                    f"{self._bytes_max // 1_000_000} MB at most: ask for fewer, or use an image"
                )
            _open_to_readers(draft)
            self._make_room(size_bytes)
            draft.rename(path)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        journal.info("packages_installed", packages=" ".join(packages)[:200], bytes=size_bytes)

    def _make_room(self, needed_bytes: int) -> None:
        """Removes the longest unused. Pinned ones stay even if that means too many bytes for a while."""
        found = [path for path in self._folder.iterdir() if not path.name.endswith(".part")]
        sizes = {path: _measure(path) for path in found}
        total = sum(sizes.values()) + needed_bytes
        for path in sorted(found, key=lambda each: each.stat().st_mtime_ns):
            if total <= self._bytes_max:
                return
            if not self._pins[path.name]:
                shutil.rmtree(path, ignore_errors=True)
                total -= sizes[path]


def describe_interpreter(python: str = PYTHON) -> tuple[str, list[str]]:
    """Version, and the platforms of wheels that fit, newest first."""
    try:
        said = subprocess.run([python, "-I", "-c", DESCRIBE], capture_output=True, timeout=30, check=True).stdout
        (major, minor), platform, libc = json.loads(said)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise PackagesUnreachable(f"{python} cannot be asked what fits it: {error}") from None
    machine = str(platform).rpartition("-")[2]
    platforms = []
    with contextlib.suppress(ValueError):
        newest = int(str(libc).split(".")[1]) if libc else 17
        platforms = [f"manylinux_2_{number}_{machine}" for number in range(newest, 4, -1)]
    platforms += [f"{name}_{machine}" for name in ("manylinux2014", "manylinux2010", "manylinux1", "linux")]
    return f"{major}.{minor}", platforms


def run_pip(packages: Sequence[str], target: Path, *, index_url: str, interpreter: tuple[str, list[str]]) -> None:
    version, platforms = interpreter
    command = [
        *(sys.executable, "-I", "-m", "pip", "install", "--target", str(target)),
        # A wheel is unpacked; anything else would run its author's code, here and now.
        *("--only-binary", ":all:", "--no-compile", "--implementation", "cp", "--python-version", version),
        *(word for platform in platforms for word in ("--platform", platform)),
        *("--index-url", index_url, "--no-input", "--no-cache-dir", "--disable-pip-version-check"),
        *("--no-warn-conflicts", "--retries", "2", "--timeout", "20", "--", *packages),
    ]
    # Nothing of the machine's settings: another index there might know another package of the same name.
    env = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PIP_CONFIG_FILE": os.devnull, "HOME": str(target.parent)}
    try:
        done = subprocess.run(
            command,
            env=env,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=INSTALL_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PackagesUnreachable(f"pip was not done after {INSTALL_SECONDS_MAX:.0f} seconds") from None
    except OSError as error:
        raise PackagesUnreachable(f"pip does not run here: {error}") from None
    if done.returncode != 0:
        raise judge_pip(done.stderr)


def judge_pip(words: str) -> PackagesFailed | PackagesUnreachable:
    """Whose fault it is, from what pip said."""
    errors = [line.removeprefix("ERROR: ") for line in words.splitlines() if line.startswith("ERROR")]
    told = "; ".join(errors)[-WORDS_MAX:] or words.strip()[-WORDS_MAX:] or "pip gave no reason"
    if any(sign in words for sign in UNREACHABLE_SIGNS):
        return PackagesUnreachable(f"this node could not reach its package index: {told}")
    return PackagesFailed(f"the packages cannot be installed (wheels only): {told}")


def _touch(path: Path) -> bool:
    """Whether it is there; its time of modification is the time of its last use."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    return True


def _measure(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*"))


def _open_to_readers(folder: Path) -> None:
    """The job runs under another user id; and no link in it may lead out."""
    for path in (folder, *folder.rglob("*")):
        if path.is_symlink():
            path.unlink()
        else:
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
