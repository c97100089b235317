"""The few kernel calls that Python does not offer before 3.12, by ctypes. Knows numbers, decides nothing."""

from __future__ import annotations

import ctypes
import os
import struct

CLONE_NEWNS = 0x00020000
CLONE_NEWNET = 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_SLAVE = 0x1, 0x2, 0x4, 0x20, 0x1000, 0x4000, 0x80000
MNT_DETACH = 0x2
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36

_libc = ctypes.CDLL(None, use_errno=True)


def enter_own_mount_namespace() -> None:
    """Mounts made from now on belong to this process and its children and vanish with them.

    Slave propagation: the host's later unmounts still reach us, so that we never keep its disks busy.
    """
    _check(_libc.unshare(CLONE_NEWNS), "unshare")
    _check(_libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_SLAVE), None), "mount --make-rslave /")


def mount_tmpfs(mount_point: str, options: str) -> None:
    flags = ctypes.c_ulong(MS_NOSUID | MS_NODEV)
    result = _libc.mount(b"tmpfs", os.fsencode(mount_point), b"tmpfs", flags, options.encode())
    _check(result, f"mount tmpfs on {mount_point}")


def bind(source: str, mount_point: str, *, read_only: bool = False) -> None:
    """Show a folder or file in a second place."""
    words = f"bind {source} on {mount_point}"
    where = os.fsencode(mount_point)
    _check(_libc.mount(os.fsencode(source), where, None, ctypes.c_ulong(MS_BIND), None), words)
    if read_only:
        # The kernel heeds these flags only in a second call.
        flags = ctypes.c_ulong(MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
        _check(_libc.mount(b"none", where, None, flags, None), words)


def enter_new_network() -> None:
    """A network of this process's own, with nothing in it but a loopback that is down."""
    _check(_libc.unshare(CLONE_NEWNET), "unshare")


def enter_network(fd: int) -> None:
    _check(_libc.setns(fd, CLONE_NEWNET), "setns")


def raise_loopback(socket_fd: int) -> None:
    """Bring `lo` of the present network up; `socket_fd` is any socket in it."""
    request = bytearray(40)
    request[:2] = b"lo"
    import fcntl

    fcntl.ioctl(socket_fd, SIOCGIFFLAGS, request)
    (flags,) = struct.unpack_from("H", request, 16)
    struct.pack_into("H", request, 16, flags | IFF_UP)
    fcntl.ioctl(socket_fd, SIOCSIFFLAGS, request)


def unmount(mount_point: str, *, lazily: bool = False) -> None:
    _check(_libc.umount2(os.fsencode(mount_point), MNT_DETACH if lazily else 0), f"umount {mount_point}")


def die_with_parent(signal_number: int) -> None:
    """Safe between fork and exec: one system call, no allocation of ours."""
    _libc.prctl(PR_SET_PDEATHSIG, signal_number, 0, 0, 0)


def adopt_orphans() -> None:
    """Grandchildren whose parent has died become our children, so that we can reap them."""
    _check(_libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
