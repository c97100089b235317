"""The backends this distribution knows, weakest level first. The one place to add another."""

from __future__ import annotations

from computepool.core.jobs.isolation import IsolationLevel
from computepool.node.sandbox.bubblewrap import Bubblewrap
from computepool.node.sandbox.port import Backend, SandboxRefused

BACKENDS: tuple[Backend, ...] = (Bubblewrap(),)


def get_backend(level: IsolationLevel) -> Backend:
    """The backend that gives exactly this level: a job is never run behind other walls than were promised."""
    for backend in BACKENDS:
        if backend.level is level:
            return backend
    raise SandboxRefused(f"no sandbox of level {level.value} is known on this node")
