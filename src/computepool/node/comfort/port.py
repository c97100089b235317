"""What a platform's module gives: one quick look at the seat, and slower looks at all the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Seat:
    """How long nobody has touched keyboard or mouse; None: it cannot be seen, and `words` say why."""

    idle_seconds: float | None
    words: str


@dataclass(frozen=True, slots=True)
class Rest:
    """Everything but the seat. None: it cannot be known here."""

    on_battery: bool | None = None
    is_metered: bool | None = None
    programs: frozenset[str] = frozenset()
    gpu_celsius: float | None = None
    cpu_percent: float | None = None


class Reader(Protocol):
    """Neither call raises; each runs in a thread, and never both at once with itself."""

    def look_at_seat(self) -> Seat:
        """Within milliseconds: it is called several times a second."""
        ...

    def look_at_rest(self, *, programs: bool, gpus: bool) -> Rest:
        """May take seconds; leaves out what nobody asks for."""
        ...
