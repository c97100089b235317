"""Which user of the operating system the server runs as, and how a child process becomes that user.

PostgreSQL refuses to run as root. A plain user runs it as itself; root runs it as a user that owns nothing else.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from computepool.core.errors import StoreError
from computepool.hub.store.embedded.trouble import DATABASE_URL_HINT

# In this order. The first usually comes with the system's own PostgreSQL; the second is ours.
SERVER_USER_NAMES = ("postgres", "computepool-db")
USERADD_TIMEOUT_SECONDS = 30
CHECK_TIMEOUT_SECONDS = 10


@dataclass(frozen=True, slots=True)
class OsUser:
    name: str
    uid: int
    gid: int

    def spawn_options(self) -> dict[str, Any]:
        """Arguments for `subprocess` under which a child runs as this user, with none of the hub's groups."""
        options: dict[str, Any] = {"cwd": "/", "umask": 0o077, "env": _environment()}
        if self.uid != os.geteuid():
            groups = os.getgrouplist(self.name, self.gid)
            options |= {"user": self.uid, "group": self.gid, "extra_groups": groups}
        return options


def hub_user() -> OsUser:
    uid = os.geteuid()
    user = find_user(uid)
    if user is None:
        raise StoreError(
            f"The hub runs as user id {uid}, which has no name on this system, and PostgreSQL refuses to run "
            f"as a nameless user. Add the user (useradd), run the hub as a named one, {DATABASE_URL_HINT}."
        )
    return user


def server_user(pgdata: Path) -> OsUser:
    """The user for the database in `pgdata`, which need not exist yet."""
    me = hub_user()
    if pgdata.exists():
        return _owner_of(pgdata, me)
    if me.uid != 0:
        return me
    return next((user for name in SERVER_USER_NAMES if (user := find_user(name))), None) or _create_user()


def find_user(key: int | str) -> OsUser | None:
    # Imported here because the module does not exist on Windows, where a hub with DATABASE_URL still runs.
    import pwd

    try:
        entry = pwd.getpwuid(key) if isinstance(key, int) else pwd.getpwnam(key)
    except KeyError:
        return None
    return OsUser(entry.pw_name, entry.pw_uid, entry.pw_gid)


def name_of(uid: int) -> str:
    user = find_user(uid)
    return f"{user.name!r}" if user else f"with the id {uid}"


def find_closed_folder(user: OsUser, path: Path) -> Path | None:
    """The first folder on the way to `path` (which is included) that `user` may not pass, or None.

    The user itself is asked, because mode bits alone do not show access lists or squashed network mounts.
    """
    if user.uid == os.geteuid():
        return None
    script = 'for folder; do [ -x "$folder" ] || { printf %s "$folder"; exit 0; }; done'
    folders = [str(folder) for folder in [*reversed(path.parents), path]]
    try:
        answer = subprocess.run(
            ["/bin/sh", "-c", script, "sh", *folders],
            capture_output=True,
            text=True,
            timeout=CHECK_TIMEOUT_SECONDS,
            **user.spawn_options(),
        )
    except (PermissionError, subprocess.SubprocessError) as error:
        raise StoreError(
            f"The hub runs as root but may not start a process as user {user.name!r} ({error}), "
            f"and PostgreSQL refuses to run as root. Run the hub as a plain user, {DATABASE_URL_HINT}."
        ) from error
    return Path(answer.stdout) if answer.stdout else None


def _owner_of(pgdata: Path, me: OsUser) -> OsUser:
    # An existing database keeps its user: `postgres` may have been added to the system after the first start.
    uid = pgdata.stat().st_uid
    owner = find_user(uid)
    may_be_used = {me.name} if me.uid != 0 else set(SERVER_USER_NAMES)
    if owner is not None and owner.name in may_be_used:
        return owner
    if me.uid == 0:
        raise StoreError(
            f"The database in {pgdata} belongs to the user {name_of(uid)}, but a hub that runs as root expects "
            f"{' or '.join(map(repr, SERVER_USER_NAMES))}. Run the hub as the user it belongs to, or give it to one "
            "of these (chown -R), or choose another data directory."
        )
    raise StoreError(
        f"The database in {pgdata} belongs to the user {name_of(uid)}, but this hub runs as {me.name!r}. "
        f"Run the hub as the user it belongs to, choose another data directory, {DATABASE_URL_HINT}."
    )


def _create_user() -> OsUser:
    name = SERVER_USER_NAMES[-1]
    useradd = shutil.which("useradd", path="/usr/sbin:/sbin:/usr/bin:/bin")
    complaint = "there is no useradd here"
    if useradd is not None:
        words = ["--system", "--no-create-home", "--home-dir", "/nonexistent", "--shell", "/usr/sbin/nologin"]
        answer = subprocess.run(
            [useradd, *words, name], capture_output=True, text=True, timeout=USERADD_TIMEOUT_SECONDS
        )
        complaint = answer.stderr.strip()
    # Looked up in any case: another hub may have created the user at the same moment, and then ours failed.
    user = find_user(name)
    if user is None:
        raise StoreError(
            "PostgreSQL refuses to run as root, and the system user it should run as could not be created "
            f"({complaint}). Create a system user named {name!r}, run the hub as a plain user, "
            f"{DATABASE_URL_HINT}."
        )
    return user


def _environment() -> dict[str, str]:
    # Nothing is inherited: PGPORT or PGDATA of the caller would bend the server, its locale the messages we
    # read, and the hub's secrets are not the server's business.
    return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "TZ": "UTC"}
