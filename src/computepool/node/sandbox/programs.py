"""Where the tools that wall a job in are found, and how they are called. Not by PATH: never looked up in a home."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from computepool.node.sandbox.port import SandboxRefused

PROGRAM_DIRS = ("/usr/bin", "/bin", "/usr/sbin", "/usr/local/bin")
# What engines need to find their own parts; nothing of the agent's environment, which may hold its token.
PLAIN_ENV = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/root"}


def find_program(name: str) -> str | None:
    for directory in PROGRAM_DIRS:
        program = os.path.join(directory, name)
        if os.access(program, os.X_OK):
            return program
    return None


def get_program(name: str, package: str) -> str:
    program = find_program(name)
    if program is None:
        raise SandboxRefused(f"{name} is not installed (package {package})")
    return program


def ask(command: Sequence[str], *, seconds_max: float = 30.0, given: bytes = b"") -> str:
    """What a tool prints. Raises SandboxRefused with its complaint."""
    try:
        done = subprocess.run(
            command, env=PLAIN_ENV, cwd="/", input=given, capture_output=True, timeout=seconds_max, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise SandboxRefused(f"{os.path.basename(command[0])} does not run: {error}") from error
    if done.returncode != 0:
        words = done.stderr.decode(errors="replace").strip()[-500:] or f"exit code {done.returncode}"
        raise SandboxRefused(f"{os.path.basename(command[0])}: {words}")
    return done.stdout.decode(errors="replace")
