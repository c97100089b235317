"""Puts the inputs into the job's folder: fresh copies, by checked names. Never a link to the agent's cache."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterable

from computepool.node.sandbox.port import (
    CHECKPOINT_NAME,
    NODE_NAME,
    OUTPUT_NAME,
    InputFile,
    InputMissing,
    SandboxRequest,
    StartCancelled,
)

PATH_BYTES_MAX = 1024
CHUNK_BYTES = 8 * 1024 * 1024


def check_path(path: str) -> None:
    """Raises InputMissing for a name that could reach out of the job's folder or confuse a reader."""
    parts = path.split("/")
    if not path or len(path.encode("utf-8", "surrogatepass")) > PATH_BYTES_MAX:
        raise InputMissing(f"an input's path must have 1 to {PATH_BYTES_MAX} bytes")
    if any(part in ("", ".", "..") for part in parts):
        raise InputMissing(f"{path!r} is not a plain relative path")
    if not path.isprintable() or "\\" in path or any(len(part.encode()) > 255 for part in parts):
        raise InputMissing(f"{path!r} is not a name that every system can store")
    if path == OUTPUT_NAME:
        raise InputMissing(f"{path!r} is the folder for outputs")


def furnish(job_dir_fd: int, request: SandboxRequest, *, uid: int | None, is_cancelled: Callable[[], bool]) -> None:
    """The folders for outputs and for what is saved, and every input in its place."""
    try:
        os.close(make_dir(job_dir_fd, OUTPUT_NAME, uid=uid))
        own = make_dir(job_dir_fd, NODE_NAME, uid=uid)
        try:
            os.close(make_dir(own, CHECKPOINT_NAME, uid=uid))
        finally:
            os.close(own)
    except OSError as error:
        raise InputMissing(f"the job's folder is too small for anything: {error.strerror}") from error
    place_inputs(job_dir_fd, request.inputs, uid=uid, is_cancelled=is_cancelled)


def place_inputs(
    job_dir_fd: int, inputs: Iterable[InputFile], *, uid: int | None, is_cancelled: Callable[[], bool]
) -> None:
    """Copy each input below the folder; `uid` becomes the owner (None: stays with whoever we are)."""
    for file in inputs:
        check_path(file.path)
        try:
            _place(job_dir_fd, file, uid=uid, is_cancelled=is_cancelled)
        except OSError as error:
            raise InputMissing(f"input {file.path!r} could not be placed: {error.strerror}") from error


def make_dir(parent_fd: int, name: str, *, uid: int | None) -> int:
    """A folder of the job, made if absent; its descriptor."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, dir_fd=parent_fd)
    fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent_fd)
    os.fchmod(fd, 0o755)
    if uid is not None:
        os.fchown(fd, uid, uid)
    return fd


def open_folder(job_dir_fd: int, *names: str) -> int | None:
    """A folder below the job's, name by name: no link that the job put in the way is followed. None: it is gone."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = -1
    try:
        for name in names:
            inner = os.open(name, flags, dir_fd=fd if fd >= 0 else job_dir_fd)
            if fd >= 0:
                os.close(fd)
            fd = inner
    except OSError:
        if fd >= 0:
            os.close(fd)
        return None
    return fd


def _place(job_dir_fd: int, file: InputFile, *, uid: int | None, is_cancelled: Callable[[], bool]) -> None:
    *folders, name = file.path.split("/")
    with contextlib.ExitStack() as opened:
        # O_NONBLOCK: a pipe under the source's name must not hold us up.
        source = os.open(file.source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        opened.callback(os.close, source)
        if not stat.S_ISREG(os.fstat(source).st_mode):
            raise InputMissing(f"input {file.path!r}: its source is not a regular file")
        parent = job_dir_fd
        for folder in folders:
            parent = make_dir(parent, folder, uid=uid)
            opened.callback(os.close, parent)
        mode = 0o755 if file.executable else 0o644
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        target = os.open(name, flags, mode, dir_fd=parent)
        opened.callback(os.close, target)
        while os.sendfile(target, source, None, CHUNK_BYTES):
            if is_cancelled():
                raise StartCancelled
        if uid is not None:
            os.fchown(target, uid, uid)
        os.fchmod(target, mode)
