"""What a host holds of the memory that VNodes may take: one account for training, open checkpoints and replays.

Training comes first. What is held beside it is never asked to leave, but nothing more is taken on before there is
room.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from computepool.core.networks.needs import list_needs
from computepool.core.networks.placement import Placement, SeatId
from computepool.core.networks.spec import NetworkSpec


class MemoryBook:
    """Belongs to one event loop. What is taken goes by a name."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._own_bytes = 0
        self._held: dict[str, int] = {}

    @property
    def left_bytes(self) -> int:
        return max(0, self.bytes_max - self._own_bytes - sum(self._held.values()))

    def set_own(self, size_bytes: int) -> None:
        """What the VNodes that are trained here take from now on. Raises MemoryError."""
        if size_bytes > self.bytes_max:
            raise MemoryError(f"its VNodes take {size_bytes:,} bytes; there are {self.bytes_max:,} for them")
        self._own_bytes = size_bytes

    def take(self, name: str, size_bytes: int) -> None:
        """Raises MemoryError, which says what the rest is used for."""
        left = self.left_bytes + self._held.get(name, 0)
        if size_bytes > left:
            held = ", ".join(f"{each} {size:,}" for each, size in {"training": self._own_bytes, **self._held}.items())
            raise MemoryError(
                f"{name} takes {size_bytes:,} bytes and {left:,} are left here; there are {self.bytes_max:,}, of "
                f"which are held: {held}"
            )
        self._held[name] = size_bytes

    def give_back(self, names: Iterable[str]) -> None:
        for name in names:
            self._held.pop(name, None)

    @contextmanager
    def holding(self, name: str, size_bytes: int) -> Iterator[None]:
        self.take(name, size_bytes)
        try:
            yield
        finally:
            self.give_back([name])


def count_training_bytes(spec: NetworkSpec, placement: Placement, seat: SeatId) -> int:
    """What a seat's VNodes take while they are trained, or while their steps are done again."""
    parts = {(each.vnode_id, each.replica) for each in placement.at(seat)}
    return sum(need.memory_bytes for need in list_needs(spec) if need.part in parts)
