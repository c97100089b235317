"""A hub on one side and homes on the other, each behind a router of its own that masquerades: network namespaces.

Every home has the same private addresses, as homes have; the hub's side knows no way to them. Nothing appears in the
machine's own network, and nothing is left of it: names carry the maker's process, and those of the dead are swept.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

HUB_ADDRESS = "203.0.113.1"
PREFIX = "cpnat"
NAMESPACES = Path("/run/netns")
PROGRAM_SECONDS = 30.0
CLONE_NEWNET = 0x40000000
ESTABLISHED = "01"

_numbers = itertools.count(1)
_libc = ctypes.CDLL(None, use_errno=True)


def list_missing() -> list[str]:
    """What keeps this machine from having such a lab, in plain words."""
    found = [] if os.geteuid() == 0 else ["only root can make network namespaces"]
    programs = {"ip": "iproute2", "iptables": "iptables"}
    return found + [f"{name} is missing (package {package})" for name, package in programs.items() if not _find(name)]


class Home:
    """A machine, its router, and the way to the hub's side. Where its cable is pulled out depends on its number."""

    def __init__(self, lab: str, number: int) -> None:
        self.number = number
        self.machine = f"{lab}-machine{number}"
        self.router = f"{lab}-router{number}"
        self.gateway = f"198.18.{number}.1"
        # How many public addresses it has had.
        self._moves = 0

    @property
    def public_address(self) -> str:
        return f"198.18.{self.number}.{2 + self._moves}"

    @property
    def _private_address(self) -> str:
        return f"192.168.1.{2 + self._moves}"

    def build(self, hub: str) -> None:
        far_end = f"home{self.number}"
        for name in (self.router, self.machine):
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", hub, "link", "add", far_end, "type", "veth", "peer", "name", "wan", "netns", self.router)
        _ip("-n", hub, "address", "add", f"{self.gateway}/24", "dev", far_end)
        _ip("-n", hub, "link", "set", far_end, "up")
        _ip("-n", self.router, "link", "add", "lan", "type", "veth", "peer", "name", "eth0", "netns", self.machine)
        _ip("-n", self.router, "address", "add", "192.168.1.1/24", "dev", "lan")
        _ip("-n", self.router, "link", "set", "lan", "up")
        self._set_public_address()
        self._set_private_address()
        with inside(self.router):
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
            _run("iptables", "-w", "-t", "nat", "-A", "POSTROUTING", "-o", "wan", "-j", "MASQUERADE")
            _run("iptables", "-w", "-P", "FORWARD", "DROP")
            _run("iptables", "-w", "-A", "FORWARD", "-i", "lan", "-j", "ACCEPT")
            answers = ("-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED")
            _run("iptables", "-w", "-A", "FORWARD", *answers, "-j", "ACCEPT")

    def pull_cable(self) -> None:
        """Out of the router in one home, out of the machine in the next: one is told that there is no way, the other
        has no address to speak from."""
        _ip("-n", *self._cable, "down")

    def plug_in(self) -> None:
        _ip("-n", *self._cable, "up")
        self._set_routes()

    def move(self) -> None:
        """Another public and another private address, as after a night or in another house: whatever connection was
        open belongs to nobody now."""
        self._moves += 1
        self._set_public_address()
        self._set_private_address()

    @property
    def _cable(self) -> tuple[str, ...]:
        where = (self.router, "link", "set", "wan"), (self.machine, "link", "set", "eth0")
        return where[self.number % 2]

    def _set_public_address(self) -> None:
        _ip("-n", self.router, "address", "flush", "dev", "wan")
        _ip("-n", self.router, "address", "add", f"{self.public_address}/24", "dev", "wan")
        _ip("-n", self.router, "link", "set", "wan", "up")
        self._set_routes()

    def _set_private_address(self) -> None:
        _ip("-n", self.machine, "address", "flush", "dev", "eth0")
        _ip("-n", self.machine, "address", "add", f"{self._private_address}/24", "dev", "eth0")
        _ip("-n", self.machine, "link", "set", "eth0", "up")
        self._set_routes()

    def _set_routes(self) -> None:
        """A device that goes down, or loses its address, takes its routes along."""
        for name, gateway in ((self.router, self.gateway), (self.machine, "192.168.1.1")):
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("-n", name, "route", "replace", "default", "via", gateway)


class NatLab:
    def __init__(self, *, home_count: int = 2) -> None:
        name = f"{PREFIX}-{os.getpid()}-{next(_numbers)}"
        self.hub = f"{name}-hub"
        self.homes = tuple(Home(name, number) for number in range(home_count))

    def __enter__(self) -> NatLab:
        sweep_dead()
        try:
            _ip("netns", "add", self.hub)
            _ip("-n", self.hub, "link", "set", "lo", "up")
            _ip("-n", self.hub, "address", "add", f"{HUB_ADDRESS}/32", "dev", "lo")
            for home in self.homes:
                home.build(self.hub)
        except BaseException:
            self._tear_down()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tear_down()

    def list_callers(self, port: int) -> set[str]:
        """Whose connections to this port of the hub's are open, as the hub's machine sees them."""
        with inside(self.hub):
            lines = Path("/proc/thread-self/net/tcp").read_text().splitlines()[1:]
        rows = [line.split() for line in lines]
        return {
            _to_address(remote)
            for _, local, remote, state, *_ in rows
            if state == ESTABLISHED and int(local.partition(":")[2], 16) == port
        } - {HUB_ADDRESS, "127.0.0.1"}

    def _tear_down(self) -> None:
        for name in (self.hub, *(each for home in self.homes for each in (home.machine, home.router))):
            if (NAMESPACES / name).exists():
                _ip("netns", "delete", name)


@contextlib.contextmanager
def inside(name: str) -> Iterator[None]:
    """This thread's sockets, and the processes that it starts, belong to this namespace; their files do not change.

    `ip netns exec` would hide the control groups that sandboxes need.
    """
    back = os.open(f"/proc/self/task/{threading.get_native_id()}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        there = os.open(NAMESPACES / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _enter(there)
        finally:
            os.close(there)
        try:
            yield
        finally:
            _enter(back)
    finally:
        os.close(back)


def sweep_dead() -> None:
    """What runs that were killed have left behind."""
    for path in NAMESPACES.glob(f"{PREFIX}-*"):
        maker = path.name.split("-")[1]
        if maker.isdigit() and not Path(f"/proc/{maker}").exists():
            # Another run may sweep at the same moment.
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "delete", path.name)


def _enter(fd: int) -> None:
    # os.setns came with Python 3.12.
    if _libc.setns(fd, CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")


def _to_address(text: str) -> str:
    """From the kernel's table: the number in this machine's order of bytes."""
    return socket.inet_ntoa(int(text.partition(":")[0], 16).to_bytes(4, sys.byteorder))


def _find(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(program: str, *words: str) -> None:
    found = _find(program)
    assert found is not None, f"{program} is missing"
    done = subprocess.run([found, *words], capture_output=True, text=True, timeout=PROGRAM_SECONDS)
    if done.returncode != 0:
        raise subprocess.CalledProcessError(done.returncode, [program, *words], done.stdout, done.stderr)
