"""The data directory on disk: where each file stands, whose it is, and whether it is ours at all.

It refuses to touch a folder that ComputePool did not make. What the files mean is known by their readers.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from computepool.core.errors import StoreError
from computepool.hub.store.embedded.os_user import OsUser, find_closed_folder, name_of
from computepool.hub.store.embedded.trouble import DATABASE_URL_HINT, explained

ROOT_HOME = Path("/var/lib/computepool")
# The lock file is also the mark by which a folder is known as ours: creating it is one atomic step.
MARK = "computepool-control.lock"
# A freshly made file system has this in its top folder, and a volume is a fair place for a database.
HARMLESS = frozenset({"lost+found"})
# Linux allows 107 bytes in the path of a socket, macOS 103; PostgreSQL appends "/.s.PGSQL.<port>.lock".
SOCKET_FOLDER_BYTES_MAX = 103 - len("/.s.PGSQL.65535")
# PostgreSQL and asyncpg both read a comma as a list; other odd characters would need quoting in both.
PLAIN_PATH = re.compile(r"[A-Za-z0-9/._+-]+")
LOG_BYTES_MAX = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Folder:
    """The hub's user owns this folder; the server's user owns only `pgdata` and the folder of the socket.

    When the hub is root, the server's user can thus not plant links on the files that root writes.
    """

    path: Path

    @property
    def control_lock(self) -> Path:
        """Held while the server is being created, started, restarted or stopped."""
        return self.path / MARK

    @property
    def users_lock(self) -> Path:
        """Each hub holds it shared from start to stop; who gets it alone is the last one."""
        return self.path / "users.lock"

    @property
    def supervisor_lock(self) -> Path:
        """Held by the one hub that watches the server."""
        return self.path / "supervisor.lock"

    @property
    def server_lock(self) -> Path:
        """Held by the server itself and all its children, so it is free only when each of them is gone."""
        return self.path / "server.lock"

    @property
    def pgdata(self) -> Path:
        return self.path / "pgdata"

    @property
    def log(self) -> Path:
        return self.path / "postgres.log"

    @property
    def password(self) -> Path:
        return self.path / "password"

    @property
    def digest(self) -> str:
        return hashlib.sha256(os.fsencode(self.path)).hexdigest()[:12]

    def socket_folder(self, user: OsUser) -> Path:
        """Beside the database, or in /tmp when that path does not fit into the address of a socket.

        It follows from the path alone, not from TMPDIR, so that all hubs agree on it.
        """
        beside = self.path / "run"
        if len(os.fsencode(beside)) <= SOCKET_FOLDER_BYTES_MAX and PLAIN_PATH.fullmatch(str(beside)):
            return beside
        return Path(f"/tmp/computepool-{user.uid}-{self.digest}")

    def write(self, name: str, text: str, *, reader: OsUser | None = None) -> None:
        """Replace a file as a whole; `reader` may read it, nobody else but its owner."""
        beside = self.path / f".{name}.new"
        beside.unlink(missing_ok=True)
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
            if reader is not None and reader.uid != os.geteuid():
                os.fchown(file.fileno(), -1, reader.gid)
                os.fchmod(file.fileno(), 0o640)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, self.path / name)

    def bound_log(self) -> None:
        """Keep at most one old log. The server appends, so after the cut it goes on at the beginning."""
        if not self.log.exists() or self.log.stat().st_size < LOG_BYTES_MAX:
            return
        with open(self.log, "rb") as log:
            log.seek(-LOG_BYTES_MAX, os.SEEK_END)
            newest = log.read(LOG_BYTES_MAX)
        os.truncate(self.log, 0)
        # On a full disk the old part is given up: the log must not be what stops the server.
        with contextlib.suppress(OSError):
            self.log.with_suffix(".log.1").write_bytes(newest)


def default_data_dir() -> Path:
    if os.name == "posix" and os.geteuid() == 0:
        return ROOT_HOME / "database"
    chosen = os.environ.get("XDG_DATA_HOME", "")
    # The XDG rule says that a relative path there counts for nothing.
    base = Path(chosen) if os.path.isabs(chosen) else Path("~/.local/share").expanduser()
    return base / "computepool" / "database"


def open_folder(data_dir: Path) -> Folder:
    """The folder, made if it was absent, refused if it is not ours."""
    path = Path(os.path.realpath(data_dir))
    with explained(path):
        if path.exists() and not path.is_dir():
            raise StoreError(
                f"{path} is a file, but the embedded database needs a folder. Choose another data directory."
            )
        make_folder(path)
        _refuse_other_owner(path)
        _refuse_foreign_content(path)
        # The server's user has to pass through a folder that belongs to root; it need not list it.
        path.chmod(0o711 if os.geteuid() == 0 else 0o700)
    return Folder(path)


def make_folder(path: Path) -> None:
    """Make a folder and what is missing above it. Root's must be passable for the server, whatever the umask."""
    missing = [folder for folder in [path, *path.parents] if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        if os.geteuid() == 0:
            folder.chmod(0o755)


def make_private_folder(path: Path, user: OsUser) -> None:
    """A folder that only `user` can enter. One that somebody else made first, in /tmp say, is refused."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    # Through the open folder, not its path: in /tmp the path could become a link between two looks at it.
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        owner = os.fstat(descriptor).st_uid
        if owner not in (user.uid, os.geteuid()):
            raise StoreError(
                f"{path} should be the private folder of the database's socket, but belongs to the user "
                f"{name_of(owner)}. Remove it, or choose a data directory with a shorter path."
            )
        os.fchmod(descriptor, 0o700)
        if owner != user.uid:
            os.fchown(descriptor, user.uid, user.gid)
    finally:
        os.close(descriptor)


def refuse_unreachable(user: OsUser, path: Path) -> None:
    closed = find_closed_folder(user, path)
    if closed is None:
        return
    raise StoreError(
        f"The hub is root and runs the database as the user {user.name!r}, but this user cannot pass through "
        f"{closed}, which is on the way to {path}. Choose a folder that is not private "
        f"(the default data directory is {default_data_dir()}), or run: chmod o+x {closed}"
    )


def _refuse_other_owner(path: Path) -> None:
    owner = path.stat().st_uid
    if owner != os.geteuid():
        raise StoreError(
            f"{path} belongs to the user {name_of(owner)}, but this hub runs as {name_of(os.geteuid())}. "
            f"Run the hub as the user it belongs to, choose another data directory, {DATABASE_URL_HINT}."
        )


def _refuse_foreign_content(path: Path) -> None:
    names = set(os.listdir(path)) - HARMLESS
    if not names or MARK in names:
        return
    if "PG_VERSION" in names:
        raise StoreError(
            f"{path} holds a PostgreSQL database that ComputePool did not create, and the hub does not take it "
            "over. Choose an empty or new data directory, or start that server yourself and set DATABASE_URL."
        )
    raise StoreError(
        f"{path} holds files that are not of an embedded database ({', '.join(sorted(names)[:3])}). "
        f"Choose an empty or new data directory, {DATABASE_URL_HINT}."
    )
