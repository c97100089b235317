"""The one way out of a job's sandbox: a gate to the hosts that the job named and the owner allows. For root only.

The job gets a network of its own with nothing in it but a loopback, where the gate listens as a web proxy (CONNECT).
The gate looks names up itself and connects from outside. Refuses private addresses, except one that the list spells.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Sequence

from computepool.node.sandbox import syscalls
from computepool.node.sandbox.disk import MOUNT_ROOT
from computepool.node.sandbox.port import SandboxRefused

GATE_PORT = 3128
GATE_URL = f"http://127.0.0.1:{GATE_PORT}"
HEAD_BYTES_MAX = 8192
HEAD_SECONDS_MAX = 10.0
CONNECT_SECONDS_MAX = 15.0
IDLE_SECONDS_MAX = 300.0
CONNECTIONS_MAX = 64
COPY_BYTES = 65_536


def plan_network(name: str) -> str:
    """The file by which the job's network is kept and found."""
    return os.path.join(MOUNT_ROOT, f"{name}-net")


class Gate:
    def __init__(self, process_id: int, network: str) -> None:
        self._process_id = process_id
        self.network = network
        self._is_closed = False

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._process_id, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._process_id, 0)
        with contextlib.suppress(OSError):
            syscalls.unmount(self.network, lazily=True)
        with contextlib.suppress(OSError):
            os.unlink(self.network)


def open_gate(name: str, targets: Sequence[str], *, uid: int) -> Gate:
    """A network for the job and a process at its gate, which dies with this one and has only the job's own rights."""
    network = plan_network(name)
    ready_fd, told_fd = os.pipe()
    parent = os.getpid()
    try:
        os.close(os.open(network, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        child = os.fork()
    except OSError as error:
        raise SandboxRefused(f"no gate could be made: {error}") from error
    if child == 0:
        os.close(ready_fd)
        _keep_gate(network, targets, uid=uid, told_fd=told_fd, parent=parent)
    os.close(told_fd)
    gate = Gate(child, network)
    with os.fdopen(ready_fd, "rb") as answer:
        words = answer.read()
    if words != b"ready":
        gate.close()
        raise SandboxRefused(f"no gate could be made: {words.decode(errors='replace') or 'it ended at once'}")
    return gate


def _keep_gate(network: str, targets: Sequence[str], *, uid: int, told_fd: int, parent: int) -> None:
    """The child's whole life."""
    try:
        # Before the rights are gone: the interpreter may stand in a home that the job's user id cannot enter.
        from computepool.node.sandbox.egress_gate import serve

        listener = _listen_in_new_network(network)
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        syscalls.die_with_parent(signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
    except BaseException as error:
        os.write(told_fd, str(error).encode()[:500])
        os._exit(1)
    try:
        os.write(told_fd, b"ready")
        os.close(told_fd)
        serve(listener, tuple(targets))
    except BaseException as error:
        print(f"the gate failed: {error!r}", file=sys.stderr, flush=True)
    os._exit(1)


def _listen_in_new_network(network: str) -> int:
    """A listening socket inside a new network, held open by a file; this process is back in its own afterwards."""
    import socket

    home = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    syscalls.enter_new_network()
    syscalls.bind("/proc/self/ns/net", network)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
        syscalls.raise_loopback(server.fileno())
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", GATE_PORT))
        server.listen(CONNECTIONS_MAX)
        listener = server.detach()
    syscalls.enter_network(home)
    os.close(home)
    return listener
