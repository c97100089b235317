"""The job's folder with a hard size: an ext4 image on a loop device, else a sized tmpfs. For root only.

Mounts live in a mount namespace of the calling process: when that process dies, by whatever cause, the
kernel unmounts them and frees the loop device. Only for an engine whose daemon must see them do they live in the
machine's own. Refuses to hand out a folder without a size.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from typing import NamedTuple

from computepool.node.sandbox import syscalls
from computepool.node.sandbox.port import SandboxRefused

# The state directory may stand in a home that only its owner can enter, and bubblewrap (which runs as the
# job's uid) must reach the mount point by name: hence a place of its own. It holds empty directories only.
MOUNT_ROOT = "/run/computepool"
IMAGE_NAME = "disk.img"
TOOL_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
TOOL_SECONDS_MAX = 60


class JobDisk(NamedTuple):
    """A mounted folder that belongs to the job's uid."""

    mount_point: str
    image: str | None  # None: a tmpfs, which is paid for in the job's memory
    fd: int

    def remove(self) -> None:
        os.close(self.fd)
        try:
            syscalls.unmount(self.mount_point)
        except OSError:
            # Somebody still looks into it; it goes when they let go, at the latest with this process.
            syscalls.unmount(self.mount_point, lazily=True)
        remove_traces(self.mount_point, self.image)


def plan_mount_point(name: str) -> str:
    return os.path.join(MOUNT_ROOT, name)


def plan_image(state_dir: str) -> str:
    return os.path.join(state_dir, IMAGE_NAME)


def remove_traces(mount_point: str, image: str | None) -> None:
    """What stays in the host's file tree: an empty directory, or file, and the image."""
    with contextlib.suppress(FileNotFoundError):
        try:
            os.rmdir(mount_point)
        except NotADirectoryError:
            os.unlink(mount_point)
    if image is not None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(image)


def create_disk(name: str, *, disk_bytes: int, uid: int, state_dir: str, is_private: bool = True) -> JobDisk:
    """A folder of that size, owned by that uid. If private, moves this process into a mount namespace of its own."""
    mount_point, image = plan_mount_point(name), plan_image(state_dir)
    try:
        if is_private:
            syscalls.enter_own_mount_namespace()
        os.makedirs(MOUNT_ROOT, exist_ok=True)
        # Whatever the umask says: the job's uid must be able to pass through, though not to look around.
        os.chmod(MOUNT_ROOT, 0o711)
        os.mkdir(mount_point)
    except OSError as error:
        raise SandboxRefused(f"no place for the job's folder: {error}") from error
    mounted_image: str | None = image
    try:
        try:
            _mount_image(image, mount_point, disk_bytes=disk_bytes, uid=uid)
        except (OSError, subprocess.SubprocessError) as failure:
            remove_traces("", image)
            mounted_image = None
            _mount_tmpfs(mount_point, disk_bytes=disk_bytes, uid=uid, why=failure)
        fd = os.open(mount_point, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except BaseException:
        remove_traces(mount_point, image)
        raise
    return JobDisk(mount_point, mounted_image, fd)


def plan_image_bytes(disk_bytes: int) -> int:
    """What the job was promised, and room for ext4 itself: 2 % of tables, 2 % (at most 16 MiB) held in reserve."""
    return disk_bytes + disk_bytes // 50 + min(disk_bytes // 50, 16 * 1024 * 1024) + 256 * 1024


def _mount_image(image: str, mount_point: str, *, disk_bytes: int, uid: int) -> None:
    fd = os.open(image, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        free = os.fstatvfs(fd)
        if free.f_bavail * free.f_frsize < disk_bytes:
            # Sparse, but promised: a job that fills its share must not find the owner's disk full.
            megabytes = free.f_bavail * free.f_frsize // 1_000_000
            raise SandboxRefused(f"only {megabytes} MB are free here, the job asks for {disk_bytes // 1_000_000}")
        os.ftruncate(fd, plan_image_bytes(disk_bytes))
    finally:
        os.close(fd)
    # No journal: a job's folder never outlives a crash. The tables are left sparse.
    features = "^has_journal,^resize_inode"
    extended = f"root_owner={uid}:{uid},lazy_itable_init=1,nodiscard"
    _run_tool("mkfs.ext4", "-q", "-F", "-b4096", "-i16384", "-m0", "-O", features, "-E", extended, image)
    _run_tool("mount", "-n", "-t", "ext4", "-o", "loop,nosuid,nodev,noatime", image, mount_point)
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(os.path.join(mount_point, "lost+found"))


def _mount_tmpfs(mount_point: str, *, disk_bytes: int, uid: int, why: Exception) -> None:
    try:
        syscalls.mount_tmpfs(mount_point, f"size={disk_bytes},mode=0755,uid={uid},gid={uid}")
    except OSError as error:
        reason = f"neither a disk image ({why}) nor a tmpfs ({error}) could be mounted"
        raise SandboxRefused(f"the job's folder cannot be limited in size: {reason}") from error


def _run_tool(*command: str) -> None:
    done = subprocess.run(
        command,
        env={"PATH": TOOL_PATH, "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=TOOL_SECONDS_MAX,
        check=False,
    )
    if done.returncode != 0:
        words = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
        raise OSError(f"{command[0]}: {words}")
