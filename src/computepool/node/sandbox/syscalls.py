"""The few kernel calls that Python does not offer before 3.12, by ctypes. Knows numbers, decides nothing."""

from __future__ import annotations

import ctypes
import os

CLONE_NEWNS = 0x00020000
MS_NOSUID, MS_NODEV, MS_REC, MS_SLAVE = 0x2, 0x4, 0x4000, 0x80000
MNT_DETACH = 0x2
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
