"""What a job wears when it goes into its sandbox: which sandbox, image, packages, GPU and way out.

Everything here is got ready before the job's paid clock starts. Refuses what the owner does not allow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from computepool.core.jobs.cause import Cause
from computepool.core.jobs.isolation import IsolationLevel
from computepool.core.jobs.wants import is_host_allowed, is_image_allowed, list_allows
from computepool.core.placement.slot import SlotKind
from computepool.node import journal
from computepool.node.packages import PackageCache, PackagesFailed, PackagesUnreachable
from computepool.node.refusal import Refused
from computepool.node.sandbox import gpu_devices
from computepool.node.sandbox.images import ImageUnusable, ensure_image
from computepool.node.sandbox.port import SandboxRefused
from computepool.node.walls import Walls
from computepool.wire.attempts import RunOrder

Given = TypeVar("Given", str, tuple[str, ...])


@dataclass(frozen=True)
class Outfit:
    backend: str
    image: str | None = None
    environment: str | None = None
    egress: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Wardrobe:
    """What this node has, and what its owner lets jobs use."""

    walls: Walls
    packages: PackageCache
    images_allowed: tuple[str, ...] = ()
    egress_allowed: tuple[str, ...] = ()
    # A played machine has no GPU to show.
    has_devices: bool = True

    def list_allows(self) -> tuple[str, ...]:
        """What the hub is told, so that other work is not even sent: what the owner allows and a sandbox can give."""
        weakest = min(IsolationLevel, key=lambda level: level.rank)
        has_images = self.walls.find(weakest, has_image=True) is not None
        has_egress = self.walls.find(weakest, has_egress=True) is not None
        # With an image of the job's own, or without.
        behind_container = self.walls.find(IsolationLevel.CONTAINER, has_image=True, has_egress=True)
        return list_allows(
            images=self.images_allowed if has_images else (),
            egress=self.egress_allowed if has_egress else (),
            container_egress=self.egress_allowed if behind_container is not None else (),
            has_packages=self.packages.is_offered,
        )

    def check(self, order: RunOrder) -> str:
        """The sandbox that the job will run in. Raises Refused, before a byte is fetched."""
        image, egress = _given(order.image), _given(order.egress) or ()
        if image is not None and not is_image_allowed(image, self.images_allowed):
            raise Refused(Cause.NOT_ALLOWED, f"this node's owner does not allow the image {image.partition('@')[0]}")
        for target in egress:
            if not is_host_allowed(target, self.egress_allowed):
                raise Refused(Cause.NOT_ALLOWED, f"this node's owner does not let jobs reach {target}")
        if _given(order.packages) and not self.packages.is_offered:
            raise Refused(Cause.NOT_ALLOWED, "this node's owner does not let jobs have packages installed")
        backend = self.walls.find(order.isolation, has_image=image is not None, has_egress=bool(egress))
        if backend is None:
            wish = " with an image" if image is not None else " with a gate to other hosts" if egress else ""
            raise Refused(Cause.SANDBOX_REFUSED, f"this node cannot give isolation {order.isolation.value}{wish}")
        return backend

    async def prepare(self, order: RunOrder) -> Outfit:
        """Everything at hand. Raises Refused."""
        backend, image = self.check(order), _given(order.image)
        if image is not None:
            try:
                await asyncio.to_thread(ensure_image, backend, image)
            except ImageUnusable as error:
                raise Refused(Cause.INPUT_MISSING, str(error)) from None
            except SandboxRefused as error:
                raise Refused(Cause.SANDBOX_REFUSED, str(error)) from None
        environment = await self._install(_given(order.packages) or ())
        return Outfit(
            backend=backend,
            image=image,
            environment=None if environment is None else str(environment),
            egress=_given(order.egress) or (),
            devices=self._list_devices(order.slot),
        )

    def pin(self, order: RunOrder) -> str | None:
        """Keeps the job's packages from being swept away while it runs; to be handed to `unpin`."""
        packages = _given(order.packages)
        return self.packages.pin(packages) if packages and self.packages.is_offered else None

    def unpin(self, pinned: str | None) -> None:
        if pinned is not None:
            self.packages.unpin(pinned)

    async def _install(self, packages: Sequence[str]) -> Path | None:
        if not packages:
            return None
        try:
            return await self.packages.prepare(packages)
        except PackagesFailed as error:
            raise Refused(Cause.PACKAGES_FAILED, str(error)) from None
        except PackagesUnreachable as error:
            journal.warning("packages_unreachable", reason=error)
            raise Refused(Cause.PACKAGES_UNREACHABLE, str(error)) from None

    def _list_devices(self, slot: str) -> tuple[str, ...]:
        kind, _, number = slot.partition(":")
        if not self.has_devices or kind != SlotKind.GPU.value or not number.isdigit():
            return ()
        return gpu_devices.list_devices(int(number))


def split_list(text: str) -> tuple[str, ...]:
    """A setting of several words: commas and spaces between them."""
    return tuple(text.replace(",", " ").split())


def _given(value: Given | msgspec.UnsetType) -> Given | None:
    return None if isinstance(value, msgspec.UnsetType) else value
