"""A hub whose slots cost nothing: what the other benchmarks measure, and what money is measured against.

Nothing is held, charged or posted; all else is the hub as it is. Never part of the product.
"""

from __future__ import annotations

import sys

from computepool.core.ids import AccountId
from computepool.core.jobs.spec import Requirements
from computepool.core.placement.price import Asked
from computepool.core.placement.scorers import Candidate
from computepool.core.placement.shape import Shape, to_shape
from computepool.core.placement.slot import Slot
from computepool.hub.main import main
from computepool.hub.services.prices import PriceBook


class _NoPrices(PriceBook):
    def fill_ceiling(self, need: Requirements) -> Shape:
        return to_shape(need)

    def reserve(self, shape: Shape, wall_seconds: int) -> int:
        return 0

    def ask(self, slot: Slot, speed_tflops: float, floor: int) -> Asked:
        return Asked(floor, floor)

    def rate(self, candidate: Candidate, ceiling: int | None, account_id: AccountId) -> int:
        return 0


if __name__ == "__main__":
    from computepool.hub import main as hub_main

    hub_main.PriceBook = _NoPrices  # type: ignore[misc]
    sys.exit(main())
