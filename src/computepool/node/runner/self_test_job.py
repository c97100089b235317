"""Runs inside the sandbox under test and tries the quick ways out. Imports nothing of ours: it stands alone.

Prints a line "ESCAPED <what>" for each way that is open and at last "DONE".
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from collections.abc import Callable, Iterator

CLONE_NEWUSER = 0x10000000
AF_VSOCK = 40
FORK_COUNT_MAX = 200


def read_shadow() -> bool:
    return _works(lambda: open("/etc/shadow", "rb").close())


def read_host_home() -> bool:
    return _works(lambda: os.listdir("/root")) or _works(lambda: os.listdir("/home"))


def write_system() -> bool:
    return _works(lambda: open("/usr/computepool-self-test", "wb").close())


def see_other_processes() -> bool:
    # bubblewrap's PID 1 and this process; a machine has more.
    return len([name for name in os.listdir("/proc") if name.isdigit()]) > 3


def become_root() -> bool:
    return _works(lambda: os.setuid(0))


def keep_capabilities() -> bool:
    with open("/proc/self/status", encoding="ascii") as lines:
        fields = dict(line.split(":", 1) for line in lines)
    held = any(int(fields.get(name, "0"), 16) for name in ("CapEff", "CapPrm", "CapInh", "CapAmb"))
    # gVisor's own kernel answers for the machine's, and has no filter to speak of.
    return held or (not _is_gvisor() and (fields["Seccomp"].strip() != "2" or fields["NoNewPrivs"].strip() != "1"))


def make_user_namespace() -> bool:
    # Inside gVisor it is made by gVisor, of gVisor's own things.
    return not _is_gvisor() and bool(ctypes.CDLL(None).unshare(CLONE_NEWUSER) == 0)


def mount() -> bool:
    return bool(ctypes.CDLL(None).mount(b"tmpfs", b"/tmp", b"tmpfs", 0, None) == 0)


def reach_host_port() -> bool:
    return _works(lambda: socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=1).close())


def reach_abstract_socket() -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return _works(lambda: client.connect("\0" + sys.argv[2]))


def open_vsock() -> bool:
    return _works(lambda: socket.socket(AF_VSOCK, socket.SOCK_STREAM).close())


def inherit_descriptors() -> bool:
    # 3 is the one that lists this folder.
    return sorted(int(name) for name in os.listdir("/proc/self/fd")) not in ([0, 1, 2], [0, 1, 2, 3])


def inherit_environment() -> bool:
    """Whether the first process was given anything that this one was not."""
    try:
        with open("/proc/1/environ", "rb") as file:
            given = set(file.read().strip(b"\0").split(b"\0"))
    except OSError:
        return False
    return not given - {b""} <= {name + b"=" + value for name, value in os.environb.items()}


def fill_disk() -> bool:
    return _works(lambda: _write("/job/hog", int(sys.argv[3]) + (8 << 20)))


def fill_shared_memory() -> bool:
    return _works(lambda: _write("/dev/shm/hog", int(sys.argv[4]) + (8 << 20)))


def fork_without_end() -> bool:
    """Children wait on a pipe until we are done counting."""
    read_fd, write_fd = os.pipe()
    children = []
    try:
        for _ in range(FORK_COUNT_MAX):
            child = os.fork()
            if child == 0:
                os.close(write_fd)
                os.read(read_fd, 1)
                os._exit(0)
            children.append(child)
    except OSError:
        pass
    os.close(write_fd)
    for child in children:
        os.waitpid(child, 0)
    return len(children) == FORK_COUNT_MAX


def list_tries() -> tuple[Callable[[], bool], ...]:
    # Behind gVisor the machine's limit of processes ends its kernel and with it the job: that is tried apart.
    return TRIES[:-1] if _is_gvisor() else TRIES


TRIES: tuple[Callable[[], bool], ...] = (
    *(read_shadow, read_host_home, write_system, see_other_processes, become_root, keep_capabilities),
    *(make_user_namespace, mount, reach_host_port, reach_abstract_socket, open_vsock, inherit_descriptors),
    *(inherit_environment, fill_disk, fill_shared_memory, fork_without_end),
)


def _is_gvisor() -> bool:
    return sys.argv[5] == "gvisor"


def _works(act: Callable[[], object]) -> bool:
    try:
        act()
    except OSError:
        return False
    return True


def _write(path: str, byte_count: int) -> None:
    try:
        with open(path, "wb", buffering=0) as file:
            for _ in range(byte_count >> 20):
                if file.write(b"x" * (1 << 20)) < 1 << 20:
                    raise OSError("full")
    finally:
        os.unlink(path)


def try_all() -> Iterator[str]:
    for attempt in list_tries():
        if attempt():
            yield f"ESCAPED {attempt.__name__.replace('_', ' ')}"
    yield "DONE"


if __name__ == "__main__":
    for words in try_all() if len(sys.argv) > 2 else [f"FORKED {fork_without_end()}"]:
        print(words, flush=True)
