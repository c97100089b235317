"""Small PNodes that come and go, every one of them replaced: the curve keeps its bits."""

from __future__ import annotations

import pytest

from soaks.networks import churn


@pytest.mark.timeout(280)
def test_the_curve_keeps_its_bits_although_every_pnode_is_replaced():
    """The short form; twenty PNodes in 300 steps: `make soak/networks`."""
    outcome = churn(pnodes=3, steps=40)
    assert outcome.bit_equal
    assert outcome.kills == 3
    assert outcome.epochs >= 4
