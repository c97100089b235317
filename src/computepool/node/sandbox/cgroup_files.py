"""Reading and writing the files that a control group is made of, for both versions. Decides nothing."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Callable, Iterable

from computepool import clock
from computepool.node.sandbox.port import Limits, SandboxRefused

PREFIX = "computepool-"
CPU_PERIOD_MICROSECONDS = 100_000
# bubblewrap itself is two processes in the job's group: one outside, one as PID 1 inside.
SANDBOX_PROCESS_COUNT = 2
PATIENCE_SECONDS = 5.0


def plan_cpu_quota(limits: Limits) -> int:
    """Microseconds of CPU per period; the kernel takes no less than a thousand."""
    return max(1000, int(limits.cpu_cores * CPU_PERIOD_MICROSECONDS))


def is_ours(path: str) -> bool:
    return os.access(path, os.W_OK) and os.access(os.path.join(path, "cgroup.procs"), os.W_OK)


def make_dirs(mkdir: Callable[[str], None], rmdir: Callable[[str], None], paths: Iterable[str]) -> None:
    """All of them or none."""
    made: list[str] = []
    try:
        for path in paths:
            mkdir(path)
            made.append(path)
    except OSError as error:
        for path in made:
            remove_dir(rmdir, path)
        raise SandboxRefused(f"no control group could be made: {error}") from error


def list_tree(path: str) -> list[str]:
    """A group and all groups below it, deepest first: a container engine makes its own inside of ours."""
    return [folder for folder, _, _ in os.walk(path, topdown=False)] or [path]


def remove_dir(rmdir: Callable[[str], None], path: str) -> None:
    """With all groups below. The kernel needs a moment to let go of the last process; EBUSY until then."""
    deadline = clock.seconds() + PATIENCE_SECONDS
    while True:
        try:
            for each in list_tree(path):
                rmdir(each)
            return
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.EBUSY or clock.seconds() > deadline:
                raise
        time.sleep(0.002)


def open_door(path: str) -> int:
    return os.open(os.path.join(path, "cgroup.procs"), os.O_WRONLY | os.O_CLOEXEC)


def kill_until_empty(paths: Iterable[str]) -> None:
    """SIGKILL in rounds: what was forked between reading and killing is met in the next round."""
    paths = tuple(paths)
    deadline = clock.seconds() + PATIENCE_SECONDS
    pause = 0.001
    while True:
        process_ids = {each for path in paths for part in list_tree(path) for each in read_process_ids(part)}
        if not process_ids:
            return
        if clock.seconds() > deadline:
            # A process stuck in the kernel (a dead disk, say) cannot be killed by anybody.
            raise TimeoutError(f"{len(process_ids)} processes of the job do not die")
        for process_id in process_ids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGKILL)
        time.sleep(pause)
        pause = min(pause * 2, 0.05)


def read_process_ids(path: str) -> list[int]:
    try:
        with open(os.path.join(path, "cgroup.procs"), encoding="ascii") as lines:
            # 0 stands for a process of a PID namespace above ours, which cannot be ours to kill.
            return [int(line) for line in lines if line.strip() not in ("", "0")]
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENODEV):
            return []
        raise


def write(path: str, name: str, value: int | str) -> None:
    file = os.path.join(path, name)
    # Never O_CREAT: on a real control group file system a missing file is a missing feature.
    fd = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, str(value).encode())
    except OSError as error:
        raise OSError(error.errno, error.strerror, file) from error
    finally:
        os.close(fd)


def write_if_there(path: str, name: str, value: int | str) -> bool:
    try:
        write(path, name, value)
    except FileNotFoundError:
        return False
    return True


def read_words(path: str, name: str) -> set[str]:
    try:
        with open(os.path.join(path, name), encoding="ascii") as file:
            return set(file.read().split())
    except OSError:
        return set()


def find_number(path: str, name: str) -> int | None:
    try:
        with open(os.path.join(path, name), encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def read_table(path: str, name: str) -> dict[str, int]:
    """A file of "name number" lines; empty when it cannot be read."""
    try:
        with open(os.path.join(path, name), encoding="ascii") as file:
            pairs = [line.split() for line in file]
    except OSError:
        return {}
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
