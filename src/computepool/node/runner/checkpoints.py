"""Takes what the job has saved out of its checkpoint folder, whole or not at all, while the job goes on.

The files are held open from the first look to the last, so that one that is replaced meanwhile is still there; one
that is written to meanwhile is not taken. In small steps: whoever asks the job to stop never waits for a copy.
Written by a stranger and read by root, as the outputs are: nothing in the folder is followed, nothing is believed.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
import os
import shutil
import stat
import time
from collections.abc import Callable, Generator
from typing import NamedTuple

from computepool.core.jobs.checkpoint_limits import CHECKPOINT_BYTES_MAX, CHECKPOINT_FILES_MAX
from computepool.node.runner import files
from computepool.node.runner.outputs import OPEN_DIR, OPEN_FILE, RefusedEntry, check_file, check_name
from computepool.node.sandbox.port import Sandbox

# A file that has not been written to for so long is taken for finished, unless the job says so itself.
QUIET_SECONDS = 0.5
# Taken at this part of the interval, it has left the machine when the interval is over.
DUE_SHARE = 0.75
# Looks at a folder that is never at rest, before the submitter is told.
MOVING_COUNT_MAX = 60
STEP_BYTES = 8 * 1024 * 1024
DEPTH_MAX = 8
ENTRIES_MAX = 4 * CHECKPOINT_FILES_MAX
PROGRESS_BYTES_MAX = 64
EXIT_CODE_CHECKPOINTED = 85
# Put there by computepool.job when all files of a checkpoint are in place, and taken away before the next are.
SEAL = ".sealed"
PROGRESS = ".progress"
DRAFT = ".draft"
# Half-written files by the custom of programs that rename when they are done.
DRAFT_ENDS = (".tmp", ".part")


class Moving(Exception):
    """The folder changes at this moment; the next look may find it at rest."""


class NothingNew(Moving):
    """It is as it was taken last; looked at again soon, so that what is saved next leaves soon."""


class Mark(NamedTuple):
    """What tells one state of a file from another. Not the time of change: renaming and unlinking touch it."""

    inode: int
    size_bytes: int
    modified_ns: int


class Held(NamedTuple):
    path: str
    fd: int
    mark: Mark
    changed_ns: int


class Taken(NamedTuple):
    marks: dict[str, Mark]
    hashes: dict[str, str]
    seal: Mark | None


NOTHING = Taken({}, {}, None)


class CheckpointTaker:
    """One for the life of a job. `next_at` says when it wants to be stepped, by the monotonic clock."""

    def __init__(
        self,
        state_dir: str,
        sandbox: Sandbox,
        *,
        every_seconds: float,
        bytes_max: int,
        say: Callable[[str], None],
        now: float,
    ) -> None:
        self._state_dir = state_dir
        self._saved_dir = os.path.join(state_dir, files.SAVED)
        self._sandbox = sandbox
        self._every_seconds = DUE_SHARE * every_seconds
        self._bytes_max = min(bytes_max, CHECKPOINT_BYTES_MAX)
        self._say = say
        self._began = now
        self._number = 0
        self._taken = NOTHING
        self._is_sealing = False
        self._said: set[str] = set()
        self._moving_count = 0
        self._entries_left = ENTRIES_MAX
        # The last one whose files were given up, because the hub has answered.
        self._forgotten_number = 0
        self._work: Generator[float, None, None] | None = None
        self._due_at = now + self._every_seconds
        self.next_at = self._due_at

    def step(self, now: float) -> None:
        """A little of the work, if there is any."""
        if self._work is None:
            if now < self._due_at or self._is_agent_behind():
                self.next_at = max(self._due_at, now + QUIET_SECONDS)
                return
            self._work = self._take(now, quiet_seconds=QUIET_SECONDS)
        wait_seconds = self._advance(now)
        self.next_at = now + wait_seconds if wait_seconds is not None else max(self._due_at, now + QUIET_SECONDS)

    def finish(self, *, exit_code: int | None) -> None:
        """After the job's end: what it saved last, if it says that this is whole."""
        self.next_at = math.inf
        if self._work is not None:
            self._work.close()
        if exit_code == 0:
            return
        now = time.monotonic()
        if exit_code != EXIT_CODE_CHECKPOINTED and self._find_new_seal() is None:
            # Killed, or ended by an error: nobody can tell whether it was in the middle of writing.
            return
        with contextlib.suppress(OSError):
            # The machine is its owner's again: this may take its time.
            os.nice(19)
        self._work = self._take(now, quiet_seconds=0.0)
        while self._advance(now) is not None:
            pass

    def _advance(self, now: float) -> float | None:
        """How long until the next step; None: the work is done, or given up."""
        assert self._work is not None
        try:
            return next(self._work)
        except StopIteration:
            pass
        except Moving as moving:
            self._work = None
            self._note_moving(moving)
            return None
        except RefusedEntry as refusal:
            self._complain(str(refusal))
        except OSError as error:
            self._complain(f"it could not be copied: {error.strerror}")
        self._work = None
        self._due_at = now + self._every_seconds
        return None

    def _take(self, now: float, *, quiet_seconds: float) -> Generator[float, None, None]:
        self._forget_shipped()
        seal = self._find_seal()
        with contextlib.ExitStack() as opened:
            held = self._open_all(opened)
            if self._find_seal() != seal or (self._is_sealing and seal is None):
                raise Moving
            self._is_sealing = self._is_sealing or seal is not None
            marks = {each.path: each.mark for each in held}
            if not held or (marks, seal) == (self._taken.marks, self._taken.seal):
                raise NothingNew
            run_seconds = _find_age_seconds(held, now - self._began)
            progress = self._read_progress()
            if seal is None and quiet_seconds:
                yield quiet_seconds
            hashes: dict[str, str] = {}
            for each in held:
                if self._taken.marks.get(each.path) == each.mark:
                    hashes[each.path] = self._taken.hashes[each.path]
                    continue
                hashes[each.path] = yield from self._copy(each)
            if any(_mark(os.fstat(each.fd)) != each.mark for each in held):
                raise Moving
        self._number += 1
        self._moving_count = 0
        self._taken = Taken(marks, hashes, seal)
        files.write_json(
            self._state_dir,
            files.CHECKPOINT,
            {
                "number": self._number,
                "run_seconds": round(run_seconds, 3),
                "progress": progress,
                "files": [
                    {"path": each.path, "sha256": hashes[each.path], "size_bytes": each.mark.size_bytes}
                    for each in held
                ],
            },
        )

    def _open_all(self, opened: contextlib.ExitStack) -> list[Held]:
        folder_fd = self._sandbox.open_checkpoint()
        if folder_fd is None:
            return []
        opened.callback(os.close, folder_fd)
        held: list[Held] = []
        self._entries_left = ENTRIES_MAX
        try:
            self._open_below(folder_fd, "", held, opened, depth=0)
        except FileNotFoundError:
            # Renamed between two of our looks.
            raise Moving from None
        if sum(each.mark.size_bytes for each in held) > self._bytes_max:
            raise RefusedEntry(f"it has more than {self._bytes_max:,} bytes")
        return held

    def _open_below(
        self, folder_fd: int, prefix: str, held: list[Held], opened: contextlib.ExitStack, *, depth: int
    ) -> None:
        for name in self._list_names(folder_fd):
            if (depth == 0 and name in (SEAL, PROGRESS, DRAFT)) or name.endswith(DRAFT_ENDS):
                continue
            path = prefix + name
            try:
                check_name(name, path)
                found = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
                is_folder = stat.S_ISDIR(found.st_mode)
                if is_folder and depth >= DEPTH_MAX:
                    raise RefusedEntry(f"folders deeper than {DEPTH_MAX}")
                if not is_folder:
                    held.append(self._open_file(folder_fd, name, path, found, opened))
                    if len(held) > CHECKPOINT_FILES_MAX:
                        raise RefusedEntry(f"more than {CHECKPOINT_FILES_MAX} files")
            except RefusedEntry as refusal:
                shown = path.encode("unicode_escape", "surrogatepass").decode("ascii")[:100]
                raise RefusedEntry(f"{shown}: {refusal}") from None
            if is_folder:
                inner_fd = os.open(name, OPEN_DIR, dir_fd=folder_fd)
                try:
                    self._open_below(inner_fd, path + "/", held, opened, depth=depth + 1)
                finally:
                    os.close(inner_fd)

    def _open_file(
        self, folder_fd: int, name: str, path: str, found: os.stat_result, opened: contextlib.ExitStack
    ) -> Held:
        check_file(found, bytes_left=self._bytes_max)
        fd = os.open(name, OPEN_FILE, dir_fd=folder_fd)
        opened.callback(os.close, fd)
        # Looked at again through the descriptor: what was a file a moment ago must still be one.
        found = os.fstat(fd)
        if found.st_nlink == 0:
            raise Moving
        check_file(found, bytes_left=self._bytes_max)
        return Held(path, fd, _mark(found), found.st_ctime_ns)

    def _list_names(self, folder_fd: int) -> list[str]:
        # Lazily: a folder with ten million names must not fill our memory.
        with os.scandir(folder_fd) as entries:
            names = sorted(entry.name for entry in itertools.islice(entries, self._entries_left + 1))
        self._entries_left -= len(names)
        if self._entries_left < 0:
            raise RefusedEntry(f"more than {ENTRIES_MAX} entries")
        return names

    def _copy(self, each: Held) -> Generator[float, None, str]:
        """Returns the hash; the bytes are then in the folder under it."""
        os.makedirs(self._saved_dir, mode=0o700, exist_ok=True)
        draft = os.path.join(self._saved_dir, "draft")
        digest, offset = hashlib.sha256(), 0
        with open(draft, "wb", buffering=0) as target:
            while offset < each.mark.size_bytes:
                chunk = os.pread(each.fd, min(STEP_BYTES, each.mark.size_bytes - offset), offset)
                if not chunk:
                    raise Moving
                offset += len(chunk)
                digest.update(chunk)
                target.write(chunk)
                if offset < each.mark.size_bytes:
                    yield 0.0
        os.replace(draft, os.path.join(self._saved_dir, digest.hexdigest()))
        return digest.hexdigest()

    def _is_agent_behind(self) -> bool:
        """Whether the last one is still on its way: more would only pile up."""
        return self._number > self._forgotten_number and self._number > self._read_shipped()[0]

    def _forget_shipped(self) -> None:
        if self._forgotten_number == self._number:
            return
        number, accepted = self._read_shipped()
        if number < self._number:
            return
        self._forgotten_number = number
        shutil.rmtree(self._saved_dir, ignore_errors=True)
        if not accepted:
            # The hub may have none of its files.
            self._taken = self._taken._replace(marks={}, hashes={})

    def _read_shipped(self) -> tuple[int, bool]:
        told = files.find_json(self._state_dir, files.SHIPPED) or {}
        number = told.get("number")
        return number if isinstance(number, int) else 0, bool(told.get("accepted", True))

    def _find_new_seal(self) -> Mark | None:
        seal = self._find_seal()
        return seal if seal != self._taken.seal else None

    def _find_seal(self) -> Mark | None:
        with self._open_word(SEAL) as fd:
            return _mark(os.fstat(fd)) if fd is not None else None

    def _read_progress(self) -> float | None:
        with self._open_word(PROGRESS) as fd:
            text = os.read(fd, PROGRESS_BYTES_MAX) if fd is not None else b""
        try:
            told = float(text)
        except ValueError:
            return None
        return told if 0 <= told <= 1 else None

    @contextlib.contextmanager
    def _open_word(self, name: str) -> Generator[int | None, None, None]:
        """A small file by which the job tells something of its checkpoint."""
        with contextlib.ExitStack() as opened:
            fd = None
            folder_fd = self._sandbox.open_checkpoint()
            if folder_fd is not None:
                opened.callback(os.close, folder_fd)
                with contextlib.suppress(OSError):
                    fd = os.open(name, OPEN_FILE, dir_fd=folder_fd)
                    opened.callback(os.close, fd)
            yield fd if fd is not None and stat.S_ISREG(os.fstat(fd).st_mode) else None

    def _note_moving(self, moving: Moving) -> None:
        self._moving_count = 0 if isinstance(moving, NothingNew) else self._moving_count + 1
        if self._moving_count == MOVING_COUNT_MAX:
            self._complain("its files are written to all the time; write elsewhere, and rename when a file is done")

    def _complain(self, reason: str) -> None:
        """Once for each reason, where the submitter reads it."""
        if reason not in self._said and len(self._said) < 16:
            self._said.add(reason)
            self._say(f"[computepool] the checkpoint was not saved: {reason}\n")


def _mark(found: os.stat_result) -> Mark:
    return Mark(found.st_ino, found.st_size, found.st_mtime_ns)


def _find_age_seconds(held: list[Held], run_seconds: float) -> float:
    """How long the job had run when it saved this: what it did afterwards is not in it.

    By the time of change, which the kernel writes and no job can set.
    """
    age = time.time() - max(each.changed_ns for each in held) / 1e9
    return min(run_seconds, max(0.0, run_seconds - max(0.0, age)))
