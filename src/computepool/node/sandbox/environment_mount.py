"""Shows a job its Python packages: the agent's own folder, at a place that the job's user id can reach."""

from __future__ import annotations

import contextlib
import os

from computepool.node.sandbox import syscalls
from computepool.node.sandbox.disk import MOUNT_ROOT
from computepool.node.sandbox.port import SandboxRefused, SandboxRequest


def plan_environment(name: str) -> str:
    return os.path.join(MOUNT_ROOT, f"{name}-environment")


def show_environment(request: SandboxRequest, undo: contextlib.ExitStack) -> SandboxRequest:
    """The request with its folder at the place where it can be reached; root only, after the job's disk was made."""
    if request.environment is None:
        return request
    place = plan_environment(request.name)
    try:
        os.mkdir(place, 0o755)
        undo.callback(hide_environment, place)
        syscalls.bind(request.environment, place, read_only=True)
    except OSError as error:
        raise SandboxRefused(f"the packages cannot be shown to the job: {error}") from error
    return request._replace(environment=place)


def hide_environment(place: str) -> None:
    with contextlib.suppress(OSError):
        syscalls.unmount(place, lazily=True)
    with contextlib.suppress(OSError):
        os.rmdir(place)
