"""The hub without prices is asked as the hub with prices is."""

from __future__ import annotations

import inspect

import pytest

from benchmarks.free_hub import _NoPrices
from computepool.hub.services.prices import PriceBook

OVERRIDDEN = [name for name in vars(_NoPrices) if inspect.isfunction(getattr(PriceBook, name, None))]


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_it_takes_what_the_price_book_takes_and_answers_the_same_kind(name):
    assert inspect.signature(getattr(_NoPrices, name)) == inspect.signature(getattr(PriceBook, name))


def test_something_is_overridden():
    assert {"ask", "fill_ceiling", "rate", "reserve"} <= set(OVERRIDDEN)
