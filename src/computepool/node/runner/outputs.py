"""Takes the results out of the job's folder: regular files with plain names, copied and hashed.

The folder was written by a stranger and is read by root: nothing in it is followed, nothing is believed.
Refused files are named with their reason; they never fail the job.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import stat

from computepool.node.runner.status import Output, RefusedOutput

CHUNK_BYTES = 1024 * 1024
ENTRY_COUNT_MAX = 10_000
DEPTH_MAX = 32
PATH_BYTES_MAX = 1024
REFUSED_COUNT_MAX = 100
OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
OPEN_DIR = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class RefusedEntry(Exception):
    """Why one entry stays behind."""


class Collector:
    """One walk over one output folder."""

    def __init__(self, target_dir: str, *, bytes_max: int, entry_count_max: int = ENTRY_COUNT_MAX) -> None:
        self.collected: list[Output] = []
        self.refused: list[RefusedOutput] = []
        self._target_dir = target_dir
        # Of all files together. Holes count like data, so that a sparse bomb stays outside.
        self._bytes_left = bytes_max
        self._entry_count_max = entry_count_max
        self._entries_left = entry_count_max
        self._unnamed_count = 0

    def collect(self, folder_fd: int) -> None:
        self._walk(folder_fd, "", depth=0)
        if self._unnamed_count:
            self.refused.append(RefusedOutput("", f"and {self._unnamed_count} more were refused"))

    def _walk(self, folder_fd: int, prefix: str, *, depth: int) -> None:
        # Lazily: a folder with ten million names must not fill our memory either.
        with os.scandir(folder_fd) as entries:
            names = sorted(entry.name for entry in itertools.islice(entries, self._entries_left + 1))
        if len(names) > self._entries_left:
            names = names[: self._entries_left]
            self._refuse(prefix, f"more than {self._entry_count_max} entries; the rest is left behind")
        self._entries_left -= len(names)
        for name in names:
            path = prefix + name
            try:
                self._take(folder_fd, name, path, depth=depth)
            except RefusedEntry as refusal:
                self._refuse(path, str(refusal))
            except OSError as error:
                self._refuse(path, f"cannot be read or stored: {error.strerror}")

    def _take(self, folder_fd: int, name: str, path: str, *, depth: int) -> None:
        check_name(name, path)
        found = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode):
            if depth >= DEPTH_MAX:
                raise RefusedEntry(f"folders deeper than {DEPTH_MAX}")
            fd = os.open(name, OPEN_DIR, dir_fd=folder_fd)
            try:
                self._walk(fd, path + "/", depth=depth + 1)
            finally:
                os.close(fd)
            return
        check_file(found, bytes_left=self._bytes_left)
        fd = os.open(name, OPEN_FILE, dir_fd=folder_fd)
        try:
            # Looked at again through the descriptor: what was a file a moment ago must still be one.
            opened = os.fstat(fd)
            check_file(opened, bytes_left=self._bytes_left)
            output = copy_and_hash(fd, os.path.join(self._target_dir, path), path, opened.st_size)
        finally:
            os.close(fd)
        self._bytes_left -= output.size_bytes
        self.collected.append(output)

    def _refuse(self, path: str, reason: str) -> None:
        if len(self.refused) >= REFUSED_COUNT_MAX:
            self._unnamed_count += 1
            return
        self.refused.append(RefusedOutput(to_printable(path), reason))


def check_name(name: str, path: str) -> None:
    """A name that every system can store and every terminal can show. Raises with the reason."""
    # Not printable: control characters, direction marks, and bytes that are not UTF-8.
    if not name.isprintable() or "\\" in name:
        raise RefusedEntry("the name holds characters that not every system can store")
    if len(path.encode()) > PATH_BYTES_MAX:
        raise RefusedEntry(f"the path is longer than {PATH_BYTES_MAX} bytes")


def check_file(found: os.stat_result, *, bytes_left: int) -> None:
    if not stat.S_ISREG(found.st_mode):
        kinds = ((stat.S_ISLNK, "a link"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))
        kind = next((words for test, words in kinds if test(found.st_mode)), "a device")
        raise RefusedEntry(f"{kind}, not a regular file")
    if found.st_nlink != 1:
        raise RefusedEntry("the file has a second name")
    if found.st_size > bytes_left:
        raise RefusedEntry(f"{found.st_size} bytes do not fit into the {bytes_left} that are left for outputs")


def copy_and_hash(source_fd: int, target: str, path: str, size_bytes: int) -> Output:
    """Copy at most `size_bytes`, so that a file that grows cannot break the sum."""
    os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
    digest = hashlib.sha256()
    left = size_bytes
    with open(target, "xb", buffering=0) as file:
        try:
            while left > 0 and (chunk := os.read(source_fd, min(CHUNK_BYTES, left))):
                left -= len(chunk)
                digest.update(chunk)
                file.write(chunk)
        except BaseException:
            os.unlink(target)
            raise
    return Output(path, size_bytes - left, digest.hexdigest())


def to_printable(path: str) -> str:
    """For the report: what cannot be shown is escaped, and a long name is cut."""
    return (
        path.encode("unicode_escape", "surrogatepass").decode("ascii")[:256] if not path.isprintable() else path[:256]
    )
