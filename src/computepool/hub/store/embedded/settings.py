"""The texts that PostgreSQL reads: its settings, and who may log in. Pure: paths and names in, text out."""

from __future__ import annotations

from pathlib import Path

ROLE = "computepool"
DATABASE = "computepool"
# The owner of everything. The hub does not use it: a hole in the hub then does not reach files or programs.
SUPERUSER = "postgres"
# Without TCP this number only names the socket file, so it cannot be taken.
SOCKET_PORT = 5432


def server_settings(
    *, cluster_name: str, folder: Path, socket_folder: Path, port: int | None, major: int, has_custom: bool
) -> str:
    lines = [
        "# ComputePool writes this file anew at every start of the server.",
        "# Your own settings go into custom.conf in this folder; only those below the include cannot be changed.",
        # Several hubs with a pool each, and room for psql and a backup.
        "max_connections = 200",
        # Modest on purpose: the hub shares its machine. The operating system's cache does the rest.
        "shared_buffers = 128MB",
        "log_checkpoints = off",
        "include = 'custom.conf'" if has_custom else "# include = 'custom.conf'",
        # A job that was acknowledged, and every credit, must survive a power cut.
        "fsync = on",
        "synchronous_commit = on",
        "full_page_writes = on",
        # The supervisor finds the server's processes by this name in their titles.
        f"cluster_name = {quoted(cluster_name)}",
        "update_process_title = on",
        f"listen_addresses = {quoted('127.0.0.1' if port else '')}",
        f"port = {port or SOCKET_PORT}",
        f"unix_socket_directories = {quoted(str(socket_folder))}",
        "unix_socket_permissions = 0700",
        f"hba_file = {quoted(str(folder / 'pg_hba.conf'))}",
        f"ident_file = {quoted(str(folder / 'pg_ident.conf'))}",
        "password_encryption = scram-sha-256",
        # The log is the file that the supervisor gave the server as its output, and bounds.
        "log_destination = stderr",
        "logging_collector = off",
        "log_line_prefix = '%m [%p] '",
        "log_timezone = UTC",
        "timezone = UTC",
        "lc_messages = C",
    ]
    if major >= 17:
        # A setting written by ALTER SYSTEM would beat this file without standing in it.
        lines.append("allow_alter_system = off")
    return "\n".join(lines) + "\n"


def login_rules(*, port: int | None) -> str:
    """Who may log in, and how.

    The socket asks the kernel who is calling (peer), and stands in a folder that only the server's user and
    root can enter: no other local user gets in, and there is no secret to leak. TCP is off unless a port was
    asked for; loopback is open to every local user, so there a password is needed (scram), even from us.
    """
    lines = [
        "local all all peer map=computepool",
        "local replication all peer map=computepool",
    ]
    if port:
        lines.append(f"host all {ROLE} 127.0.0.1/32 scram-sha-256")
    return "\n".join(lines) + "\n"


def login_names(system_names: set[str]) -> str:
    """Which users of the operating system may be which role."""
    pairs = [(name, role) for name in sorted(system_names) for role in (ROLE, SUPERUSER)]
    return "".join(f'computepool "{name}" {role}\n' for name, role in pairs)


def first_statements(password: str) -> str:
    """Run once, on the new cluster, one statement a line. The password is URL-safe text, so it needs no escape."""
    return f"CREATE ROLE {ROLE} LOGIN CREATEDB PASSWORD '{password}'\nCREATE DATABASE {DATABASE} OWNER {ROLE}\n"


def initdb_words(pgdata: Path, *, major: int) -> list[str]:
    # The built-in locale sorts by code point on every system and in every version of its libraries, so an
    # index never breaks because the system under it was upgraded.
    locale = ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"]
    if major < 17:
        locale = ["--locale-provider=libc", "--locale=C.UTF-8"]
    return [
        f"--pgdata={pgdata}",
        f"--username={SUPERUSER}",
        "--encoding=UTF8",
        *locale,
        "--data-checksums",
        # Our own login rules replace these; they hold if somebody ever starts the folder without ours.
        "--auth-local=peer",
        "--auth-host=scram-sha-256",
        "--no-instructions",
    ]


def quoted(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
