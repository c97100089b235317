"""The torch module by which people write a residual that can be taken apart."""

from __future__ import annotations

from torch import Tensor, nn


class Residual(nn.Module):
    """What comes in, plus what `inner` makes of it."""

    def __init__(self, *inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner[0] if len(inner) == 1 else nn.Sequential(*inner)

    def forward(self, given: Tensor) -> Tensor:
        # The view gathers all that `inner` gives back before the other way is added: as between two machines.
        made: Tensor = self.inner(given.view_as(given))
        return given + made
