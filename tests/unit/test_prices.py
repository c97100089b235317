"""The price book: what a match costs, what a slot asks where spot has force, and the operator's rate card."""

from __future__ import annotations

from pathlib import Path

import pytest

from computepool.core.jobs.spec import Requirements
from computepool.core.market.rate_card import Bucket
from computepool.core.placement.shape import to_shape
from computepool.hub.services.market import keep_contested
from computepool.hub.services.prices import PriceBook, load_rate_card, read_rate_card
from computepool.settings import InvalidSettings
from tests.support.builders import account_number, make_candidate, make_slot

CARD = load_rate_card()
CPU, GPU = Bucket("cpu", "in"), Bucket("rtx-4090", "in")
SLOT = make_slot(tier="cpu", region="IN")


@pytest.fixture
def book() -> PriceBook:
    return PriceBook(CARD, holdback_seconds=60)


def test_a_slot_asks_its_floor_unless_spot_has_force_in_its_bucket(book):
    spot = 2 * CARD.reference(CPU)
    book.spots = {CPU: spot}
    assert book.ask(SLOT, 1.0, 7) == 7
    book.contested = frozenset({GPU})
    assert book.ask(SLOT, 1.0, 7) == 7
    book.contested = frozenset({CPU})
    assert book.ask(SLOT, 1.0, 7) == spot
    assert book.ask(SLOT, 1.0, spot + 1) == spot + 1


@pytest.mark.parametrize("ceiling_parts", [10, 15, 20, 30])
def test_a_match_where_spot_has_force_costs_spot_and_never_more_than_the_ceiling(book, ceiling_parts):
    spot = 2 * CARD.reference(CPU)
    ceiling = CARD.reference(CPU) * ceiling_parts // 10
    book.spots, book.contested = {CPU: spot}, frozenset({CPU})
    candidate = make_candidate(slot=SLOT, price_microcredits_per_hour=book.ask(SLOT, 1.0, 7))
    if candidate.price_microcredits_per_hour <= ceiling:
        assert book.rate(candidate, ceiling) == spot
    else:
        assert ceiling_parts < 20


def test_a_private_pool_is_lent_at_its_owners_price_whatever_spot_is_and_ones_own_for_nothing(book):
    book.spots, book.contested = {CPU: 2 * CARD.reference(CPU)}, frozenset({CPU})
    owner, friend = account_number(1), account_number(2)
    for welcome, price in ((frozenset({owner, friend}), 7), (frozenset({owner}), 0)):
        slot = make_slot(tier="cpu", region="IN", welcome=welcome)
        assert book.ask(slot, 1.0, 7) == price
        assert book.rate(make_candidate(slot=slot, price_microcredits_per_hour=price), 10**9) == price


def test_a_bucket_without_a_spot_stands_at_its_reference(book):
    book.contested = frozenset({CPU})
    assert book.ask(SLOT, 1.0, 0) == CARD.reference(CPU)


@pytest.mark.parametrize(
    ("need", "kept"),
    [
        (Requirements(), {CPU, GPU}),
        (Requirements(gpu=True), {GPU}),
        (Requirements(tiers=("rtx-4090",)), {GPU}),
        (Requirements(tiers=("cpu",)), {CPU}),
        (Requirements(tiers=("rtx-3060",)), set()),
        (Requirements(regions=("IN", "DE")), {CPU, GPU}),
        (Requirements(regions=("DE",)), set()),
        (Requirements(ceiling_microcredits_per_hour=99), set()),
        (Requirements(ceiling_microcredits_per_hour=100), {CPU}),
    ],
)
def test_spot_keeps_its_force_only_where_somebody_may_still_pay_it(need, kept):
    spots = {CPU: 100, GPU: 200}
    assert keep_contested(CARD, spots, {CPU, GPU}, [to_shape(need)]) == kept
    assert keep_contested(CARD, spots, {CPU, GPU}, []) == set()
    assert keep_contested(CARD, spots, set(), [to_shape(need)]) == set()


def test_a_card_without_a_row_of_its_own_may_be_in_any_bucket_of_such_cards():
    unknown = Bucket(CARD.unknown_steps[0].tier, "in")
    for tier, kept in (("unknown", {unknown}), ("rtx-4090", set())):
        shape = to_shape(Requirements(tiers=(tier,)))
        assert keep_contested(CARD, {unknown: 1}, {unknown}, [shape]) == kept


# The file


def test_without_a_file_the_shipped_card_is_in_force():
    card, text = read_rate_card("")
    assert (card, load_rate_card(text)) == (CARD, CARD)


def test_the_operators_file_is_in_force_as_it_is_written(tmp_path: Path):
    _, shipped = read_rate_card()
    path = tmp_path / "card.toml"
    path.write_text(shipped.replace("base_credits_per_hour = 12", "base_credits_per_hour = 24"))
    card, text = read_rate_card(path)
    assert card.reference(CPU) == 2 * CARD.reference(CPU)
    assert card.version != CARD.version
    assert text == path.read_text()


@pytest.mark.parametrize("content", [None, "fee = ", "fee = 0.3"])
def test_a_file_that_cannot_be_used_is_a_fault_of_the_settings_that_names_it(tmp_path: Path, content: str | None):
    path = tmp_path / "card.toml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InvalidSettings, match=r"card\.toml"):
        read_rate_card(path)
