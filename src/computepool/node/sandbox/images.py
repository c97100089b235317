"""Gets a job's image to this machine, by its digest: what was asked for is what runs, or nothing does."""

from __future__ import annotations

import json

from computepool.node.sandbox import programs
from computepool.node.sandbox.backends import get_backend
from computepool.node.sandbox.container import IMAGE, Container, find_client
from computepool.node.sandbox.port import SandboxRefused

PULL_SECONDS_MAX = 1_800.0
# Said by engines when the image itself is the trouble, and not this machine or its line.
ABSENT = ("manifest unknown", "not found", "no such image", "unauthorized", "denied", "name unknown")


class ImageUnusable(Exception):
    """There is no such image, or none that may run here."""


def ensure_image(backend: str, image: str) -> None:
    """Blocking. Raises ImageUnusable for the job's fault, SandboxRefused for the machine's."""
    found = get_backend(backend)
    if not isinstance(found, Container):
        raise SandboxRefused(f"{backend} runs no images")
    if not IMAGE.fullmatch(image):
        raise ImageUnusable(f"{image!r} names no image by its digest (name@sha256:...)")
    client = find_client(found.engine)
    about = _find_image(client, image)
    if about is None:
        _pull(client, image)
        about = _find_image(client, image)
    if about is None:
        raise ImageUnusable(f"{image} was fetched and is not there under its digest")
    config = about.get("Config")
    volumes = config.get("Volumes") if isinstance(config, dict) else None
    if volumes and found.engine.program == "docker":
        # Docker gives each a folder on the owner's disk that nobody limits.
        raise ImageUnusable(f"{image} declares volumes of its own, which have no size: build it without VOLUME")


def _find_image(client: list[str], image: str) -> dict[str, object] | None:
    try:
        (about,) = json.loads(programs.ask([*client, "image", "inspect", image]))
        return dict(about)
    except (SandboxRefused, ValueError, TypeError):
        return None


def _pull(client: list[str], image: str) -> None:
    # An address of this machine itself is reached without TLS, as both engines do for their own tests.
    is_local = image.startswith(("127.0.0.1:", "localhost:"))
    options = ["--tls-verify=false"] if is_local and client[0].endswith("podman") else []
    try:
        programs.ask([*client, "pull", "--quiet", *options, image], seconds_max=PULL_SECONDS_MAX)
    except SandboxRefused as error:
        words = str(error)
        if any(sign in words.lower() for sign in ABSENT):
            raise ImageUnusable(f"the image could not be had: {words}") from None
        raise
