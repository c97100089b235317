"""Takes what the job has saved out of its checkpoint folder, whole or not at all, while the job goes on.

The files are held open from the first look to the last, so that one that is replaced meanwhile is still there; one
that is written to meanwhile is not taken. In small steps: whoever asks the job to stop never waits for a copy.
What the hub has given the job to begin with is not taken for something that the job has saved.
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
from collections.abc import Callable, Generator, Mapping
from typing import NamedTuple

from computepool.core.jobs.checkpoint_limits import CHECKPOINT_BYTES_MAX, CHECKPOINT_FILES_MAX
from computepool.core.jobs.checkpoint_pace import FIRST_COST_SECONDS, find_due_at, find_lead_seconds, learn_cost
from computepool.node.runner import files
from computepool.node.runner.outputs import OPEN_DIR, OPEN_FILE, RefusedEntry, check_file, check_name
from computepool.node.sandbox.port import Sandbox

# A file that has not been written to for so long is taken for finished, unless the job says so itself.
QUIET_SECONDS = 0.5
# Looks at a folder that is never at rest, before the submitter is told.
MOVING_COUNT_MAX = 60
STEP_BYTES = 8 * 1024 * 1024
DEPTH_MAX = 8
ENTRIES_MAX = 4 * CHECKPOINT_FILES_MAX
WORD_BYTES_MAX = 64
EXIT_CODE_CHECKPOINTED = 85
# Put there by computepool.job when all files of a checkpoint are in place, and taken away before the next are.
SEAL = ".sealed"
PROGRESS = ".progress"
DRAFT = ".draft"
# Put there by us: how many seconds before the end of an interval computepool.job is to save.
LEAD, LEAD_DRAFT = ".lead", ".lead.tmp"
CREATE_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
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


class OnItsWay(NamedTuple):
    """A checkpoint that the hub has not answered yet, as far as we know."""

    number: int
    # When the look began that found it, and how long the job had been writing by its own word.
    found_at: float
    written_seconds: float


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
        restored: Mapping[str, str] | None = None,
    ) -> None:
        """`restored`: what the job found in its folder when it began, as the hub has it: hashes by path."""
        self._state_dir = state_dir
        self._saved_dir = os.path.join(state_dir, files.SAVED)
        self._sandbox = sandbox
        self._every_seconds = every_seconds
        self._bytes_max = min(bytes_max, CHECKPOINT_BYTES_MAX)
        self._say = say
        self._began = now
        self._number = 0
        self._taken = NOTHING
        self._is_sealing = False
        self._said: set[str] = set()
        self._moving_count = 0
        self._entries_left = ENTRIES_MAX
        self._on_its_way: OnItsWay | None = None
        self._cost_seconds = FIRST_COST_SECONDS
        # When the work was as the last one holds it; after a refusal, when that was heard.
        self._counts_from = now
        self._work: Generator[float, None, None] | None = self._recognise(restored) if restored else None
        self.next_at = now if restored else self._due_at

    @property
    def _due_at(self) -> float:
        return find_due_at(self._counts_from, every_seconds=self._every_seconds, cost_seconds=self._cost_seconds)

    def step(self, now: float) -> None:
        """A little of the work, if there is any."""
        if self._work is None:
            self._look_for_arrival(now)
            if self._on_its_way is not None:
                # More would only pile up.
                self.next_at = now + QUIET_SECONDS
                return
            if now < self._due_at:
                self.next_at = self._due_at
                return
            self._work = self._take(now, quiet_seconds=QUIET_SECONDS)
        wait_seconds = self._advance(now)
        self.next_at = now + (QUIET_SECONDS if wait_seconds is None else wait_seconds)

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
        self._look_for_arrival(now)
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
            self._counts_from = now
        except OSError as error:
            self._complain(f"it could not be copied: {error.strerror}")
            self._counts_from = now
        self._work = None
        return None

    def _recognise(self, restored: Mapping[str, str]) -> Generator[float, None, None]:
        """Learns what the job began with by its content, so that it does not matter how soon the job replaces it.

        Taken for news, it would fill the first interval: the hub has it already, and what the job saves itself in the
        same moment would wait for the end of the second one.
        """
        with contextlib.ExitStack() as opened:
            marks: dict[str, Mark] = {}
            for each in self._open_all(opened):
                sha256 = restored.get(each.path)
                if sha256 is not None and (yield from _hash(each)) == sha256 and _is_as_it_was(each):
                    marks[each.path] = each.mark
        self._taken = Taken(marks, {path: restored[path] for path in marks}, None)

    def _take(self, now: float, *, quiet_seconds: float) -> Generator[float, None, None]:
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
            progress, written_seconds = self._read_progress(), self._read_written_seconds()
            if seal is None and quiet_seconds:
                yield quiet_seconds
            hashes: dict[str, str] = {}
            for each in held:
                if self._taken.marks.get(each.path) == each.mark:
                    hashes[each.path] = self._taken.hashes[each.path]
                    continue
                hashes[each.path] = yield from self._copy(each)
            if not all(_is_as_it_was(each) for each in held):
                raise Moving
        self._number += 1
        self._on_its_way = OnItsWay(self._number, found_at=now, written_seconds=written_seconds)
        self._counts_from = self._began + run_seconds
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
            if (depth == 0 and name in (SEAL, PROGRESS, DRAFT, LEAD)) or name.endswith(DRAFT_ENDS):
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

    def _look_for_arrival(self, now: float) -> None:
        """Whether the hub has answered the last one; if so, what its way has taken is known, too."""
        sent = self._on_its_way
        if sent is None:
            return
        number, accepted = self._read_shipped()
        if number < sent.number:
            return
        self._on_its_way = None
        shutil.rmtree(self._saved_dir, ignore_errors=True)
        # The next one may lie there for one look before it is found.
        cost_seconds = sent.written_seconds + QUIET_SECONDS + now - sent.found_at
        self._cost_seconds = learn_cost(self._cost_seconds, cost_seconds, every_seconds=self._every_seconds)
        self._tell_lead()
        if not accepted:
            # The hub may have none of its files; it is asked again after an interval, not at once.
            self._taken = self._taken._replace(marks={}, hashes={})
            self._counts_from = now

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
        told = _find_number(self._read_word(PROGRESS))
        return told if told is not None and told <= 1 else None

    def _read_written_seconds(self) -> float:
        """How long the job took to write it: the second word on its seal. A lie moves its own next save."""
        return _find_number(self._read_word(SEAL).partition(b" ")[2]) or 0.0

    def _read_word(self, name: str) -> bytes:
        with self._open_word(name) as fd:
            return os.read(fd, WORD_BYTES_MAX) if fd is not None else b""

    def _tell_lead(self) -> None:
        """For the job to read. Under a name that was not there, then moved: no link of the job's is followed."""
        lead_seconds = find_lead_seconds(self._every_seconds, self._cost_seconds)
        folder_fd = self._sandbox.open_checkpoint()
        if folder_fd is None:
            return
        # A job whose disk is full, or that has put something in the way, goes without.
        with contextlib.suppress(OSError):
            # Of a time when the disk was full.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(LEAD_DRAFT, dir_fd=folder_fd)
            fd = os.open(LEAD_DRAFT, CREATE_FILE, 0o644, dir_fd=folder_fd)
            try:
                os.write(fd, f"{lead_seconds:.3f}".encode())
                os.fchmod(fd, 0o644)
            finally:
                os.close(fd)
            os.rename(LEAD_DRAFT, LEAD, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
        os.close(folder_fd)

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


def _hash(each: Held) -> Generator[float, None, str]:
    digest, offset = hashlib.sha256(), 0
    while chunk := os.pread(each.fd, min(STEP_BYTES, each.mark.size_bytes - offset), offset):
        offset += len(chunk)
        digest.update(chunk)
        yield 0.0
    return digest.hexdigest()


def _is_as_it_was(each: Held) -> bool:
    return _mark(os.fstat(each.fd)) == each.mark


def _find_number(text: bytes) -> float | None:
    """What a job wrote, if it is a number that can be reckoned with."""
    try:
        told = float(text)
    except ValueError:
        return None
    return told if 0 <= told < math.inf else None


def _mark(found: os.stat_result) -> Mark:
    return Mark(found.st_ino, found.st_size, found.st_mtime_ns)


def _find_age_seconds(held: list[Held], run_seconds: float) -> float:
    """How long the job had run when it saved this: what it did afterwards is not in it.

    By the time of change, which the kernel writes and no job can set.
    """
    age = time.time() - max(each.changed_ns for each in held) / 1e9
    return min(run_seconds, max(0.0, run_seconds - max(0.0, age)))
