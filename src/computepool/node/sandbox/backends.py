"""The backends this distribution knows, weakest level first. The one place to add another.

Each is imported when it is asked for: a runner needs one, and starts the faster for it.
"""

from __future__ import annotations

from computepool.core.jobs.isolation import IsolationLevel
from computepool.node.sandbox.port import Backend, SandboxRefused

BUBBLEWRAP, PODMAN, DOCKER, GVISOR = "bubblewrap", "podman", "docker", "gvisor"
NAMES = (BUBBLEWRAP, PODMAN, DOCKER, GVISOR)


def list_backends() -> tuple[Backend, ...]:
    return tuple(get_backend(name) for name in NAMES)


def get_backend(name: str) -> Backend:
    """Exactly this one: a job is never run behind other walls than were chosen and tested."""
    if name == BUBBLEWRAP:
        from computepool.node.sandbox.bubblewrap import Bubblewrap

        return Bubblewrap()
    if name in NAMES:
        from computepool.node.sandbox import container, engines

        known = {engine.name: engine for engine in (engines.PODMAN, engines.DOCKER, engines.GVISOR)}
        return container.Container(known[name])
    raise SandboxRefused(f"no sandbox of the name {name} is known on this node")


def default_name(level: IsolationLevel) -> str:
    """Which one gives this level, where nobody has chosen."""
    return {IsolationLevel.SANDBOXED: BUBBLEWRAP, IsolationLevel.CONTAINER: PODMAN, IsolationLevel.GVISOR: GVISOR}[
        level
    ]
